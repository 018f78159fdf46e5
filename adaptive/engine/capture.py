"""From a request's segments to the log and the tensor store, off the engine's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from adaptive.engine.config import EngineConfig
    from adaptive.engine.recorder import Segment


class TracePublisher:
    """placeholder until collectors.publisher lands"""

    def __init__(self, config: EngineConfig, vllm_config: Any) -> None:
        self.segments: list[Segment] = []

    def publish(self, segment: Segment) -> None:
        self.segments.append(segment)

    def statistics(self) -> dict[str, int]:
        return {"published": len(self.segments)}

    def close(self) -> None:
        pass
