"""Whether a tenant's requests draft with its adapter or with turbo, by what either was seen to draft lately.

Only one of the two can draft for a request in a step, and which is better is a property of the tenant's
traffic of the moment, so it is learned per tenant: by the share of first drafts that the target confirmed,
known for every step whoever was chosen to draft in the end. Every 32nd step of a tenant asks the other one.
The adapter passed the learner's gate, so turbo has to be better beyond chance.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from typing import Final

ASK_OTHER: Final = 32
FEWEST: Final = 64
"""First drafts of each that must have been seen before turbo may take over."""
_DECAY: Final = 0.5 ** (1 / 1000)
_DEVIATIONS: Final = 2.0
_TENANTS: Final = 1024


@dataclasses.dataclass(slots=True)
class _Seen:
    drafts: float = 0.0
    confirmed: float = 0.0

    def add(self, confirmed: bool) -> None:
        self.drafts = self.drafts * _DECAY + 1
        self.confirmed = self.confirmed * _DECAY + confirmed

    @property
    def share(self) -> float:
        return self.confirmed / self.drafts

    @property
    def variance(self) -> float:
        # With one success and one failure added: a share of 0 or 1 is not certain.
        share = (self.confirmed + 1) / (self.drafts + 2)
        return share * (1 - share) / self.drafts


@dataclasses.dataclass(slots=True)
class _Tenant:
    version: int
    steps: int = 0
    adapter: _Seen = dataclasses.field(default_factory=_Seen)
    turbo: _Seen = dataclasses.field(default_factory=_Seen)

    @property
    def turbo_better(self) -> bool:
        adapter, turbo = self.adapter, self.turbo
        if min(adapter.drafts, turbo.drafts) < FEWEST:
            return False
        return turbo.share - adapter.share > _DEVIATIONS * math.sqrt(adapter.variance + turbo.variance)


class DrafterPreference:
    """What was seen of a bounded number of tenants; a new adapter version starts anew."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    def use_adapter(self, tenant: str, version: int) -> bool:
        """Who drafts for one request in the next step."""
        seen = self._of(tenant, version)
        seen.steps += 1
        return seen.turbo_better is (seen.steps % ASK_OTHER == 0)

    def observe(self, tenant: str, version: int, *, adapter: bool, confirmed: bool) -> None:
        """Note whether the target's next token was the first that was drafted."""
        seen = self._of(tenant, version)
        (seen.adapter if adapter else seen.turbo).add(confirmed)

    def forget(self, tenant: str) -> None:
        """Drop a tenant."""
        self._tenants.pop(tenant, None)

    def _of(self, tenant: str, version: int) -> _Tenant:
        seen = self._tenants.get(tenant)
        if seen is None or seen.version != version:
            # What turbo drafts does not depend on the adapter's version.
            seen = self._tenants[tenant] = _Tenant(version, turbo=seen.turbo if seen else _Seen())
            if len(self._tenants) > _TENANTS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(tenant)
        return seen
