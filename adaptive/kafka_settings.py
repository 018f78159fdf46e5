"""Settings of the connection to Kafka and of the topics made there; part of `adaptive.settings.Settings`.

On their own they are read where a process is told nothing but a log URL: vLLM's engine process, whose
configuration is on a command line that every user of the machine can read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class KafkaSettings(BaseSettings):
    """How a `kafka://` log is reached; unused with the embedded log."""

    model_config = SettingsConfigDict(env_prefix="ADAPTIVE_", extra="ignore", frozen=True)

    kafka_security_protocol: str = Field(
        "PLAINTEXT", pattern="^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)$", description="As Kafka names it."
    )
    kafka_ca_file: Path | None = Field(None, description="PEM of who signed the brokers' certificates.")
    kafka_certificate_file: Path | None = Field(None, description="PEM of the client's certificate.")
    kafka_key_file: Path | None = Field(None, description="PEM of the client's private key.")
    kafka_key_password: SecretStr | None = Field(None, description="Password of the client's private key.")
    kafka_sasl_mechanism: str = Field("SCRAM-SHA-512", pattern="^(PLAIN|SCRAM-SHA-256|SCRAM-SHA-512)$")
    kafka_username: str | None = Field(None, description="SASL user name.")
    kafka_password: SecretStr | None = Field(None, description="SASL password.")
    kafka_timeout_seconds: float = Field(
        10.0,
        gt=0,
        description="Longest wait for the brokers, a send's acknowledgement included.",
    )
    kafka_max_message_bytes: int = Field(
        8 << 20, ge=1 << 20, description="Largest record; topics are made to accept it."
    )
    kafka_partitions: int = Field(
        12,
        ge=1,
        description="Partitions of topics keyed by tenant when they are made; more later would move tenants.",
    )
    kafka_replication: int | None = Field(
        None, ge=1, description="Copies of every partition when a topic is made; default: the brokers'."
    )
    kafka_min_insync_replicas: int | None = Field(
        None, ge=1, description="Copies that must have a record before it counts; default: the brokers'."
    )

    @model_validator(mode="after")
    def _security_is_complete(self) -> Self:
        if self.kafka_security_protocol.startswith("SASL") and not (
            self.kafka_username and self.kafka_password
        ):
            raise ValueError(
                f"kafka_security_protocol {self.kafka_security_protocol} needs kafka_username and "
                "kafka_password: set ADAPTIVE_KAFKA_USERNAME and ADAPTIVE_KAFKA_PASSWORD"
            )
        if (self.kafka_certificate_file is None) != (self.kafka_key_file is None):
            raise ValueError(
                "kafka_certificate_file and kafka_key_file belong together: set both or neither "
                "(ADAPTIVE_KAFKA_CERTIFICATE_FILE, ADAPTIVE_KAFKA_KEY_FILE)"
            )
        return self
