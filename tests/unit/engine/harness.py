"""An engine state without the engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm import SamplingParams

from adaptive.contracts import Arm, ArmCounters
from adaptive.engine import calibration
from adaptive.engine.adapters import AdapterBuffers
from adaptive.engine.choice import DraftChoice
from adaptive.engine.config import EngineConfig
from adaptive.engine.cost import CostModel
from adaptive.engine.ngram import NgramDrafter
from adaptive.engine.request import RequestPlan
from adaptive.engine.speculation import Speculation
from adaptive.engine.state import EngineState
from tests.unit.engine.conftest import RANK, TARGET, TURBO

if TYPE_CHECKING:
    from adaptive.engine.recorder import Segment
    from adaptive.speculator.config import SpeculatorConfig
    from tests.unit.engine.conftest import AdapterFiles

SLOTS = 3
LOOKAHEAD = 4
PRIORS = Path(calibration.__file__).with_name("priors.json")
EOS = 2


class Publisher:
    """Keeps what it is given."""

    most_row_bytes = 1 << 20

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.takes_requests = True
        self.takes_features = True

    def take_request(self) -> bool:
        """As it was told."""
        return self.takes_requests

    def take_features(self) -> bool:
        """As it was told."""
        return self.takes_features

    def publish(self, segment: Segment) -> None:
        """Keep one segment."""
        self.segments.append(segment)

    def drop_tenant(self, tenant: str) -> int:
        """Drop what was published of a tenant, as if it still waited in the queue."""
        kept = [segment for segment in self.segments if segment.record.tenant != tenant]
        dropped, self.segments = len(self.segments) - len(kept), kept
        return dropped

    def statistics(self) -> dict[str, Any]:
        """As the real one's."""
        return {"published": len(self.segments)}


def costs(token_seconds: float = 0.001) -> CostModel:
    """A step takes 0.1 s and `token_seconds` a token more; the first pass 0.01 s, each later one 0.005 s."""
    return CostModel(
        {1: 0.1, 101: 0.1 + 100 * token_seconds}, {1: 0.01, 100: 0.01}, {1: 0.005, 100: 0.005}, 1e-9
    )


def speculation(config: EngineConfig, most: int = LOOKAHEAD, token_seconds: float = 0.001) -> Speculation:
    """What decides in an engine with these costs."""
    choice = DraftChoice(NgramDrafter(), calibration.Calibration(calibration.Priors.load(PRIORS)))
    return Speculation(config, most, costs(token_seconds), choice)


class Harness:
    """An engine state, its publisher and the files it is given."""

    def __init__(self, speculator: SpeculatorConfig, adapter_file: AdapterFiles) -> None:
        config = EngineConfig(
            slots=SLOTS,
            rank=RANK,
            lookahead=LOOKAHEAD,
            target_sha256=TARGET,
            turbo_sha256=TURBO,
            tokenizer_sha256="tokenizer",
            feature_layers=(1, 2, 3),
        )
        shapes = {
            "q_proj": (16, 8),
            "o_proj": (8, 8),
            "gate_proj": (8, 12),
            "up_proj": (8, 12),
            "down_proj": (12, 8),
        }
        self.buffers = AdapterBuffers(shapes, SLOTS, RANK, torch.float32)
        self.publisher = Publisher()
        self.state = EngineState(config, self.buffers, speculator, speculation(config), self.publisher)  # type: ignore[arg-type]  # a stub
        self._adapter_file = adapter_file

    def begin(
        self,
        request_id: str,
        tenant: str = "acme",
        arm: Arm = Arm.ADAPTER,
        *,
        plan: RequestPlan | None = None,
        **sampling: Any,
    ) -> None:
        """Admit a request with a prompt of three tokens."""
        plan = plan or RequestPlan(tenant=tenant, arm=arm)
        params = SamplingParams(extra_args=plan.to_extra_args(), **sampling)
        params.update_from_generation_config({}, EOS)
        self.state.begin(request_id, [5, 6, 7], params)

    def stage(self, tenant: str, version: int) -> None:
        """Stage a valid file and wait until it is read."""
        self.state.staged.stage(tenant, version, str(self._adapter_file(tenant, version)))
        deadline = time.monotonic() + 10
        while self.state.staged.state(tenant, version)[0] == "loading":
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def put(self, tenant: str, version: int, weight: float = 1.0, *, move: bool = False) -> int:
        """Stage and commit; the slot."""
        self.stage(tenant, version)
        slot: int = self.state.commit(tenant, version, weight, move=move)["slot"]
        return slot

    def row(self, slot: int) -> float:
        """The value a slot's row is filled with (its version)."""
        return self.buffers.get_buffer("o_proj_a")[slot, 0, 0].item()

    def placed(self, request_id: str) -> tuple[Arm, int, int]:
        """Arm, slot and version of a request."""
        request = self.state.requests[request_id]
        return request.arm, request.slot, request.version

    def step(self, request_id: str, drafted: list[int], emitted: list[int], seconds: float = 0.5) -> None:
        """One engine step of a request."""
        request = self.state.requests[request_id]
        self.state.record(request, drafted, emitted, request.drafted_by, request.confidences, seconds)

    def counted(self, tenant: str, arm: Arm, version: int) -> ArmCounters:
        """Totals."""
        return self.state.counters.of(tenant, arm, version)
