"""kafka-python's errors as the transport's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafka import errors

from collectors.transport import TransportError, TransportUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LASTING = (
    errors.AuthorizationError,
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
    errors.KafkaConfigurationError,
    errors.UnsupportedVersionError,
    errors.UnsupportedCodecError,
    errors.InvalidTopicError,
    errors.InvalidConfigurationError,
    errors.InvalidReplicationFactorError,
    errors.InvalidPartitionsError,
    errors.InvalidSessionTimeoutError,
    errors.PolicyViolationError,
)
"""Errors that trying again does not mend; every other one may pass."""


def translate(error: Exception, doing: str) -> TransportError:
    """The transport's error for one of kafka-python's.

    Args:
        error: What was raised.
        doing: What was done, as in "cannot <doing>".
    """
    text = f"cannot {doing}: {type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)):
        return TransportError(
            f"{text}; raise ADAPTIVE_KAFKA_MAX_MESSAGE_BYTES and run `adaptive topics create --update`"
        )
    if isinstance(error, _LASTING):
        return TransportError(f"{text}; see the ADAPTIVE_KAFKA_* settings and the rights of their user")
    return TransportUnavailableError(text)


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raise kafka-python's errors inside as the transport's; see `translate`."""
    try:
        yield
    except (errors.KafkaError, OSError) as error:
        raise translate(error, doing) from error
