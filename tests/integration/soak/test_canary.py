"""A secret in one tenant's traffic is nowhere in what another tenant, or anybody without a key, can read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.bench.soak_service import MODEL, SoakService

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET = "zanzibar-8823-marmalade"
OWNER, OTHER = "tenant0", "tenant1"
LONG = " ".join(f"Item {number} of the vault's inventory is listed here." for number in range(40))
"""Longer than a block of the prefix cache, several times."""
PROMPT = f"{LONG} The code word is {SECRET}. Repeat the code word."


def ask(service: SoakService, tenant: str, text: str, **fields: Any) -> httpx.Response:
    """One chat completion."""
    body: Mapping[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        "temperature": 0,
    }
    answer = httpx.post(
        f"{service.url}/v1/chat/completions",
        json={**body, **fields},
        headers={"authorization": f"Bearer {tenant}-key"},
        timeout=120,
    )
    return answer.raise_for_status()


def hits(service: SoakService) -> float:
    """Prompt tokens read from the prefix cache since the start, all tenants together."""
    found = re.search(r"^vllm:prefix_cache_hits_total\{[^}]*\} (\S+)$", service.metrics(), re.MULTILINE)
    assert found is not None
    return float(found.group(1))


@pytest.fixture(scope="module")
def planted(service: SoakService) -> None:
    """The owner sent its secret, and learns from it."""
    ask(service, OWNER, PROMPT, max_tokens=24)


@pytest.mark.usefixtures("planted")
def test_another_tenant_reads_nothing_of_the_owners_prefix(service: SoakService) -> None:
    """The owner's second request reads its prefix from the cache, another tenant's same text does not."""
    before = hits(service)
    ask(service, OWNER, PROMPT)
    after_owner = hits(service)
    assert after_owner - before >= 128
    ask(service, OTHER, PROMPT)
    assert hits(service) == after_owner


@pytest.mark.usefixtures("planted")
def test_no_answer_header_or_metric_of_others_holds_it(service: SoakService) -> None:
    """A prompt that begins like the owner's and stops before the secret is answered without it."""
    opening = PROMPT.split(SECRET, maxsplit=1)[0]
    for fields in ({}, {"stream": True, "stream_options": {"include_usage": True}}, {"logprobs": True}):
        answer = ask(service, OTHER, opening, max_tokens=24, **fields)
        assert SECRET not in answer.text
        assert SECRET not in str(answer.headers)
    assert SECRET not in service.metrics()
    assert SECRET not in str(service.engine())
    assert SECRET not in service.output.read_text(errors="replace")
