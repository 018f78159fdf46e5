"""Engine time that adapters have saved, from counters of what every arm did."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from adaptive.contracts import Arm

if TYPE_CHECKING:
    from collections.abc import Iterable


class ArmTime(NamedTuple):
    """Totals of one arm of one tenant."""

    arm: str
    tokens: int
    engine_seconds: float


def engine_seconds_saved(arms: Iterable[ArmTime]) -> float | None:
    """What turbo would have taken for the adapters' tokens, less what they took; negative: they cost time.

    Turbo's rate is that of the tenant's own traffic: its control group, and what it drafted before there was
    an adapter.

    Returns:
        Seconds; None while nothing can be compared: no adapter or no turbo has drafted.
    """
    known = list(arms)
    turbo = [one for one in known if one.arm == Arm.TURBO and one.tokens]
    adapters = [one for one in known if one.arm == Arm.ADAPTER and one.tokens]
    if not turbo or not adapters:
        return None
    rate = sum(one.engine_seconds for one in turbo) / sum(one.tokens for one in turbo)
    return sum(one.tokens * rate - one.engine_seconds for one in adapters)
