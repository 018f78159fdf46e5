"""What the buttons do: the same as the admin API's routes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.errors import InvalidFieldError
from controller.routes import drafters, tenants
from controller.schemas import Promote, TenantPatch

if TYPE_CHECKING:
    from controller.context import Control
    from controller.operation import Operation


class Action(enum.StrEnum):
    """One per button."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"
    FREEZE = "freeze"
    UNFREEZE = "unfreeze"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a form asks for."""

    action: Action
    version: int | None
    """Which to promote."""


def parse(action: str, version: str) -> Asked:
    """Read a form.

    Raises:
        InvalidFieldError: there is no such action, or the version is no number.
    """
    if action not in list(Action):
        raise InvalidFieldError(
            "action", f"{action!r} is none of {', '.join(Action)}: use the page's buttons"
        )
    if action != Action.PROMOTE:
        return Asked(Action(action), None)
    if not (version.isascii() and version.isdigit() and 0 < int(version[:10]) < 2**31):
        raise InvalidFieldError("version", f"{version[:20]!r} is no version: choose one from the list")
    return Asked(Action.PROMOTE, int(version))


def carry_out(control: Control, operation: Operation, tenant_id: str, asked: Asked) -> None:
    """Do it, as the route of the admin API does.

    Raises:
        ControlError: the state of the tenant forbids it.
    """
    if asked.action is Action.PROMOTE:
        assert asked.version is not None
        drafters.promote(control, operation, tenant_id, Promote(version=asked.version))
    elif asked.action is Action.ROLLBACK:
        drafters.rollback(control, operation, tenant_id)
    else:
        frozen = asked.action is Action.FREEZE
        tenants.change(control, operation, tenant_id, TenantPatch(freeze=frozen))
