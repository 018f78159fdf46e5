"""The one settings schema, shared by every process.

Precedence: command-line flags (passed as init arguments) over environment (`ADAPTIVE_*`) over `adaptive.yaml`
over the defaults below. Unknown keys are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from adaptive.kafka_settings import KafkaSettings


class Settings(KafkaSettings):
    """Every tunable of the service; derived values are properties."""

    model_config = SettingsConfigDict(
        env_prefix="ADAPTIVE_",
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        yaml_file="adaptive.yaml",
        validate_default=True,
    )

    home: Path = Field(
        Path(".adaptive"), description="State directory: models, log, store, database, MLflow."
    )
    log_url: str | None = Field(
        None, description="sqlite:///path or kafka://host:port,host:port; default: in home."
    )
    store_url: str | None = Field(None, description="file:///path or s3://bucket/prefix; default: in home.")
    database_url: str | None = Field(None, description="SQLAlchemy URL of the controller; default: in home.")
    tracking_url: str | None = Field(
        None,
        validation_alias="MLFLOW_TRACKING_URI",
        description="MLflow tracking server; default: SQLite in home.",
    )
    tracking_backend_url: str | None = Field(
        None,
        description="SQLAlchemy URL of the MLflow server's database, so that runs of erased tenants can be "
        "removed for good; default: the one in home.",
    )
    admin_key: SecretStr | None = Field(None, description="Admin API key; made and printed once if unset.")
    internal_key: SecretStr | None = Field(
        None, description="Token of the internal routes and of forced arms; made in home if unset."
    )

    host: str = Field("127.0.0.1", description="Address every port binds to.")
    endpoint_port: int = Field(8000, ge=1, le=65535)
    control_port: int = Field(8100, ge=1, le=65535)

    control_requests_per_second: float = Field(
        500.0,
        gt=0,
        description="Admin API requests of the admin, or of one tenant's key; twice that at once.",
    )

    model: str = Field("smollm2-135m", description="Catalogue name or directory of the target.")
    turbo: Path | None = Field(
        None, description="Directory of the turbo checkpoint; default: the shipped one."
    )
    dtype: str = Field("bfloat16", pattern="^(bfloat16|float16|float32)$")
    max_model_len: int = Field(2048, ge=16)
    max_num_seqs: int = Field(16, ge=1)
    kv_cache_gib: float = Field(2.0, gt=0, description="KV cache of a CPU engine.")
    engine_lookahead: int = Field(8, ge=1, le=16, description="K: the most draft tokens of any verify step.")
    lookahead: int = Field(4, ge=0, le=16, description="Cap of the turbo and adapter arms.")
    confidence_stop: bool = Field(
        default=True,
        description="Stop drafting where the next position does not pay; off: always draft up to the cap.",
    )
    load_floor: bool = Field(
        default=True, description="Switch speculation off while it does not pay for the batch as a whole."
    )
    ngram: bool = Field(
        default=True,
        description="Draft from the request's own text and its tenant's earlier traffic where that promises "
        "more than the model.",
    )

    slots: int = Field(8, ge=2, description="Adapter rows resident in an engine, slot 0 (turbo) included.")
    slot_residence_seconds: float = Field(
        5.0, ge=0, description="How long an adapter stays in its slot before another tenant's may take it."
    )
    rank: int = Field(32, ge=1, le=256, description="Rank of the adapters.")
    capture: bool = Field(default=True, description="Record the verify steps of tenants with `learn`.")
    feature_share: float = Field(
        1.0, ge=0, le=1, description="Share of captured requests whose features are kept too."
    )
    capture_queue_bytes: int = Field(256 << 20, ge=1 << 20, description="Publisher queue; oldest dropped.")
    capture_bytes_per_second: int = Field(
        32 << 20,
        ge=1 << 10,
        description="Budget of traces and features of an engine; above it features, then whole requests, are "
        "sampled less.",
    )
    feature_object_bytes: int = Field(
        16 << 20, ge=1 << 16, description="Size from which a feature object takes no more traces."
    )
    feature_linger_seconds: float = Field(
        1.0, ge=0, le=60, description="How long features wait for others to share an object with."
    )
    feature_quota_bytes: int = Field(
        10 << 30, ge=1 << 20, description="Feature bytes kept per tenant; the oldest objects go first."
    )
    feature_retention_days: float = Field(
        7.0, gt=0, description="Age at which feature objects go, as the traces that refer to them."
    )
    acceptance_details: bool = Field(
        default=False,
        description="Report accepted counts to clients (metrics.speculative_decoding); "
        "they can leak prompts by timing.",
    )
    stream_coalesce: int = Field(
        1,
        ge=1,
        description="Least tokens per streamed event (first and last come at once). More than 1 blurs "
        "how many tokens each verify step accepted, which packet timing and sizes otherwise show.",
    )
    telemetry_seconds: float = Field(1.0, gt=0)
    metric_tenants: int = Field(
        100, ge=0, description="Tenants with a Prometheus label of their own; the rest are summed as (other)."
    )

    control_share: float = Field(0.05, ge=0, le=1)
    off_share: float = Field(0.01, ge=0, le=1)
    canary_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of a tenant's requests that try a new version before it becomes champion; 0: what "
        "passed the learner's gate becomes champion at once, under watch.",
    )

    retention_days: float = Field(
        7.0,
        gt=0,
        description="Age at which traces leave the log and the learner's replay; a tenant may have less. On "
        "Kafka also how long an erased tenant's bytes stay: topics are made with it.",
    )
    retention_bytes: int = Field(
        1 << 30, ge=1 << 20, description="Most bytes of traces kept per partition of the log."
    )

    learners: int | None = Field(None, ge=1, description="Learner actors: 1; more are not supported yet.")
    learner_threads: int = Field(1, ge=1)
    learner_niceness: int = Field(
        5,
        ge=0,
        le=19,
        description="How much the learner lowers its priority (nice) so that serving keeps room.",
    )
    features: str = Field(
        "captured",
        pattern="^(captured|recomputed)$",
        description="captured: requests without captured features are left out of learning; recomputed: the "
        "learner runs the target over them.",
    )
    replay_tokens: int = Field(
        200_000, ge=1, description="Most prompt and answer tokens of a tenant kept for replay."
    )
    update_tokens: int = Field(
        2000, ge=1, description="New answer tokens of a tenant that trigger an update."
    )
    update_token_steps: int = Field(60_000, ge=1, description="Most answer tokens processed by one update.")
    payback_hours: float = Field(
        24.0,
        gt=0,
        description="An update must save more engine time in so many hours of traffic than it costs.",
    )
    training_seconds_per_day: float | None = Field(
        None,
        gt=0,
        description="Most seconds of training and evaluation per tenant in 24 hours; none: no limit.",
    )
    replay_bytes: int = Field(
        2 << 30, ge=1 << 20, description="Most bytes of a tenant's replay on disk, beside replay_tokens."
    )
    learning_rate: float = Field(1.5e-3, gt=0)
    unroll_depth: int = Field(3, ge=1, le=8)
    objective: str = Field(
        "kl",
        pattern="^(kl|hybrid|acceptance)$",
        description="Training loss: KL to the target, KL that turns to total variation, or negative log "
        "acceptance.",
    )
    rejected_weight: float = Field(
        0.0, ge=0, le=10, description="How much more positions count in it whose draft was rejected."
    )
    seed: int = Field(0, ge=0)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  pydantic passes it by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags over environment over YAML file."""
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)

    @model_validator(mode="after")
    def _lookahead_fits(self) -> Self:
        if self.lookahead > self.engine_lookahead:
            raise ValueError(
                f"lookahead ({self.lookahead}) exceeds engine_lookahead ({self.engine_lookahead}): "
                "raise ADAPTIVE_ENGINE_LOOKAHEAD or lower ADAPTIVE_LOOKAHEAD"
            )
        return self

    @property
    def resolved_log_url(self) -> str:
        """URL of the trace log."""
        return self.log_url or self.default_log_url

    @property
    def default_log_url(self) -> str:
        """The same on the embedded defaults, in home."""
        return f"sqlite:///{self.home.resolve()}/log.db"

    @property
    def resolved_store_url(self) -> str:
        """URL of the tensor store."""
        return self.store_url or self.default_store_url

    @property
    def default_store_url(self) -> str:
        """The same on the embedded defaults, in home."""
        return f"file://{self.home.resolve()}/store"

    @property
    def resolved_database_url(self) -> str:
        """SQLAlchemy URL of the controller's database."""
        return self.database_url or self.default_database_url

    @property
    def default_database_url(self) -> str:
        """The same on the embedded defaults, in home."""
        return f"sqlite:///{self.home.resolve()}/control.db"

    @property
    def resolved_tracking_url(self) -> str:
        """MLflow tracking URI."""
        return self.tracking_url or self.default_tracking_url

    @property
    def default_tracking_url(self) -> str:
        """The same on the embedded defaults, in home."""
        return f"sqlite:///{self.home.resolve()}/mlflow.db"
