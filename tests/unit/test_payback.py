"""What adapters save is counted against turbo on the same tenant's traffic."""

from __future__ import annotations

import pytest

from adaptive.payback import ArmTime, engine_seconds_saved


def test_saved_is_what_turbo_would_have_taken_less_what_was_taken() -> None:
    """1,000 tokens at turbo's 20 ms are 20 s; two versions took 13 s for them: 7 s saved."""
    arms = [
        ArmTime("off", 100, 90.0),
        ArmTime("turbo", 500, 10.0),
        ArmTime("adapter", 400, 6.0),
        ArmTime("adapter", 600, 7.0),
        ArmTime("ngram", 50, 0.1),
    ]
    assert engine_seconds_saved(arms) == pytest.approx(7.0)


def test_an_adapter_that_costs_time_saves_a_negative_amount() -> None:
    """Nothing is rounded up to zero."""
    assert engine_seconds_saved([ArmTime("turbo", 100, 1.0), ArmTime("adapter", 100, 3.0)]) == -2.0


@pytest.mark.parametrize(
    "arms", [[], [ArmTime("turbo", 9, 1.0)], [ArmTime("adapter", 9, 1.0), ArmTime("turbo", 0, 0.0)]]
)
def test_without_both_there_is_nothing_to_compare(arms: list[ArmTime]) -> None:
    """No adapter or no turbo: no number."""
    assert engine_seconds_saved(arms) is None
