"""What the endpoint learns about one client request while vLLM answers it."""

from __future__ import annotations

import contextvars
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from adaptive.contracts import Arm

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(slots=True)
class Exchange:
    """One client request and its answers (n > 1 and several prompts included)."""

    request_id: str
    tenant: str
    predicted: bool = False
    """Whether the client sent a `prediction`."""
    drafters: Sequence[dict[str, Any]] | None = None
    """Who really drafted, as the engine reports it; None as long as it has not."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    reported_tokens: int | None = None
    """`usage.total_tokens` of the response, where the client got one."""

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens used, also by a request that its client gave up."""
        if self.reported_tokens is not None:
            return self.reported_tokens
        return self.prompt_tokens + self.generated_tokens

    def metrics(self, *, details: bool) -> dict[str, Any] | None:
        """`metrics.adaptive` of the response; None while the engine has reported nothing.

        Args:
            details: also show accepted counts, which can leak prompts by timing.
        """
        if self.drafters is None:
            return None
        shown = ("arm", "version", "verify_steps", *(("drafted", "accepted") if details else ()))
        return {"drafters": [{name: row[name] for name in shown} for row in self.drafters]}

    def prediction_usage(self) -> dict[str, int]:
        """Tokens of the client's prediction that were drafted: accepted and rejected ones."""
        rows = [row for row in self.drafters or () if row["arm"] == Arm.PREDICTION]
        accepted = sum(row["accepted"] for row in rows)
        drafted = sum(row["drafted"] for row in rows)
        return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}


CURRENT: Final[contextvars.ContextVar[Exchange | None]] = contextvars.ContextVar(
    "adaptive_exchange", default=None
)
"""The request that the running task serves; vLLM's own tasks inherit it."""
