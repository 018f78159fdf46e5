"""What the endpoint asks of the engine for one request, carried in `SamplingParams.extra_args`.

Only the endpoint writes these fields: whatever a client sends under the prefix is stripped.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from adaptive.contracts import Arm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm import SamplingParams

PREFIX: Final = "adaptive_"
MIN_P_EPSILON: Final = 1e-5
"""vLLM takes a smaller min_p for none."""


@dataclasses.dataclass(frozen=True, slots=True)
class RequestPlan:
    """Who drafts for a request and what is recorded of it."""

    tenant: str = ""
    arm: Arm = Arm.TURBO
    lookahead: int | None = None
    """Cap of every arm for this request; None: the engine's."""
    learn: bool = False
    share: bool = False
    features: bool = False
    prediction: list[int] = dataclasses.field(default_factory=list)
    """Token ids of the client's `prediction`, used as drafts where the answer follows it."""
    fixed: bool = False
    """Draft with `arm` up to its cap in every step, for measurements: no stop, no floor, no other arm."""
    ngram: bool = True
    """Whether the n-gram arm may draft for this request."""
    group: str = ""
    """Joins the requests that answer one client request (n > 1): their drafters are reported together."""
    generation: int = 0
    """Of the tenant's account."""
    canary: bool = False
    """Whether the tenant's challenger drafts instead of its champion."""

    def to_extra_args(self) -> dict[str, str | int | list[int]]:
        """The `extra_args` entries that carry the plan (scalars and lists of them, as vllm_xargs wants)."""
        entries: dict[str, str | int | list[int]] = {
            "tenant": self.tenant,
            "arm": self.arm.value,
            "learn": int(self.learn),
            "share": int(self.share),
            "features": int(self.features),
        }
        if self.lookahead is not None:
            entries["lookahead"] = self.lookahead
        if self.prediction:
            entries["prediction"] = self.prediction
        if self.group:
            entries["group"] = self.group
        if self.fixed:
            entries["fixed"] = 1
        if not self.ngram:
            entries["ngram"] = 0
        if self.generation:
            entries["generation"] = self.generation
        if self.canary:
            entries["canary"] = 1
        return {PREFIX + key: value for key, value in entries.items()}

    @classmethod
    def from_extra_args(cls, extra_args: Mapping[str, Any] | None) -> RequestPlan:
        """Read the plan; a request without one (an offline `LLM` call, say) drafts with turbo, uncaptured."""
        if not extra_args or PREFIX + "arm" not in extra_args:
            return cls()
        lookahead = extra_args.get(PREFIX + "lookahead")
        return cls(
            tenant=str(extra_args[PREFIX + "tenant"]),
            arm=Arm(extra_args[PREFIX + "arm"]),
            lookahead=int(lookahead) if lookahead is not None else None,
            learn=bool(extra_args.get(PREFIX + "learn", 0)),
            share=bool(extra_args.get(PREFIX + "share", 0)),
            features=bool(extra_args.get(PREFIX + "features", 0)),
            prediction=list(extra_args.get(PREFIX + "prediction", ())),
            fixed=bool(extra_args.get(PREFIX + "fixed", 0)),
            ngram=bool(extra_args.get(PREFIX + "ngram", 1)),
            group=str(extra_args.get(PREFIX + "group", "")),
            generation=int(extra_args.get(PREFIX + "generation", 0)),
            canary=bool(extra_args.get(PREFIX + "canary", 0)),
        )

    @classmethod
    def of(cls, params: SamplingParams | None) -> RequestPlan:
        """The plan of a request with these parameters: off where they cannot be applied to draft rows."""
        if params is None:
            return cls()
        plan = cls.from_extra_args(params.extra_args)
        if params.min_p > MIN_P_EPSILON or params.logit_bias:
            return dataclasses.replace(plan, arm=Arm.OFF, lookahead=0)
        return plan

    def capped_lookahead(self, cap: int) -> int:
        """Draft tokens to ask for in a verify step, at most `cap`; 0 for the off arm."""
        if self.arm is Arm.OFF:
            return 0
        return cap if self.lookahead is None else min(cap, self.lookahead)
