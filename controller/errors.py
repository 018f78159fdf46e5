"""What the controller refuses, apart from how HTTP says it."""

from __future__ import annotations


class ControlError(Exception):
    """A request that cannot be carried out.

    Args:
        detail: What is wrong and what to do about it.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class NotFoundError(ControlError):
    """The thing named does not exist."""


class ConflictError(ControlError):
    """The state of the thing named forbids what was asked."""


class InvalidFieldError(ControlError):
    """A field's value is well-formed but impossible here."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field


class ForbiddenError(ControlError):
    """The key is valid and its scope does not reach this."""


class PreconditionError(ControlError):
    """The state is not the one that If-Match names."""


class UnavailableError(ControlError):
    """Something that this needs is away; the same request can be sent again."""


class ReusedKeyError(ControlError):
    """An Idempotency-Key came with another request before."""
