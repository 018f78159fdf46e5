"""What the endpoint tells the engine process, carried by vLLM's public `--additional-config`."""

from __future__ import annotations

from typing import Any, Final

import msgspec

KEY: Final = "adaptive"


class CaptureConfig(msgspec.Struct, frozen=True):
    """Where traces go; absent when capture is off."""

    log_url: str
    store_url: str
    queue_bytes: int
    bytes_per_second: int = 32 << 20
    """Budget of traces and features: above it features, then whole requests, are sampled less."""
    object_bytes: int = 16 << 20
    """Size from which a feature object takes no more traces."""
    linger_seconds: float = 1.0
    """How long features wait for others to share an object with."""


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plugin settings of one engine."""

    slots: int
    rank: int
    lookahead: int
    """Cap of the turbo and adapter arms."""
    target_sha256: str
    turbo_sha256: str
    tokenizer_sha256: str
    feature_layers: tuple[int, ...]
    capture: CaptureConfig | None = None
    slot_residence_seconds: float = 0.0
    """How long an adapter stays before another tenant's may take its slot."""
    confidence_stop: bool = True
    """Stop drafting where the next position does not pay; off: every arm drafts up to its cap."""
    load_floor: bool = True
    """Switch speculation off while it does not pay for the batch as a whole."""
    ngram: bool = True
    """Draft from the request's text and its tenant's earlier traffic where that promises more."""

    @classmethod
    def from_additional_config(cls, additional_config: Any) -> EngineConfig | None:
        """Read the plugin's part of vLLM's additional config; None when it has none.

        Raises:
            msgspec.ValidationError: a field is missing or wrong; the error names it.
        """
        section = additional_config.get(KEY) if isinstance(additional_config, dict) else None
        return msgspec.convert(section, cls) if section is not None else None

    def to_additional_config(self) -> dict[str, Any]:
        """The mapping to pass as `additional_config`."""
        return {KEY: msgspec.to_builtins(self)}
