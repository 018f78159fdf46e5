"""kafka-python's group coordinator, mended where short polls made groups rebalance for ever."""

from __future__ import annotations

from typing import Any

from kafka.coordinator.base import MemberState
from kafka.coordinator.consumer import ConsumerCoordinator


class SteadyCoordinator(ConsumerCoordinator):  # type: ignore[misc]  # untyped
    """Takes up a join that was answered between two polls.

    kafka-python 3.0 sends a join on the background thread and, when the poll that began it is over, leaves it
    there. If the answer comes before the next poll, that poll throws it away and joins again, which makes
    every other member join again: two members that poll briefly never settle. Here the next poll takes the
    answer, as the Java client does. Meanwhile the heartbeat goes on, so a member that works for longer than
    its session keeps its place. tests/integration/collectors pins both.
    """

    _join_task: Any

    async def _do_join_and_sync_async(self) -> Any:
        assignment = await super()._do_join_and_sync_async()
        self._answered = self._generation
        with self._lock:
            self.state = MemberState.STABLE
            self._enable_heartbeat()
        return assignment

    async def join_group_async(self, timeout_ms: float | None = None) -> bool:
        """Complete an answered join, or drive a new one; as `BaseCoordinator.join_group_async`."""
        task = self._join_task
        if task is not None and task.is_done and task.succeeded():
            self._join_task = None
            generation = self._generation
            if generation is self._answered and self.stable():
                with self._lock:
                    self.rejoining = False
                    self.rejoin_needed = False
                await self._on_join_complete_async(
                    generation.generation_id, generation.member_id, generation.protocol, task.value
                )
                return True
        return bool(await super().join_group_async(timeout_ms=timeout_ms))


def steady(consumer: Any) -> None:
    """Give a new `KafkaConsumer` the mended coordinator, before it joins anything."""
    consumer._coordinator.__class__ = SteadyCoordinator  # noqa: SLF001  it takes no class


def rejoin(consumer: Any) -> None:
    """Have a consumer join its group again at its next poll."""
    consumer._coordinator.request_rejoin()  # noqa: SLF001  the consumer offers no such thing
