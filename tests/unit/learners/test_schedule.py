"""Steps are dealt reproducibly, within the budget, with fresh text first among equals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.schedule import FINAL_RATE, learning_rate, schedule

sizes = st.dictionaries(st.integers(0, 200), st.integers(1, 120), min_size=1, max_size=40)


@given(sizes, st.data(), st.integers(1, 3000), st.integers(1, 400), st.integers(0, 99))
def test_steps_fill_the_budget_and_favour_fresh_text(
    tokens: dict[int, int], data: st.DataObject, token_steps: int, batch_tokens: int, seed: int
) -> None:
    """The budget is met and overshot by less than a batch; at least about half of the tokens are fresh."""
    fresh = data.draw(st.lists(st.sampled_from(sorted(tokens)), unique=True))
    steps = schedule(tokens, fresh, token_steps=token_steps, batch_tokens=batch_tokens, seed=seed)
    longest = max(tokens.values())
    processed = sum(tokens[number] for step in steps for number in step)
    assert token_steps <= processed < token_steps + batch_tokens + longest
    assert all(sum(tokens[number] for number in step) >= batch_tokens for step in steps)
    assert steps == schedule(tokens, fresh, token_steps=token_steps, batch_tokens=batch_tokens, seed=seed)
    if fresh:
        fresh_tokens = sum(tokens[number] for step in steps for number in step if number in fresh)
        assert fresh_tokens >= 0.5 * processed - longest


def test_each_pass_deals_every_request_once() -> None:
    """No request is dealt a second time before all others of its kind were dealt."""
    tokens = dict.fromkeys(range(10), 1)
    steps = schedule(tokens, list(range(10)), token_steps=30, batch_tokens=5, seed=1)
    dealt = [number for step in steps for number in step]
    assert [sorted(dealt[start : start + 10]) for start in (0, 10, 20)] == [list(range(10))] * 3


@pytest.mark.parametrize("steps", [1, 5, 40, 400])
def test_the_learning_rate_warms_up_and_decays(steps: int) -> None:
    """It starts low, reaches its peak and ends near a tenth of it."""
    rates = [learning_rate(step, steps, 1.0) for step in range(steps)]
    assert max(rates) <= 1.0
    assert max(rates) == pytest.approx(1.0)
    if steps >= 40:
        assert rates[0] < 0.5
        assert rates[-1] == pytest.approx(FINAL_RATE, abs=0.02)
