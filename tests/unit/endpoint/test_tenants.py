"""Who may call, and who drafts for them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from adaptive.contracts import Arm, PolicyDecided, TenantState
from adaptive.endpoint.errors import EndpointError
from adaptive.endpoint.tenants import Admission, TenantDirectory
from tests.unit.endpoint.records import account, policy


@pytest.fixture
def directory() -> TenantDirectory:
    """A directory of one active tenant, with a fixed chance."""
    made = TenantDirectory(random.Random(7))  # noqa: S311  a test's chance
    made.set_account("acme", account("acme", "first", "second"))
    return made


def refused(directory: TenantDirectory, authorization: str | None) -> EndpointError:
    """The error of a header."""
    with pytest.raises(EndpointError) as raised:
        directory.authenticate(authorization)
    return raised.value


@pytest.mark.parametrize("header", ["Bearer first", "bearer second", "BEARER  first "])
def test_every_key_of_a_tenant_names_it(directory: TenantDirectory, header: str) -> None:
    """The scheme is case-insensitive, as HTTP has it."""
    assert directory.authenticate(header).tenant == "acme"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic first", "first"])
def test_no_key_is_told_apart_from_a_wrong_one(directory: TenantDirectory, header: str | None) -> None:
    """The message shows the header to send."""
    error = refused(directory, header)
    assert (error.status, error.code) == (401, "missing_api_key")
    assert "Authorization: Bearer" in error.message


@pytest.mark.parametrize("key", ["third", "First", "first second", "f\u00fcrst", "a" * 10_000])
def test_an_unknown_key_is_refused_without_being_repeated(directory: TenantDirectory, key: str) -> None:
    """Keys end up in no log: the error does not hold it."""
    error = refused(directory, f"Bearer {key}")
    assert (error.status, error.code) == (401, "invalid_api_key")
    assert key not in error.message


def test_a_suspended_tenant_is_forbidden(directory: TenantDirectory) -> None:
    """Its key is known, so the answer is 403, and says who can help."""
    directory.set_account("acme", account("acme", "first", revision=2, state=TenantState.SUSPENDED))
    error = refused(directory, "Bearer first")
    assert (error.status, error.code) == (403, "tenant_suspended")
    assert "tenant acme is suspended: ask the operator" in error.message


def test_a_revoked_key_is_refused_at_once(directory: TenantDirectory) -> None:
    """The next revision of the account holds the keys that are left."""
    directory.set_account("acme", account("acme", "second", revision=2))
    assert refused(directory, "Bearer first").status == 401
    assert directory.authenticate("Bearer second").revision == 2


def test_an_older_revision_changes_nothing(directory: TenantDirectory) -> None:
    """A log that is read again from its start brings no revoked key back, not even for a moment."""
    directory.set_account("acme", account("acme", "second", revision=3))
    directory.set_account("acme", account("acme", "first", revision=2))
    assert refused(directory, "Bearer first").status == 401
    assert directory.authenticate("Bearer second").revision == 3


def test_a_removed_tenant_is_unknown(directory: TenantDirectory) -> None:
    """Account and keys are gone; removing it again is no error."""
    directory.set_account("acme", None)
    directory.set_account("acme", None)
    assert refused(directory, "Bearer first").status == 401
    assert directory.accounts() == {}


def test_accounts_are_a_copy(directory: TenantDirectory) -> None:
    """What is saved to disk is not changed while it is written."""
    accounts = directory.accounts()
    directory.set_account("other", account("other"))
    assert list(accounts) == ["acme"]


def arms(directory: TenantDirectory, count: int, decided: PolicyDecided, version: int) -> Counter[Arm]:
    """Arms of many requests."""
    directory.set_policy("acme", decided, version)
    return Counter(directory.admit("acme", None, None).arm for _ in range(count))


def test_shares_hold_over_many_requests(directory: TenantDirectory) -> None:
    """5 % control and 1 % without speculation, within five standard deviations of a fixed seed."""
    count = 20_000
    found = arms(directory, count, policy(control=0.05, off=0.01), 3)
    for arm, share in ((Arm.OFF, 0.01), (Arm.TURBO, 0.05), (Arm.ADAPTER, 0.94)):
        assert abs(found[arm] - share * count) < 5 * (share * (1 - share) * count) ** 0.5


@pytest.mark.parametrize(
    ("control", "off", "arm"),
    [(0.0, 0.0, Arm.ADAPTER), (1.0, 0.0, Arm.TURBO), (0.0, 1.0, Arm.OFF), (1.0, 1.0, Arm.OFF)],
)
def test_shares_of_nothing_and_all_are_exact(
    directory: TenantDirectory, control: float, off: float, arm: Arm
) -> None:
    """0 is never, 1 is always."""
    assert arms(directory, 2000, policy(control=control, off=off), 3) == {arm: 2000}


def test_turbo_serves_until_an_adapter_is_in_force(directory: TenantDirectory) -> None:
    """Without a policy, or with one whose adapter is not resident, requests run turbo, or off by share."""
    assert directory.admit("acme", None, None) == Admission(Arm.TURBO, 0, None)
    found = arms(directory, 4000, policy(off=0.25), 0)
    assert set(found) == {Arm.TURBO, Arm.OFF}
    assert abs(found[Arm.OFF] - 1000) < 150


def test_the_version_is_that_of_the_adapter_in_force(directory: TenantDirectory) -> None:
    """0 for every other arm; a policy that is gone takes its version along."""
    directory.set_policy("acme", policy(), 5)
    assert directory.admit("acme", None, None) == Admission(Arm.ADAPTER, 5, 4)
    assert directory.admit("acme", Arm.TURBO, None).version == 0
    assert directory.admit("other", None, None) == Admission(Arm.TURBO, 0, None)
    directory.set_policy("acme", None, 0)
    assert directory.admit("acme", None, None) == Admission(Arm.TURBO, 0, None)


@pytest.mark.parametrize(
    ("cap", "wish", "lookahead", "arm"),
    [
        (4, None, 4, Arm.ADAPTER),
        (4, 2, 2, Arm.ADAPTER),
        (2, 8, 2, Arm.ADAPTER),
        (4, 0, 0, Arm.OFF),
        (0, None, 0, Arm.OFF),
        (0, 3, 0, Arm.OFF),
    ],
)
def test_the_smaller_lookahead_wins_and_none_at_all_is_off(
    directory: TenantDirectory, cap: int, wish: int | None, lookahead: int, arm: Arm
) -> None:
    """A request may lower its policy's cap, never raise it."""
    directory.set_policy("acme", policy(max_lookahead=cap), 5)
    assert directory.admit("acme", None, wish) == Admission(arm, 5 if arm is Arm.ADAPTER else 0, lookahead)


def test_a_wish_holds_without_a_policy(directory: TenantDirectory) -> None:
    """The opt-out works from the first request on."""
    assert directory.admit("acme", None, 0).arm is Arm.OFF
    assert directory.admit("acme", None, 3) == Admission(Arm.TURBO, 0, 3)


def test_a_cold_adapter_is_asked_for_once_and_turbo_serves(directory: TenantDirectory) -> None:
    """A request that would draft with an adapter that is not resident wakes the agent, whoever forced it."""
    directory.set_policy("acme", policy(), 0)
    assert not directory.admit("acme", None, None).cold  # nothing to load
    directory.set_loadable(["acme", "other"])
    assert not directory.admit("acme", Arm.TURBO, None).cold
    assert not directory.cold_request.is_set()
    for forced in (None, Arm.ADAPTER):
        admission = directory.admit("acme", forced, None)
        assert (admission.arm, admission.version, admission.wanted) == (Arm.TURBO, 0, Arm.ADAPTER)
    assert directory.cold_request.is_set()
    assert directory.take_cold() == ["acme"]
    assert directory.take_cold() == []
    assert not directory.cold_request.is_set()
    directory.set_policy("acme", policy(), 5)
    assert directory.admit("acme", None, None) == Admission(Arm.ADAPTER, 5, 4)
    assert directory.take_cold() == []


@pytest.mark.parametrize("forced", Arm)
def test_a_forced_arm_wins_over_shares(directory: TenantDirectory, forced: Arm) -> None:
    """Probes measure the arm they ask for; without an adapter the adapter arm is turbo, and says so."""
    directory.set_policy("acme", policy(control=1.0, off=0.5), 5)
    assert {directory.admit("acme", forced, None).arm for _ in range(50)} == {forced}
    directory.set_policy("acme", policy(control=1.0), 0)
    expected = Arm.TURBO if forced is Arm.ADAPTER else forced
    assert directory.admit("acme", forced, None) == Admission(expected, 0, 4)
