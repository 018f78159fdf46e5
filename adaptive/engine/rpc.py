"""The RPC methods that the endpoint's agent calls, the same on every worker.

vLLM runs RPCs between two steps, so whatever a method does is atomic for the requests in flight; methods that
take time (reading a file) only start work in the background.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from adaptive.engine.slots import NoFreeSlotError
from adaptive.speculator.adapter import AdapterError

if TYPE_CHECKING:
    from adaptive.engine.state import EngineState


class AdapterRpc:
    """Staging, commits, policy and reports of one engine process."""

    model_runner: Any

    # -- RPC methods, called between two steps -------------------------------------------------------------

    @property
    def _state(self) -> EngineState:
        assert self.model_runner.state is not None, "the engine is still warming up"
        return self.model_runner.state

    def stage_adapter(self, tenant: str, version: int, path: str) -> None:
        """Start reading and checking an adapter file in the background."""
        self._state.staged.stage(tenant, version, path)

    def staged_adapter(self, tenant: str, version: int) -> tuple[str, str]:
        """("absent" | "loading" | "ready" | "refused", why)."""
        return self._state.staged.state(tenant, version)

    def unstage_adapter(self, tenant: str) -> None:
        """Drop what is staged for a tenant."""
        self._state.staged.forget(tenant)

    def placeable(self, tenant: str) -> bool:
        """Whether a commit for this tenant would find a slot now."""
        return self._state.slots.placeable(tenant)

    def commit_adapter(
        self,
        tenant: str,
        version: int,
        weight: float,
        move: bool = False,
        evict: bool = True,
        canary: bool = False,
    ) -> dict[str, Any]:
        """Put a staged adapter in service, or on trial beside the champion.

        Returns:
            {"slot", "pause_ms", "evicted"}, or {"error", "retry"} with the engine unchanged; "retry" tells
            whether the same call may succeed later.
        """
        try:
            return self._state.commit(tenant, version, weight, move=move, evict=evict, canary=canary)
        except (AdapterError, NoFreeSlotError) as error:
            return {"error": str(error), "retry": isinstance(error, NoFreeSlotError)}

    def retire_adapter(self, tenant: str, move: bool = False, canary: bool = False) -> None:
        """Send a tenant back to turbo, or end the trial of its challenger."""
        self._state.retire(tenant, move=move, canary=canary)

    def set_policy(self, tenant: str, weight: float, canary: bool = False) -> None:
        """Change the weight of a tenant's resident adapter."""
        self._state.set_weight(tenant, weight, canary=canary)

    def set_consent(self, tenant: str, learn: bool, share: bool) -> int:
        """Follow a tenant's consent, for requests in flight too; returns the records dropped."""
        return self._state.set_consent(tenant, learn=learn, share=share)

    def forget_tenant(self, tenant: str, generation: int) -> dict[str, int]:
        """Drop everything of a tenant erased up to a generation; returns what that was, by kind."""
        return self._state.forget_tenant(tenant, generation)

    def flush_traces(self, timeout: float) -> bool:
        """Wait until finished requests' traces are in the log; blocks the engine, for tests and shutdown."""
        publisher = self._state.publisher
        return publisher is None or publisher.flush(timeout)

    def adapter_info(self) -> dict[str, Any]:
        """Slots, counters, swap pauses and capture statistics."""
        return self._state.info()

    def adapter_weights_finite(self) -> bool:
        """Whether every resident adapter value is finite (a check for operators and tests)."""
        return all(bool(torch.isfinite(buffer).all()) for buffer in self._state.buffers.buffers())
