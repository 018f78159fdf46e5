"""Messages exchanged between the processes of the service.

Read this file first: everything that crosses a process boundary is one of the structs below, packed with
msgspec msgpack and carried by a topic of the log (Kafka or the embedded SQLite log). Tensors never travel
inline: a trace refers to its features by claim check (`FeatureReference`).

Schema rules: a field is only ever added, at the end and with a default; a type is never changed. Golden
bytes of every released version are tests (tests/unit/test_contracts.py).
"""

from __future__ import annotations

import enum
from typing import Final, TypeVar

import msgspec

SCHEMA_VERSION: Final = 1

TOPIC_TRACE_RECORDED: Final = "adaptive.trace.recorded.v1"
"""TraceRecord, key = tenant."""
TOPIC_ENGINE_TELEMETRY: Final = "adaptive.engine.telemetry.v1"
"""EngineTelemetry, key = engine id."""
TOPIC_ARM_SCORED: Final = "adaptive.arm.scored.v1"
"""ArmScored, key = tenant; written by learners."""
TOPIC_DRAFTER_PUBLISHED: Final = "adaptive.drafter.published.v1"
"""DrafterPublished, key = tenant, compacted; read by the controller, and by learners to number versions."""
TOPIC_POLICY_DECIDED: Final = "adaptive.policy.decided.v1"
"""PolicyDecided, key = tenant, compacted; the only thing engines obey."""
TOPIC_TENANT_CHANGED: Final = "adaptive.tenant.changed.v1"
"""TenantChanged, key = tenant, compacted; written by the controller only."""
TOPIC_TENANT_ERASED: Final = "adaptive.tenant.erased.v1"
"""TenantErased, key = tenant, compacted; written by the controller only."""
TOPIC_ERASURE_ACKNOWLEDGED: Final = "adaptive.erasure.acknowledged.v1"
"""ErasureAcknowledged, key = tenant; read by the controller only."""
COMPACTED_TOPICS: Final = frozenset(
    {TOPIC_DRAFTER_PUBLISHED, TOPIC_POLICY_DECIDED, TOPIC_TENANT_CHANGED, TOPIC_TENANT_ERASED}
)
TOPICS: Final = (
    frozenset({TOPIC_TRACE_RECORDED, TOPIC_ENGINE_TELEMETRY, TOPIC_ARM_SCORED, TOPIC_ERASURE_ACKNOWLEDGED})
    | COMPACTED_TOPICS
)
DEAD_LETTER_SUFFIX: Final = ".dlq"


class Arm(enum.StrEnum):
    """What can draft for a request."""

    OFF = "off"
    TURBO = "turbo"
    ADAPTER = "adapter"
    NGRAM = "ngram"
    """Continuations of the same text in the request, or in the tenant's own earlier traffic."""
    PREDICTION = "prediction"
    """The client's `prediction` text (OpenAI's Predicted Outputs)."""


CONTEXT_BUCKETS: Final = (1024, 4096, 16384)
"""Upper ends (exclusive) of the context lengths that tau is counted by; the last bucket is open."""


class TenantState(enum.StrEnum):
    """Whether a tenant's requests are served."""

    ACTIVE = "active"
    SUSPENDED = "suspended"


class SamplingSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sampling parameters that shape the target's distribution for a request."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 means all tokens."""
    seed: int | None = None
    max_tokens: int | None = None


class VerifyStep(msgspec.Struct, frozen=True, array_like=True):
    """One target forward that accepted a prefix of the drafts and added one token.

    `drafted[:accepted]` were accepted, `drafted[accepted:]` rejected. The tokens the step emitted are
    `output_ids[output_offset : output_offset + accepted + 1]` of the record, fewer where the request
    ended inside the step.
    """

    arm: Arm
    """Arm that made these drafts; `off` where nothing was drafted."""
    version: int
    """Adapter version, 0 for turbo and off."""
    output_offset: int
    """Index in the record's `output_ids` of the first token this step emitted."""
    drafted: list[int]
    """Draft token ids in draft order, at most the lookahead."""
    accepted: int
    confidences: list[float]
    """Top log-odds of the draft distribution at each drafted position (never the sampled token's: that would
    bias what a decision based on it emits)."""


class FeatureReference(msgspec.Struct, frozen=True, omit_defaults=True):
    """Claim check of the features of one trace record, kept in the tensor store.

    The object is a safetensors file with two bfloat16 or float32 tensors: `features`
    [object_rows, len(feature_layers) * hidden] (the residual stream entering each of `feature_layers`,
    concatenated in that order) and `last_hidden` [object_rows, hidden] (after the final norm). Traces of one
    tenant share objects: this one's are the `rows` rows from `first_row` on, and row `first_row + i` belongs
    to position `feature_start + i` of prompt plus output of the request.
    """

    uri: str
    sha256: str
    feature_start: int
    rows: int
    dtype: str
    bytes: int
    """Of the whole object."""
    feature_layers: tuple[int, ...]
    hidden_size: int
    first_row: int = 0
    object_rows: int = 0
    """Rows of the whole object; 0: it holds this trace's alone."""


class TraceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened in at most 256 verify steps of one request."""

    trace_id: str
    """`<request_id>:<segment>`; consumers deduplicate by it."""
    tenant: str
    request_id: str
    segment: int
    created_at: float
    """Unix seconds."""
    target_sha256: str
    turbo_sha256: str
    tokenizer_sha256: str
    prompt_ids: list[int]
    """Only in segment 0, else empty."""
    prompt_length: int
    output_start: int
    """Index of `output_ids[0]` in the request's whole output."""
    output_ids: list[int]
    steps: list[VerifyStep]
    sampling: SamplingSummary
    finished: bool
    """True in the last segment of the request."""
    features: FeatureReference | None = None
    share: bool = False
    """Whether the tenant consented to this trace entering a shared turbo."""
    schema_version: int = SCHEMA_VERSION
    generation: int = 0
    """The account's (`TenantChanged.generation`) when the request was admitted."""


class AdapterReference(msgspec.Struct, frozen=True):
    """Names one immutable adapter version."""

    tenant: str
    version: int
    """Counts up from 1 per tenant."""
    uri: str
    """Of the safetensors file (fsspec URL)."""
    sha256: str
    target_sha256: str
    turbo_sha256: str
    rank: int


class HoldoutScore(msgspec.Struct, frozen=True, omit_defaults=True):
    """One drafter's offline score on the newest hold-out, walked as a server would."""

    tau: float
    acceptance_per_position: list[float]
    """Joint: share of verify steps whose first i+1 drafts were all accepted."""
    verify_steps: int
    requests: int


class ArmScore(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an arm does, or would have done, with the verified tokens of a trace, walked as a server would."""

    arm: Arm
    version: int
    """Adapter version, 0 for turbo."""
    verify_steps: int
    drafted: int
    accepted: int
    accepted_per_position: list[int] = msgspec.field(default_factory=list)
    """Joint: verify steps whose first i+1 drafts were all accepted."""


class ArmScored(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every arm's score on one trace: full information for the weights over arms, whichever one drafted."""

    tenant: str
    trace_id: str
    """Consumers deduplicate by it."""
    scored_at: float
    """Unix seconds."""
    target_sha256: str
    turbo_sha256: str
    context_length: int
    """Tokens before the first one scored."""
    lookahead: int
    """Draft tokens asked for in every step of the walks."""
    scores: list[ArmScore]
    generation: int = 0
    """The trace's."""
    schema_version: int = SCHEMA_VERSION


class DrafterPublished(msgspec.Struct, frozen=True, omit_defaults=True):
    """A challenger passed the learner's gate."""

    adapter: AdapterReference
    created_at: float
    turbo: HoldoutScore
    challenger: HoldoutScore
    champion: HoldoutScore | None
    gain_lower: float
    """Lower end of the two-sided 95 % interval of the relative gain over what serves."""
    gain_upper: float
    tokens_trained: int
    """Distinct answer tokens in the training set of this version."""
    training_seconds: float
    mlflow_run_id: str
    trace_first_offset: dict[int, int]
    """Per log partition: first offset of the training data, inclusive."""
    trace_last_offset: dict[int, int]
    """Per log partition: last offset of the training data, inclusive."""
    seed: int = 0
    schema_version: int = SCHEMA_VERSION
    derived_from: list[str] = msgspec.field(default_factory=list)
    """Every tenant whose traces went into this version, through warm starts and turbo too; empty where an
    older learner did not say: then the adapter's own tenant alone."""


class PolicyDecided(msgspec.Struct, frozen=True, omit_defaults=True):
    """What engines must do for a tenant from now on."""

    tenant: str
    policy_version: int
    """Counts up per tenant; engines ignore older ones and acknowledge in telemetry."""
    champion: AdapterReference | None
    """None: turbo serves."""
    weight: float
    """w in [0, 1] on the adapter's delta."""
    max_lookahead: int
    control_share: float
    """Share of requests that always run turbo, so that lift is measured live."""
    off_share: float
    """Share of requests that run without speculation."""
    reason: str
    decided_at: float
    schema_version: int = SCHEMA_VERSION
    challenger: AdapterReference | None = None
    """Version that a share of the requests tries out, beside the champion; None: there is no canary."""
    canary_share: float = 0.0
    """Share of requests that draft with the challenger."""


class TenantChanged(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tenant's account as endpoints and learners need it."""

    tenant: str
    revision: int
    state: TenantState
    key_hashes: list[str]
    """SHA-256 (hex) of every valid key."""
    learn: bool
    """Whether traces may leave the engine process."""
    share: bool
    freeze: bool
    """True: learners keep the traces but train and publish nothing."""
    changed_at: float
    schema_version: int = SCHEMA_VERSION
    generation: int = 0
    """Counts up whenever a tenant of this name is created again after an erasure."""
    retention_seconds: float | None = None
    """Most age of what is kept of the tenant's traffic; None: the service's (`Settings.retention_days`)."""
    retention_bytes: int | None = None
    """Most bytes kept of the tenant's traffic, in the log and in the store each; None: the service's."""
    requests_per_minute: int | None = None
    """Most requests the endpoint admits; None: no limit (the same for the two below)."""
    tokens_per_minute: int | None = None
    """Most prompt and completion tokens, counted when a request ends."""
    concurrent_requests: int | None = None
    """Most requests in flight."""


class Watermark(msgspec.Struct, frozen=True):
    """A place in a partition: everything below `offset` is meant."""

    topic: str
    partition: int
    offset: int


class TenantErased(msgspec.Struct, frozen=True, omit_defaults=True):
    """All data of a tenant is to be removed; until its bytes are gone, whoever reads the log leaves it out.

    A record of the tenant is erased if it lies below a watermark, or if it states a generation that is not
    above `generation`: an engine that was cut off may append old traces later. An erasure is announced at
    once, and again, `sealed` and with the watermarks raised, when everybody who held data acknowledged it.
    """

    tenant: str
    erasure_id: str
    """Of the controller's job."""
    generation: int
    """The newest generation erased; a new tenant of this name gets the next one."""
    erased_at: float
    """Unix seconds."""
    watermarks: list[Watermark]
    """Of every topic that may hold data of the tenant, dead letters included."""
    kafka_gone_by: float | None = None
    """Unix seconds at which Kafka's retention has removed the bytes; None: the log removes them at once."""
    sealed: bool = False
    last_version: int = 0
    """Newest adapter version of the tenant; numbers up to it are never given again."""
    policy_version: int = 0
    """Newest policy of the tenant; a new tenant of this name counts on from it."""
    revision: int = 0
    """Newest account of the tenant; a new tenant of this name counts on from it."""
    retired: list[AdapterReference] = msgspec.field(default_factory=list)
    """Other tenants' versions that were derived from the tenant's data."""
    schema_version: int = SCHEMA_VERSION


class RemovedItems(msgspec.Struct, frozen=True):
    """What was removed from one place."""

    place: str
    count: int


class ErasureAcknowledged(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that held data of an erased tenant says what became of it."""

    tenant: str
    erasure_id: str
    process: str
    """`learner`, or `engine ` and the engine's id."""
    acknowledged_at: float
    done: bool
    """False: something is still there, `waiting` says why; another message follows."""
    removed: list[RemovedItems] = msgspec.field(default_factory=list)
    retired: list[str] = msgspec.field(default_factory=list)
    """Names of the drafters taken out of use: tenant@version, or turbo and its sha256."""
    waiting: str = ""
    schema_version: int = SCHEMA_VERSION


class ArmCounters(msgspec.Struct, omit_defaults=True):
    """Totals since the engine started, for one tenant, arm and version."""

    tenant: str
    arm: Arm
    version: int
    requests: int = 0
    verify_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = msgspec.field(default_factory=list)
    emitted: int = 0
    """Output tokens."""
    engine_seconds: float = 0.0
    """Time of the steps this arm's rows took part in, split evenly between the rows of a step."""
    early_stops: int = 0
    """Verify steps with fewer drafts than the arm might have made, because the next did not pay."""
    lookahead_chosen: list[int] = msgspec.field(default_factory=list)
    """Steps by the number of drafts they verified, from 0 up."""
    verify_steps_by_context: list[int] = msgspec.field(default_factory=list)
    """Per bucket of CONTEXT_BUCKETS, by the context length at the step's start."""
    accepted_by_context: list[int] = msgspec.field(default_factory=list)


class SlotState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row of the adapter buffers."""

    slot: int
    tenant: str
    version: int
    weight: float
    requests: int
    """In-flight requests that draft with it."""
    canary: bool = False
    """Whether it is the tenant's challenger on trial."""


class SlotUsage(msgspec.Struct, omit_defaults=True):
    """How one tenant's adapter came and went in an engine, totals since it started."""

    tenant: str
    hits: int = 0
    """Requests that found the adapter resident."""
    misses: int = 0
    """Requests that turbo served because it was not."""
    evictions: int = 0
    """Times another tenant took its slot."""
    loads: int = 0
    """Times it was written into a slot, new versions included."""


class EngineTelemetry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A periodic report of one engine."""

    engine_id: str
    started_at: float
    reported_at: float
    target_sha256: str
    turbo_sha256: str
    counters: list[ArmCounters]
    slots: list[SlotState]
    acknowledged: dict[str, int]
    """Tenant -> newest policy_version in force."""
    refused: dict[str, str]
    """Tenant -> why its newest policy could not be applied."""
    swap_pause_ms: list[float]
    """Pauses of every commit since the start, newest last, at most 1,000."""
    traces_published: int = 0
    traces_dropped: int = 0
    queue_depth: int = 0
    schema_version: int = SCHEMA_VERSION
    refused_policies: dict[str, int] = msgspec.field(default_factory=dict)
    """Tenant -> policy_version that `refused` is about, so that it is never held against a newer one."""
    calibration_error: dict[str, float] = msgspec.field(default_factory=dict)
    """Tenant -> expected calibration error of the acceptance probabilities that its decisions used."""
    steps: int = 0
    """Engine steps that decoded at least one request which may speculate."""
    floor_steps: int = 0
    """Of `steps`, those in which the load floor had speculation off."""
    slot_usage: list[SlotUsage] = msgspec.field(default_factory=list)
    """Every tenant that asked for an adapter, resident or not."""
    queue_bytes: int = 0
    """Of the traces that wait for the log, features included."""
    dropped_bytes: int = 0
    """Of the traces lost."""
    feature_bytes: int = 0
    """Of the feature objects written to the tensor store."""
    features_lost: int = 0
    """Traces that went without the features they were to have."""
    trace_rate: float = 1.0
    """Share of the requests that may be recorded which are: below 1 where the capture budget binds."""
    feature_rate: float = 1.0
    """Share of the recorded requests chosen for features whose features are kept."""
    target_seconds: dict[int, float] = msgspec.field(default_factory=dict)
    """Scheduled tokens -> seconds of a target step over them at the machine's present speed, as learned from
    every step measured; independent of the load."""
    draft_pass_seconds: dict[int, float] = msgspec.field(default_factory=dict)
    """Requests in a step -> seconds of one pass of the drafter over them."""


Message = (
    TraceRecord
    | EngineTelemetry
    | ArmScored
    | DrafterPublished
    | PolicyDecided
    | TenantChanged
    | TenantErased
    | ErasureAcknowledged
)
MessageT = TypeVar(
    "MessageT",
    TraceRecord,
    EngineTelemetry,
    ArmScored,
    DrafterPublished,
    PolicyDecided,
    TenantChanged,
    TenantErased,
    ErasureAcknowledged,
)

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """Pack a message as msgpack bytes."""
    return _encoder.encode(message)


def decode(data: bytes, message_type: type[MessageT]) -> MessageT:
    """Unpack and validate a message.

    Fields this version does not know are ignored, so that newer producers can be read.

    Raises:
        msgspec.ValidationError: a field is missing or of the wrong type; the error names its path.
        msgspec.DecodeError: `data` is not msgpack.
    """
    return msgspec.msgpack.decode(data, type=message_type)
