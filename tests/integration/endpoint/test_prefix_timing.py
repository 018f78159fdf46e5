"""What the time to the first token tells of other tenants' prompts."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING

from tests.integration.endpoint.server import MODEL

if TYPE_CHECKING:
    from tests.integration.endpoint.server import Server

ROUNDS = 6
PROMPT_TOKENS = 800
"""Long enough that its prefill takes most of a request's time."""


def seconds(server: Server, tenant: str, prompt: list[int]) -> float:
    """How long a tenant waits for one token."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    began = time.perf_counter()
    response = server.post("/v1/completions", body, key=f"{tenant}-key")
    assert response.status_code == 200, response.text
    return time.perf_counter() - began


def test_no_tenant_can_tell_by_time_what_another_asked(server: Server) -> None:
    """A prompt that another tenant has just sent takes as long as a new one; one's own comes from the cache.

    The second is what the measurement would see if the cache were shared. Ratios of requests in turn, and
    their medians, hold on a busy machine too.
    """
    generator = random.Random(7)  # noqa: S311  reproducible on purpose, nothing secret

    def prompt() -> list[int]:
        return [generator.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)]

    own: list[float] = []
    foreign: list[float] = []
    for number in range(-1, ROUNDS):  # round -1 warms up
        asked, new = prompt(), prompt()
        first = seconds(server, "acme", asked)
        pair = {}
        for which in ((asked, new), (new, asked))[number % 2]:
            pair[which is asked] = seconds(server, "other", which)
        again = seconds(server, "acme", asked)
        if number >= 0:
            own.append(again / first)
            foreign.append(pair[True] / pair[False])
    assert statistics.median(own) < 0.6, own
    assert 0.75 < statistics.median(foreign) < 1.33, foreign
