"""Calibration follows each tenant's outcomes, counts known positions only, and stays apart per tenant."""

from __future__ import annotations

import math
import random
from pathlib import Path

import msgspec
import pytest

from adaptive.engine import calibration
from adaptive.engine.calibration import Calibration, Priors
from adaptive.engine.reliability import Reliability
from adaptive.engine.survival import WIDTHS, Judge, drafted

PRIORS = Priors.load(Path(calibration.__file__).with_name("priors.json"))


def feed(
    calibrated: Calibration, tenant: str, count: int, slope: float, shift: float, seed: int = 0
) -> list[tuple[float, float]]:
    """Outcomes of a tenant whose true logit is slope * log-odds + shift; (predicted, true) of each."""
    draw = random.Random(seed)  # noqa: S311  sampling, not secrets
    pairs = []
    for number in range(count):
        log_odds = draw.gauss(1.0, 2.5)
        row = drafted(log_odds, number % 3, 0.0)
        true = 1.0 / (1.0 + math.exp(-(slope * log_odds + shift)))
        pairs.append((calibrated.survival(tenant, Judge.TURBO, row), true))
        survived = draw.random() < true
        calibrated.observe(tenant, [(Judge.TURBO, row)], int(survived), rejected=not survived)
    return pairs


@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.5), (0.4, -1.5), (1.5, 1.0)])
def test_it_converges_and_is_calibrated(slope: float, shift: float) -> None:
    """Whatever the tenant's truth, later predictions are within 2 % of it and the error is below 1.5 %."""
    calibrated = Calibration(PRIORS)
    pairs = feed(calibrated, "a", 20_000, slope, shift)
    late = pairs[10_000:]
    assert sum(abs(predicted - true) for predicted, true in late) / len(late) < 0.02
    assert calibrated.errors()["a"][Judge.TURBO] < 0.015


def test_it_follows_a_change() -> None:
    """When a tenant's truth changes, old evidence fades: predictions come back within 4 %."""
    calibrated = Calibration(PRIORS)
    feed(calibrated, "a", 20_000, 1.0, 1.0)
    pairs = feed(calibrated, "a", 60_000, 1.0, -1.0, seed=1)[-10_000:]
    assert sum(abs(predicted - true) for predicted, true in pairs) / len(pairs) < 0.04


def test_a_batch_that_surprises_moves_the_fit_towards_it() -> None:
    """Half of a batch is rejected where nearly all was expected to survive: half way, not past it."""
    calibrated = Calibration(PRIORS)
    row = drafted(3.0, 0, 0.0)
    before = calibrated.survival("a", Judge.TURBO, row)
    for number in range(63):
        calibrated.observe("a", [(Judge.TURBO, row)], number % 2, rejected=number % 2 == 0)
    assert calibrated.survival("a", Judge.TURBO, row) == before  # a batch moves it, not an outcome
    calibrated.observe("a", [(Judge.TURBO, row)], 1, rejected=False)
    assert 0.5 < calibrated.survival("a", Judge.TURBO, row) < before - 0.05


def test_positions_behind_the_first_rejected_one_teach_nothing() -> None:
    """A chain of four of which one was accepted counts one acceptance and one rejection."""
    calibrated = Calibration(PRIORS)
    rows = [(Judge.TURBO, drafted(1.0, position, 0.0)) for position in range(4)]
    calibrated.observe("a", rows, 1, rejected=True)
    assert calibrated._fits["a"][Judge.TURBO].observations == 2
    calibrated.observe("a", rows, 2, rejected=False)
    assert calibrated._fits["a"][Judge.TURBO].observations == 4


def test_tenants_do_not_touch_each_other() -> None:
    """What one tenant's outcomes taught changes no prediction for another, known or new."""
    calibrated = Calibration(PRIORS)
    row = drafted(1.0, 0, 0.0)
    known = calibrated.survival("b", Judge.TURBO, row)
    feed(calibrated, "a", 5_000, 0.2, -2.0)
    assert calibrated.survival("b", Judge.TURBO, row) == known
    assert calibrated.survival("c", Judge.TURBO, row) == known
    assert calibrated.survival("a", Judge.TURBO, row) < known - 0.2


def test_an_adapter_starts_where_its_tenants_turbo_is() -> None:
    """The fit carries over to the adapter, and is its own from then on."""
    calibrated = Calibration(PRIORS)
    feed(calibrated, "a", 5_000, 0.2, -2.0)
    row = drafted(1.0, 0, 0.0)
    turbo = calibrated.survival("a", Judge.TURBO, row)
    assert calibrated.survival("a", Judge.ADAPTER, row) == turbo
    for _ in range(1_000):
        calibrated.observe("a", [(Judge.ADAPTER, row)], 1, rejected=False)
    assert calibrated.survival("a", Judge.ADAPTER, row) > turbo + 0.2
    assert calibrated.survival("a", Judge.TURBO, row) == turbo


def test_tenants_are_bounded() -> None:
    """With more tenants than fit, the one that was quiet for longest starts anew."""
    calibrated = Calibration(PRIORS, tenants=2)
    row = drafted(1.0, 0, 0.0)
    fresh = calibrated.survival("new", Judge.TURBO, row)
    feed(calibrated, "a", 2_000, 0.2, -2.0)
    feed(calibrated, "b", 2_000, 0.2, -2.0)
    learned = calibrated.survival("b", Judge.TURBO, row)
    calibrated.survival("c", Judge.TURBO, row)
    assert set(calibrated._fits) == {"b", "c"}
    assert calibrated.survival("b", Judge.TURBO, row) == learned
    assert calibrated.survival("a", Judge.TURBO, row) == fresh
    assert len(calibrated._errors) <= 2


def test_state_is_plain_and_comes_back() -> None:
    """Saved fits survive msgpack and predict the same; forgetting drops them."""
    calibrated = Calibration(PRIORS)
    feed(calibrated, "a", 64 * 50, 0.2, -2.0)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(calibrated.state()))
    other = Calibration(PRIORS)
    other.restore(state)
    row = drafted(0.5, 1, 0.7)
    assert other.survival("a", Judge.TURBO, row) == calibrated.survival("a", Judge.TURBO, row)
    other.forget("a")
    assert other.state() == {}
    assert other.errors() == {}


@pytest.mark.parametrize("damage", ["shape", "finite", "fit"])
def test_damaged_state_is_refused(damage: str) -> None:
    """State of another shape, of no number or of an unknown fit is refused, and its tenant starts anew."""
    calibrated = Calibration(PRIORS)
    feed(calibrated, "a", 128, 1.0, 0.0)
    state = calibrated.state()
    fit = state["a"]["turbo"]
    if damage == "shape":
        fit["weights"] = [1.0]
    elif damage == "finite":
        fit["weights"] = [math.nan] * WIDTHS[Judge.TURBO]
    else:
        state["a"]["oracle"] = fit
    other = Calibration(PRIORS)
    with pytest.raises(ValueError, match=r"leave the saved calibration out|not a valid Judge"):
        other.restore(state)
    assert other.state() == {}


def test_shipped_priors_fit_the_features() -> None:
    """Every fit has a prior of its width, symmetric and positive definite enough to solve with."""
    assert set(PRIORS.fits) == set(Judge)
    for judge, prior in PRIORS.fits.items():
        width = WIDTHS[judge]
        assert len(prior.weights) == width
        assert [len(row) for row in prior.precision] == [width] * width
        assert all(prior.precision[i][i] > 0 for i in range(width))


def test_reliability_is_the_mean_gap_of_its_bins() -> None:
    """Two bins, one right and one off by 0.2, weighted by their outcomes."""
    error = Reliability(half_life=1e12)
    for number in range(100):
        error.add(0.5, number % 2 == 0)
        error.add(0.9, number % 10 < 7)
    assert error.error == pytest.approx(0.1)
    assert Reliability().error == 0.0


def test_reliability_forgets() -> None:
    """Old miscalibration fades with the half-life."""
    error = Reliability(half_life=100)
    for _ in range(1_000):
        error.add(0.9, outcome=False)
    for number in range(5_000):
        error.add(0.9, number % 10 < 9)
    assert error.error < 0.02
