"""From settings to the keyword arguments of kafka-python's clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptive.kafka_settings import KafkaSettings
    from collectors.kafka.address import KafkaAddress


def client_options(address: KafkaAddress, settings: KafkaSettings) -> dict[str, Any]:
    """What producer, consumer and admin client have in common."""
    milliseconds = int(settings.kafka_timeout_seconds * 1000)
    options: dict[str, Any] = {
        "bootstrap_servers": list(address.servers),
        "client_id": "adaptive-speculator",
        "request_timeout_ms": milliseconds,
        "bootstrap_timeout_ms": milliseconds,
        # kafka-python would let half a minute pass between attempts at a broker that was away for a while.
        "reconnect_backoff_max_ms": 1000,
        "security_protocol": settings.kafka_security_protocol,
        "ssl_cafile": _text(settings.kafka_ca_file),
        "ssl_certfile": _text(settings.kafka_certificate_file),
        "ssl_keyfile": _text(settings.kafka_key_file),
    }
    if settings.kafka_key_password is not None:
        options["ssl_password"] = settings.kafka_key_password.get_secret_value()
    if settings.kafka_security_protocol.startswith("SASL") and settings.kafka_password is not None:
        options["sasl_mechanism"] = settings.kafka_sasl_mechanism
        options["sasl_plain_username"] = settings.kafka_username
        options["sasl_plain_password"] = settings.kafka_password.get_secret_value()
    return options


def _text(path: object) -> str | None:
    return None if path is None else str(path)
