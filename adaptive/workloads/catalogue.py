"""The workloads by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adaptive.workloads.prompt import Workload

WORKLOADS: Mapping[str, str] = {
    "tools": "adaptive.workloads.tools",
    "code": "adaptive.workloads.coding",
    "math": "adaptive.workloads.arithmetic",
    "chat": "adaptive.workloads.smalltalk",
    "idioma": "adaptive.workloads.idioma",
    "format": "adaptive.workloads.records",
    "edits": "adaptive.workloads.edits",
}


class UnknownWorkloadError(ValueError):
    """The name is not a workload's."""


def load(name: str) -> Workload:
    """The workload of that name, the same prompts in the same order every time.

    Raises:
        UnknownWorkloadError: The name is unknown; the message lists the known ones.
        PackageMissingError: The distribution that ships the prompts is not installed.
    """
    try:
        module = WORKLOADS[name]
    except KeyError:
        known = ", ".join(sorted(WORKLOADS))
        raise UnknownWorkloadError(f"unknown workload {name!r}; known workloads: {known}") from None
    workload: Workload = import_module(module).build()
    return workload
