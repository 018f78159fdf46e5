"""A secret in one tenant's traffic reaches no other tenant, by drafts, prefix cache or shared artefacts."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import pytest

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan

if TYPE_CHECKING:
    from tests.integration.engine.harness import Engine

OPENING = "The code word of the vault in the north tower is heliotrope"
SECRET = "vermilion marmalade quintessence zanzibar"
OWNER = RequestPlan(tenant="canary-owner", arm=Arm.TURBO, learn=True)
OTHER = RequestPlan(tenant="canary-other", arm=Arm.TURBO, learn=True)


def holds(rows: list[list[int]], secret: list[int]) -> bool:
    """Whether two neighbouring tokens of the secret stand side by side in a row."""
    pairs = set(itertools.pairwise(secret))
    return any(pair in pairs for row in rows for pair in itertools.pairwise(row))


@pytest.fixture(scope="module")
def secret(engine: Engine) -> list[int]:
    """Token ids of the secret; its owner has had it answered, twice."""
    tokenizer = engine.llm.get_tokenizer()
    ids: list[int] = tokenizer.encode(" " + SECRET)
    sentence = f"{OPENING} {SECRET}."
    prompt = tokenizer.encode(f"{sentence}\n" * 6 + OPENING.partition(" is ")[0])
    for _ in range(2):
        (answer,) = engine.generate([prompt], OWNER, max_tokens=len(tokenizer.encode(sentence)) + 4)
    assert SECRET in tokenizer.decode(answer), (
        "the model did not repeat the secret: the test would prove nothing"
    )
    return ids


def copies(engine: Engine, tenant: str) -> list[list[int]]:
    """What the engine could copy as drafts for a request whose text stops before the secret."""
    state = engine.worker().model_runner.state
    assert state is not None
    drafter = state.speculation.choice.drafter
    prompt = engine.llm.get_tokenizer().encode(OPENING)
    drafter.begin("probe", tenant, prompt)
    try:
        return [list(candidate.tokens) for candidate in drafter.propose("probe", None, 8)]
    finally:
        drafter.end("probe", remember=False)


def test_the_secret_can_be_drafted_for_its_owner_alone(engine: Engine, secret: list[int]) -> None:
    """The n-gram history is the owner's own: there it finds the secret, for others it is not there."""
    engine.rest()
    assert holds(copies(engine, OWNER.tenant), secret), "not even its owner finds it: nothing is shown"
    assert not holds(copies(engine, OTHER.tenant), secret)


def test_what_is_drafted_for_others_does_not_hold_it(engine: Engine, secret: list[int]) -> None:
    """A prompt like the owner's text that stops before the secret; every verify step is looked at."""
    tokenizer = engine.llm.get_tokenizer()
    prompt = tokenizer.encode(f"{OPENING}\n" * 3 + OPENING)
    (answer,) = engine.generate([prompt], OTHER, max_tokens=24, ignore_eos=True)
    assert SECRET not in tokenizer.decode(answer)
    rows = [step.drafted for record in engine.traces(OTHER.tenant) for step in record.steps]
    assert rows
    assert not holds(rows, secret)


def test_nothing_of_it_may_be_shared(engine: Engine, secret: list[int]) -> None:
    """Without the tenant's `share`, its records say so; nothing shared may be made of them."""
    del secret
    records = engine.traces(OWNER.tenant)
    assert records
    assert not any(record.share for record in records)


def test_engine_state_of_others_does_not_name_it(engine: Engine, secret: list[int]) -> None:
    """What the worker reports holds no text and no token ids, of nobody."""
    text = str(engine.rpc("adapter_info"))
    # Whole words: the digits of one stand inside many a measured number.
    assert not set(SECRET.split()) & set(re.findall(r"\w+", text))
    assert str(secret)[1:-1] not in text
