"""Adapter or turbo, by what their first drafts were worth."""

from __future__ import annotations

import random

from adaptive.engine.preference import ASK_OTHER, DrafterPreference


def serve(preference: DrafterPreference, adapter: float, turbo: float, steps: int, version: int = 1) -> float:
    """Serve steps in which each is right with its own probability; the share that the adapter drafted."""
    chance = random.Random(5)  # noqa: S311  a test
    used = 0
    for _ in range(steps):
        use = preference.use_adapter("acme", version)
        used += use
        right = chance.random() < (adapter if use else turbo)
        preference.observe("acme", version, adapter=use, confirmed=right)
    return used / steps


def test_the_adapter_drafts_unless_turbo_is_better_beyond_chance() -> None:
    """Equal ones and better adapters draft all but the steps that ask turbo."""
    for adapter in (0.7, 0.8):
        assert serve(DrafterPreference(), adapter, 0.7, 8000) > 1 - 1.5 / ASK_OTHER


def test_an_adapter_that_its_tenants_traffic_left_gives_way_and_may_come_back() -> None:
    """Turbo takes over, asks the adapter now and then, and hands back when it is better again."""
    preference = DrafterPreference()
    serve(preference, 0.4, 0.7, 8000)
    assert serve(preference, 0.4, 0.7, 2000) < 1.5 / ASK_OTHER
    serve(preference, 0.9, 0.5, 64 * ASK_OTHER * 10)
    assert serve(preference, 0.9, 0.5, 2000) > 1 - 1.5 / ASK_OTHER


def test_a_new_version_is_tried_at_once() -> None:
    """What the old version drafted is not held against it."""
    preference = DrafterPreference()
    serve(preference, 0.2, 0.7, 8000)
    assert preference.use_adapter("acme", 2)


def test_a_forgotten_tenant_starts_anew() -> None:
    """And tenants are bounded."""
    preference = DrafterPreference()
    serve(preference, 0.2, 0.7, 8000)
    preference.forget("acme")
    assert preference.use_adapter("acme", 1)
    for number in range(3000):
        preference.observe(f"tenant-{number}", 1, adapter=True, confirmed=True)
    assert len(preference._tenants) <= 1024
