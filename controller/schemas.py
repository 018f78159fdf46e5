"""What the admin API takes and returns."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator
from pydantic_core import PydanticCustomError

from adaptive.contracts import TenantState
from controller.names import KeyScope

ItemT = TypeVar("ItemT")

TENANT_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"
Version = Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Quota = Annotated[StrictInt, Field(ge=0, le=2**53)]
"""0 admits nothing."""


class Request(BaseModel):
    """Base of request bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class TenantCreate(Request):
    """Body of POST /v1/tenants."""

    id: str = Field(pattern=TENANT_PATTERN)
    learn: StrictBool = False


class TenantPatch(Request):
    """Body of PATCH /v1/tenants/{id}; fields left out stay as they are."""

    learn: StrictBool | None = Field(
        None, description="Whether traces may leave the engine and train adapters."
    )
    share: StrictBool | None = Field(None, description="Whether traces may enter a shared turbo.")
    freeze: StrictBool | None = Field(None, description="True: train and publish nothing.")
    pin: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="Version that serves whatever the policy finds; 0 is turbo, null unpins."
    )
    max_lookahead: Annotated[StrictInt, Field(ge=0, le=64)] | None = None
    control_share: Share | None = None
    off_share: Share | None = None
    weight: Share | None = None
    state: TenantState | None = None
    retention_seconds: Annotated[float, Field(gt=0, le=1e11)] | None = Field(
        None, description="Most age of what is kept of its traffic; null: the service's."
    )
    retention_bytes: Annotated[StrictInt, Field(ge=0, le=2**53)] | None = Field(
        None, description="Most bytes kept of its traffic, in log and store each; null: the service's."
    )
    requests_per_minute: Quota | None = Field(None, description="Most requests admitted; null: no limit.")
    tokens_per_minute: Quota | None = Field(
        None, description="Most prompt and completion tokens used; null: no limit."
    )
    concurrent_requests: Quota | None = Field(None, description="Most requests in flight; null: no limit.")

    @field_validator(
        "learn",
        "share",
        "freeze",
        "max_lookahead",
        "control_share",
        "off_share",
        "weight",
        "state",
        mode="before",
    )
    @classmethod
    def _not_null(cls, value: object) -> object:
        if value is None:
            raise PydanticCustomError("null", "must not be null: leave the field out to keep its value")
        return value


class Promote(Request):
    """Body of POST /v1/tenants/{id}/promote."""

    version: Version


class KeyCreate(Request):
    """Body of POST /v1/tenants/{id}/keys; none: a key of the endpoint."""

    scope: KeyScope = Field(
        KeyScope.INFERENCE, description="inference opens the endpoint; tenant:read and tenant:write this API."
    )


class KeyRotate(Request):
    """Body of POST /v1/tenants/{id}/keys/{key}/rotate; none: the old key ends at once."""

    grace_seconds: Annotated[float, Field(ge=0, le=30 * 86_400)] = Field(
        0.0, description="How long the old key stays valid."
    )


class Page(BaseModel, Generic[ItemT]):
    """A list, in the shape of the OpenAI API."""

    object: Literal["list"] = "list"
    data: list[ItemT]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ErasureAnswer(BaseModel):
    """What a process said about its part of an erasure."""

    process: str
    done: bool
    waiting: str
    at: float
    removed: dict[str, int]


class ErasureState(BaseModel):
    """An erasure, as a job while it goes on and as the record of it afterwards."""

    id: str
    object: Literal["job"] = "job"
    kind: Literal["erase"] = "erase"
    tenant: str
    state: Literal["running", "done"]
    step: str
    waiting: str | None
    """What is away, or who has not answered; null while it goes on."""
    requested_by: str
    requested_at: float
    updated_at: float
    finished_at: float | None
    kafka_gone_by: float | None
    """By when Kafka's retention has removed the bytes (Unix seconds); null: the log removed them at once."""
    removed: dict[str, int]
    """Place -> how many the controller removed there."""
    retired: list[str]
    """Drafters taken out of use: tenant@version, or turbo and its sha256."""
    answers: list[ErasureAnswer]


class KeySummary(BaseModel):
    """A valid key without its secret."""

    id: str
    object: Literal["key"] = "key"
    prefix: str
    scope: KeyScope
    created_at: float
    expires_at: float | None
    """When a key that was rotated ends."""


class NewKey(KeySummary):
    """A key that was just made; `key` is never shown again, so a repeated request is answered with null."""

    key: str | None


class AuditState(BaseModel):
    """Who changed what."""

    id: str
    object: Literal["audit.entry"] = "audit.entry"
    at: float
    actor: str
    """`admin`, or the id of a tenant's key."""
    scope: str
    action: str
    """Method and route."""
    tenant: str | None
    request_id: str
    details: dict[str, Any]


class ArmState(BaseModel):
    """Counts of one arm and version over all engines since the tenant exists."""

    arm: str
    version: int
    requests: int
    verify_steps: int
    drafted: int
    accepted: int
    acceptance: float | None
    """accepted / drafted."""
    acceptance_per_position: list[float]
    """Share of verify steps whose first i+1 drafts were all accepted."""
    tau: float | None
    tokens: int
    engine_seconds: float
    tokens_per_engine_second: float | None


class LiftState(BaseModel):
    """Champion over turbo on concurrent control traffic, as ratios; see `controller.policy.Lift`."""

    tau: float
    tau_lower: float
    tau_upper: float
    goodput: float | None
    champion_tau: float
    control_tau: float
    champion_verify_steps: int
    control_verify_steps: int


class RefusalState(BaseModel):
    """A version or policy that an engine could not apply."""

    version: int | None
    engine: str | None
    reason: str


class PolicyAcknowledgement(BaseModel):
    """How far one engine is with a tenant's policy."""

    engine: str
    policy_version: int
    """Newest in force there; 0 is none."""
    current: bool
    alive: bool


class TenantSummary(BaseModel):
    """One tenant in a list."""

    id: str
    object: Literal["tenant"] = "tenant"
    created_at: float
    state: TenantState
    learn: bool
    share: bool
    freeze: bool
    pin: int | None
    champion: int | None
    """Version that serves; null is turbo."""
    policy_version: int
    revision: int
    generation: int
    """How many tenants of this name were erased before it."""
    retention_seconds: float | None
    retention_bytes: int | None
    requests_per_minute: int | None
    """Most requests the endpoint admits; null is no limit (the same for the two below)."""
    tokens_per_minute: int | None
    concurrent_requests: int | None


class TenantDetail(TenantSummary):
    """All that is known of a tenant."""

    weight: float
    """w on the adapter's delta, 0 to 1."""
    weights: dict[str, float]
    """Arm (`off`, `turbo`, `adapter@3`) -> share of requests the policy gives it."""
    arm_weights: dict[str, float]
    """Arm -> what discounted Hedge makes of its scores on traces, summing to 1; empty before the first."""
    lookahead: int
    control_share: float
    off_share: float
    champion_since: float
    tau: float | None
    """Acceptance length of what serves, since it serves."""
    acceptance: float | None
    """accepted / drafted of what serves, since it serves."""
    lift: LiftState | None
    arms: list[ArmState]
    engines: list[PolicyAcknowledgement]
    refusals: list[RefusalState]
    learning: dict[str, Any] | None
    """The learner's own status of this tenant; null where no learner has run."""


class VersionState(BaseModel):
    """One adapter version and what is known of it."""

    id: str
    object: Literal["drafter.version"] = "drafter.version"
    version: int
    status: str
    reason: str
    created_at: float
    received_at: float
    promoted_at: float | None
    uri: str
    sha256: str
    rank: int
    target_sha256: str
    turbo_sha256: str
    holdout_tau: dict[str, float]
    """Offline acceptance length of turbo, challenger and, where there was one, champion."""
    gain_lower: float
    gain_upper: float
    tokens_trained: int
    training_seconds: float
    mlflow_run_id: str


class VersionDetail(VersionState):
    """One adapter version with where it comes from: its run, its training data and whose they are."""

    tenant: str
    trace_first_offset: dict[int, int]
    """Log partition -> first offset of the training data, inclusive."""
    trace_last_offset: dict[int, int]
    """Log partition -> last offset, inclusive."""
    seed: int
    """With the offsets and the run it determines the adapter's bytes: `adaptive drafters rerun`."""
    derived_from: list[str]
    """Tenants whose data it was made with; empty: its own alone."""
    decisions: list[DecisionState]
    """What was decided about it, newest first, at most 20."""


class DecisionState(BaseModel):
    """One decision and why it was taken."""

    id: str
    object: Literal["decision"] = "decision"
    tenant: str
    decided_at: float
    kind: str
    actor: str
    version: int | None
    champion: int | None
    policy_version: int
    reason: str
    evidence: dict[str, Any]


class RolloutState(BaseModel):
    """A version on its way into service, or how that ended."""

    id: str
    """`tenant@version`."""
    object: Literal["rollout"] = "rollout"
    tenant: str
    version: int
    stage: str
    """`shadow`, `canary`, `champion` or `aborted`."""
    running: bool
    share: float
    """Of the tenant's requests, in the canary stage."""
    started_at: float
    stage_since: float
    reason: str
    """Why it is in this stage."""
    traces: int
    """Scored in shadow, on which it was compared with what served."""
    traces_wanted: int
    """Least of them before it is judged."""
    gain_lower: float | None
    """Relative gain in acceptance length in shadow, 95 % confidence sequence; null before two traces."""
    gain_upper: float | None
    evidence: dict[str, Any]
    """As canary: the newest comparison with what serves, as in LiftState."""


class SlowdownState(BaseModel):
    """How an engine's steps compare with its own past; see `controller.slowdown`."""

    ratio: float
    """Seconds of a step over the usual ones, control traffic included."""
    alert_since: float | None
    """Unix seconds since when it is slower than usual; null: it is not."""


class EngineState(BaseModel):
    """The newest report of one engine."""

    id: str
    object: Literal["engine"] = "engine"
    alive: bool
    started_at: float
    reported_at: float
    target_sha256: str
    turbo_sha256: str
    slots: list[dict[str, Any]]
    acknowledged: dict[str, int]
    refused: dict[str, str]
    swaps: int
    swap_pause_ms_max: float | None
    traces_published: int
    traces_dropped: int
    queue_depth: int
    slowdown: SlowdownState | None
    """Steps against the engine's own past; null where it does not report their seconds."""


class ContextPoint(BaseModel):
    """What happened at contexts of one bucket of lengths."""

    verify_steps: int
    tau: float | None


class SeriesPoint(BaseModel):
    """Counts of one arm within one step of time."""

    at: int
    """Unix seconds at which the step begins."""
    requests: int
    verify_steps: int
    drafted: int
    accepted: int
    tokens: int
    engine_seconds: float
    tau: float | None
    acceptance: float | None
    acceptance_per_position: list[float]
    """Share of verify steps whose first i+1 drafts were all accepted."""
    tokens_per_engine_second: float | None
    by_context: list[ContextPoint]
    """In the order of `context_buckets`; engines that do not count it send none."""


class ArmSeries(BaseModel):
    """One arm over time; steps in which it did nothing are left out."""

    arm: str
    version: int
    points: list[SeriesPoint]


class LiftPoint(BaseModel):
    """One adapter over turbo's concurrent control traffic, as ratios; null where one of both made no step."""

    at: int
    version: int
    tau: float | None
    goodput: float | None


class Series(BaseModel):
    """A tenant over time."""

    object: Literal["series"] = "series"
    tenant: str
    since: float
    until: float
    step: int
    """Seconds per point."""
    context_buckets: list[int | None]
    """Upper ends (exclusive) of the context lengths; null is open."""
    data: list[ArmSeries]
    lift: list[LiftPoint]


class LearnerState(BaseModel):
    """The learner's own status; see `learners.status`."""

    id: str
    object: Literal["learner"] = "learner"
    alive: bool
    """Whether it reported within the last minute."""
    state: str
    updated_at: float
    paused: bool
    updates_due: int
    lag_records: int
    """Trace records left to read, over all partitions."""
    behind_seconds: float
    waiting: int
    """Requests that wait for assembly."""
    restarts: int
    error: str | None
    training: dict[str, str]
    """Tenant -> what its update does, of those that are not idle."""
