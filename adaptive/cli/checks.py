"""What `adaptive doctor` looks at, one function per thing."""

from __future__ import annotations

import importlib.resources
import os
import shutil
import socket
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from packaging.requirements import Requirement

from adaptive.settings import Settings
from adaptive.up.environment import variable

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTION: Final = "adaptive-speculator"
GIB: Final = 1 << 30
NEEDED_BYTES: Final = 2 * GIB
"""Model, log and features of some hours of traffic."""


class Check(NamedTuple):
    """One finding."""

    name: str
    found: str
    remedy: str | None = None
    """What to do; None where nothing is wrong."""


def run_checks(settings: Settings) -> Iterator[Check]:
    """Check everything a service on this machine needs."""
    yield check_python()
    yield from check_packages()
    yield from check_environment()
    yield check_home(settings.home)
    yield check_disk(settings.home)
    yield check_model(settings)
    yield check_turbo(settings)
    yield check_log(settings)
    yield check_port("endpoint", settings.host, settings.endpoint_port, "--endpoint-port")
    yield check_port("control", settings.host, settings.control_port, "--control-port")


def check_python() -> Check:
    """Python is new enough."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", found, None if sys.version_info >= (3, 11) else "install Python 3.11 or newer")


def check_packages() -> Iterator[Check]:
    """Each extra is installed in versions it allows; one of the serving extras is enough."""
    missing = {extra: _missing(extra) for extra in ("serving-cpu", "serving-gpu", "learn", "controller")}
    serving = min(("serving-cpu", "serving-gpu"), key=lambda extra: len(missing[extra]))
    for extra in ("", serving, "learn", "controller"):
        name = f"packages ({extra or 'base'})"
        lacking = _missing(extra)
        if not lacking:
            versions = (f"{item.name} {metadata.version(item.name)}" for item in _requirements(extra))
            yield Check(name, ", ".join(versions))
            continue
        target = f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION
        yield Check(name, ", ".join(lacking), f"run 'make install', or install {target}")


def check_environment() -> Iterator[Check]:
    """Every ADAPTIVE_ variable is a setting: a mistyped one would be ignored in silence."""
    known = {variable(Settings, field) for field in Settings.model_fields}
    for name in sorted(os.environ):
        if name.startswith("ADAPTIVE_") and name not in known:
            yield Check(f"environment {name}", "is no setting", "unset it or correct its name")


def check_home(home: Path) -> Check:
    """The state directory can be written, or made."""
    existing = home.resolve()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Check(
                "home", f"{home} is writable" if existing == home.resolve() else f"{home} can be made"
            )
    except OSError as error:
        return Check(
            "home",
            f"{home} cannot be written ({error.strerror})",
            "make it writable or choose another directory with --home",
        )


def check_disk(home: Path) -> Check:
    """The state directory has room."""
    existing = home.resolve()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    found = f"{free / GIB:.1f} GiB free at {existing}"
    enough = free >= NEEDED_BYTES
    return Check(
        "disk", found, None if enough else f"free {NEEDED_BYTES / GIB:.0f} GiB or choose another --home"
    )


def check_model(settings: Settings) -> Check:
    """The target is prepared and undamaged."""
    from adaptive.models import CATALOGUE  # noqa: PLC0415  what the other checks do without
    from adaptive.models.manifest import find_defect  # noqa: PLC0415

    directory = Path(settings.model)
    entry = CATALOGUE.get(settings.model)
    if entry is None or directory.is_dir():
        lacking = [name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()]
        if not lacking:
            return Check("model", str(directory))
        known = ", ".join(sorted(CATALOGUE))
        return Check(
            "model",
            f"{settings.model} is no model directory ({', '.join(lacking)} missing)",
            f"set --model to a directory or to one of: {known}",
        )
    directory = settings.home / "models" / settings.model
    if not directory.is_dir():
        return Check(
            "model",
            f"{settings.model} is not prepared in {settings.home}",
            f"run 'adaptive models prepare {settings.model}' ('adaptive up' does it by itself)",
        )
    defect = find_defect(directory, entry)
    if defect is not None:
        return Check(
            "model", f"{directory} is damaged: {defect}", f"run 'adaptive models prepare {settings.model}'"
        )
    return Check("model", f"{directory}, checksums right")


def check_log(settings: Settings) -> Check:
    """The log can be reached and has its topics; the embedded one is made when it is needed."""
    from collectors.provision import (  # noqa: PLC0415  what the other checks do without
        is_kafka,
        open_topic_admin,
        specified_topics,
    )
    from collectors.transport import TransportError  # noqa: PLC0415

    url = settings.resolved_log_url
    try:
        with open_topic_admin(settings) as admin:
            states = admin.describe(specified_topics(settings))
    except TransportError as error:
        return Check(
            "log", f"{url} cannot be used ({error})", "see --log-url and the ADAPTIVE_KAFKA_* settings"
        )
    missing = [state.name for state in states if not state.partitions]
    if missing and is_kafka(settings):
        return Check(
            "log",
            f"{url} lacks {len(missing)} of {len(states)} topics, {missing[0]} first",
            "run 'adaptive topics create' ('adaptive up' does it by itself)",
        )
    differing = [state.name for state in states if state.partitions and state.differences]
    if differing:
        return Check("log", f"{url}; {len(differing)} topics differ, see 'adaptive topics describe'")
    return Check("log", f"{url}, {'made when needed' if missing else 'topics as specified'}")


def check_turbo(settings: Settings) -> Check:
    """A turbo checkpoint is there for the target."""
    shipped = Path(str(importlib.resources.files("deploy") / "turbo" / Path(settings.model).name))
    directory = settings.turbo or shipped
    lacking = [name for name in ("config.json", "model.safetensors") if not (directory / name).is_file()]
    if not lacking:
        return Check("turbo", str(directory))
    return Check(
        "turbo",
        f"{directory} has no {' and no '.join(lacking)}",
        "set --turbo to the directory of a turbo trained for this target (deploy/models/README.md)",
    )


def check_port(name: str, host: str, port: int, flag: str) -> Check:
    """A port can be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Check(
                f"{name} port",
                f"{host}:{port} cannot be listened on ({error.strerror})",
                f"stop what listens there or choose another with {flag}",
            )
    return Check(f"{name} port", f"{host}:{port} is free")


def _requirements(extra: str) -> list[Requirement]:
    """Requirements of one extra; of the base install where `extra` is empty."""
    found = []
    for line in metadata.requires(DISTRIBUTION) or ():
        requirement = Requirement(line)
        marker = requirement.marker
        in_base = marker is None or marker.evaluate({"extra": ""})
        if (in_base and not extra) or (
            not in_base and marker is not None and marker.evaluate({"extra": extra})
        ):
            found.append(requirement)
    return found


def _missing(extra: str) -> list[str]:
    """What is not installed, or in a version the requirement excludes."""
    lacking = []
    for requirement in _requirements(extra):
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            lacking.append(f"{requirement.name} is not installed")
            continue
        # Local versions (2.13.0+cpu) count as their public version.
        if not requirement.specifier.contains(installed.partition("+")[0], prereleases=True):
            lacking.append(f"{requirement.name} {installed} is installed, {requirement.specifier} is needed")
    return lacking
