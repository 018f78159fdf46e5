"""What a learner remembers about requests and updates; plain structs that the ledger stores."""

from __future__ import annotations

import enum

import msgspec

from adaptive.contracts import AdapterReference, Arm, HoldoutScore


class RequestState(enum.StrEnum):
    """Where a traced request stands."""

    OPEN = "open"
    """Not all of its segments have arrived."""
    READY = "ready"
    """Assembled and stored for replay."""
    LEFT_OUT = "left_out"
    """Counted, never trained on; the ledger says why."""
    EVICTED = "evicted"
    """Was ready, and made room for newer traffic."""


class UpdateState(enum.StrEnum):
    """How far an update has come; each state is durable before the next one begins."""

    TRAINING = "training"
    EVALUATED = "evaluated"
    PUBLISHED = "published"
    REFUSED = "refused"
    ABANDONED = "abandoned"
    """Learning was switched off, or target or turbo changed, before it ended."""


FINISHED_STATES = frozenset({UpdateState.PUBLISHED, UpdateState.REFUSED, UpdateState.ABANDONED})


class StoredRequest(msgspec.Struct, frozen=True):
    """One request of the replay, without its tensors."""

    number: int
    """Order of arrival in this ledger, over all tenants."""
    tenant: str
    request_id: str
    rows: int
    """Prompt and answer tokens: what it takes on disk."""
    tokens: int
    """Answer tokens."""
    digest: str
    """sha256 (hex) of its token ids."""
    created_at: float
    partition: int
    first_offset: int
    last_offset: int
    trained: bool
    """Whether any update has trained on it, finished or not."""


class Observation(msgspec.Struct, frozen=True):
    """How one drafter did on one trace while serving, as the engine reported it."""

    number: int
    """Order of arrival in this ledger, over all tenants."""
    tenant: str
    created_at: float
    arm: Arm
    version: int
    verify_steps: int
    drafted: int
    accepted: int


class UpdatePlan(msgspec.Struct, frozen=True):
    """Everything that determines an update's result, fixed before its first step."""

    tenant: str
    ordinal: int
    """Counts a tenant's updates from 1, refused ones too."""
    version: int
    """The version the challenger gets if it is published."""
    seed: int
    training: tuple[int, ...]
    """Request numbers, oldest first."""
    fresh: tuple[int, ...]
    """Those of `training` that no earlier update trained on."""
    holdout: tuple[int, ...]
    warm_start: AdapterReference | None
    tokens: int
    """Distinct answer tokens in `training`."""
    token_steps: int
    """Answer tokens to process."""
    batch_tokens: int
    learning_rate: float
    rank: int
    unroll_depth: int
    precision: str
    """bfloat16 (autocast) or float32."""
    target_sha256: str
    turbo_sha256: str
    traces_until: float
    """created_at of the newest trace it trains on (Unix seconds)."""
    first_offset: dict[int, int]
    last_offset: dict[int, int]
    objective: str = "kl"
    """Of `adaptive.speculator.objective.Objective`."""
    rejected_weight: float = 0.0
    """How much more positions count whose draft was rejected while serving."""
    judged: tuple[int, ...] = ()
    """Those of `holdout` that an earlier challenger was judged by: evidence that is spent."""

    @property
    def fresh_evidence(self) -> float:
        """Share of the hold-out that the gate has not looked at yet."""
        return 1.0 - len(self.judged) / len(self.holdout) if self.holdout else 0.0


class UpdateReport(msgspec.Struct, frozen=True):
    """The outcome of an update, published or refused: what MLflow shows and the ledger keeps."""

    plan: UpdatePlan
    publish: bool
    reason: str
    turbo: HoldoutScore
    champion: HoldoutScore | None
    challenger: HoldoutScore
    champion_version: int
    gain_estimate: float
    gain_lower: float
    gain_upper: float
    losses: list[float]
    """Training loss (nats) of each step."""
    steps: int
    training_seconds: float
    evaluation_seconds: float
    evaluated_at: float
    adapter_sha256: str
    peak_bytes: int = 0
    """Most memory the learner held while it trained, the loaded models included; 0: not known."""


class Update(msgspec.Struct, frozen=True):
    """An update as the ledger keeps it."""

    update_id: int
    state: UpdateState
    plan: UpdatePlan
    report: UpdateReport | None = None
    run_id: str = ""


class TenantCounters(msgspec.Struct, frozen=True):
    """Totals of one tenant since the ledger began."""

    tenant: str
    requests: int = 0
    """Assembled and stored."""
    tokens: int = 0
    """Answer tokens of those requests."""
    tokens_at_update: int = 0
    """`tokens` when the newest update was planned."""
    left_out: dict[str, int] = {}
    """Requests or traces left out, by reason."""
    last_update: int = 0
    """Id of the newest update, 0 if there was none."""

    @property
    def tokens_since_update(self) -> int:
        """Answer tokens that arrived since the newest update was planned."""
        return self.tokens - self.tokens_at_update
