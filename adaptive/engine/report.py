"""Who really drafted for a request, summed by the scheduler and sent to the API server when it ends.

vLLM carries one free dictionary from the scheduler to `RequestOutput`: `kv_transfer_params`, unused without a
KV connector (and one is refused together with this plugin's scheduler, which owns the field).
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from adaptive.engine.drafts import Source

KEY: Final = "adaptive"
"""Entry of `RequestOutput.kv_transfer_params`: a list of {"arm", "version", "verify_steps", "drafted",
"accepted"}, in the order in which the drafters first drafted."""
ENDED_GROUPS: Final = 256


@dataclasses.dataclass(slots=True)
class _Drafters:
    """Sums of one client request."""

    requests: int = 0
    """Requests of the group in flight."""
    sums: dict[Source, list[int]] = dataclasses.field(default_factory=dict)
    """Verify steps, drafted, accepted."""


class DraftersReport:
    """Sums per client request; requests of one group (n > 1) share their sums."""

    def __init__(self) -> None:
        self._groups: dict[str, _Drafters] = {}
        self._group_of: dict[str, str] = {}
        # A short answer may end before its siblings have arrived.
        self._ended: OrderedDict[str, _Drafters] = OrderedDict()

    def begin(self, request_id: str, group: str) -> None:
        """A request arrived; `group` may be empty."""
        key = group or request_id
        self._group_of[request_id] = key
        if key not in self._groups:
            self._groups[key] = self._ended.pop(key) if key in self._ended else _Drafters()
        self._groups[key].requests += 1

    def verified(self, request_id: str, source: Source, drafted: int, accepted: int) -> None:
        """Count a verify step."""
        sums = self._groups[self._group_of[request_id]].sums.setdefault(source, [0, 0, 0])
        sums[0] += 1
        sums[1] += drafted
        sums[2] += accepted

    def of(self, request_id: str) -> dict[str, Any]:
        """The sums so far, as plain values under `KEY`."""
        found = self._groups[self._group_of[request_id]]
        return {
            KEY: [
                {
                    "arm": arm.value,
                    "version": version,
                    "verify_steps": sums[0],
                    "drafted": sums[1],
                    "accepted": sums[2],
                }
                for (arm, version), sums in found.sums.items()
            ]
        }

    def end(self, request_id: str) -> None:
        """Forget a request; a group's sums are kept a while for siblings that have not arrived."""
        key = self._group_of.pop(request_id, None)
        if key is None:
            return
        group = self._groups[key]
        group.requests -= 1
        if group.requests == 0:
            del self._groups[key]
            if key != request_id:
                self._ended[key] = group
                if len(self._ended) > ENDED_GROUPS:
                    self._ended.popitem(last=False)
