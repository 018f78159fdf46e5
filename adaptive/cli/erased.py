"""Proves that nothing of an erased tenant can be read: looks into every place that held its data."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from adaptive.contracts import (
    DEAD_LETTER_SUFFIX,
    TOPIC_ERASURE_ACKNOWLEDGED,
    TOPIC_TENANT_ERASED,
    TOPICS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adaptive.contracts import TenantErased
    from adaptive.settings import Settings
    from collectors.erasure import ErasedTenants
    from collectors.transport import Transport

_ABOUT_ERASURES: Final = frozenset({TOPIC_TENANT_ERASED, TOPIC_ERASURE_ACKNOWLEDGED})
"""They name the tenant, and hold nothing of it."""
_RECORD_TABLES: Final = ("erasures", "audit")


class Finding(NamedTuple):
    """What is left in one place."""

    place: str
    left: int | None
    """None: it could not be looked at, which proves nothing."""
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing is left."""
        return self.left == 0


class Proof(NamedTuple):
    """Findings in every place, and the erasure itself."""

    findings: list[Finding]
    erased: TenantErased | None

    @property
    def passed(self) -> bool:
        """Whether the tenant was erased, and nothing of it is left anywhere."""
        return self.erased is not None and all(finding.passed for finding in self.findings)


def prove_erased(settings: Settings, tenant: str) -> Proof:
    """Look into log, store, learner, MLflow, database and endpoint for what is left of a tenant."""
    from learners.paths import LearnerPaths  # noqa: PLC0415  commands load late

    findings, erased = _log(settings, tenant)
    paths = LearnerPaths(settings.home)
    endpoint = settings.home / "endpoint"
    places: list[tuple[str, Callable[[], int]]] = [
        ("store", lambda: _store(settings, tenant)),
        ("learner ledger", lambda: _sqlite_rows(paths.ledger, tenant, {"erasure"})),
        ("learner replay", lambda: _files(paths.replay_of(tenant))),
        ("learner challengers", lambda: _adapters(paths.updates, tenant)),
        ("learner champions", lambda: _adapters(paths.champions, tenant)),
        ("learner status", lambda: _mentions(paths.status, tenant)),
        ("mlflow", lambda: _mlflow(settings, tenant)),
        ("mlflow artifacts", lambda: _artifacts(settings.home / "mlartifacts", tenant)),
        ("database", lambda: _database(settings, tenant)),
        ("endpoint state", lambda: _mentions(endpoint / "state.json", tenant)),
        ("endpoint adapters", lambda: _adapters(endpoint / "adapters", tenant)),
    ]
    for place, look in places:
        try:
            findings.append(Finding(place, look()))
        except Exception as error:  # noqa: BLE001  whatever hides a place from us is part of the answer
            findings.append(Finding(place, None, f"{type(error).__name__}: {error}"))
    return Proof(findings, erased)


def _log(settings: Settings, tenant: str) -> tuple[list[Finding], TenantErased | None]:
    """Every topic: on the embedded log no record is left, on Kafka none that a reader would be given."""
    from collectors.erasure import ErasableLog, ErasedTenants  # noqa: PLC0415
    from collectors.open import open_transport  # noqa: PLC0415
    from collectors.transport import TransportError, UnknownTopicError  # noqa: PLC0415

    findings: list[Finding] = []
    try:
        with contextlib.closing(open_transport(settings.resolved_log_url, kafka=settings)) as transport:
            with ErasedTenants(transport) as erased:
                erased.poll()
                announced = erased.latest.get(tenant)
            for topic in sorted({name + end for name in TOPICS for end in ("", DEAD_LETTER_SUFFIX)}):
                if topic in _ABOUT_ERASURES:
                    continue
                try:
                    readable, hidden = _count(transport, topic, tenant, erased)
                except UnknownTopicError as error:
                    findings.append(Finding(f"log {topic}", None, str(error)))
                    continue
                left = readable + hidden if isinstance(transport, ErasableLog) else readable
                detail = f"{hidden} records no longer delivered, their bytes go" if hidden else ""
                findings.append(Finding(f"log {topic}", left, detail))
    except TransportError as error:
        return [Finding("log", None, str(error))], None
    return findings, announced


def _count(transport: Transport, topic: str, tenant: str, erased: ErasedTenants) -> tuple[int, int]:
    """Records of a tenant in a topic: those that readers are given, and those that are left out.

    Up to the ends as they are now. Where the log does not give all of it, this raises: what was not read
    proves nothing.
    """
    from collectors.erasure import mention  # noqa: PLC0415
    from collectors.inspection import batches  # noqa: PLC0415

    readable = hidden = 0
    mark = mention(tenant)
    with contextlib.closing(transport.consumer([topic], None)) as reader:
        for records, _ in batches(reader, topic, transport.end_offsets(topic)):
            for record in records:
                if record.value is None or (record.key != tenant and mark not in record.value):
                    continue
                if erased.is_erased(topic, record.partition, record.offset, tenant):
                    hidden += 1
                else:
                    readable += 1
    return readable, hidden


def _store(settings: Settings, tenant: str) -> int:
    from collectors.store import TensorStore  # noqa: PLC0415

    return TensorStore(settings.resolved_store_url).tenant_objects(tenant)


def _mlflow(settings: Settings, tenant: str) -> int:
    from learners.mlflow_erasure import MlflowEraser, backend_url  # noqa: PLC0415

    url = settings.resolved_tracking_url
    never = settings.tracking_url is None and not (settings.home / "mlflow.db").exists()
    if never:
        return 0  # nothing was ever recorded, and looking would make a database
    found = MlflowEraser(url, backend_url(settings), settings.home / "mlartifacts").find(tenant)
    return sum(found.values())


def _artifacts(directory: Path, tenant: str) -> int:
    from collectors.adapter_files import adapter_tenant  # noqa: PLC0415

    mark = json.dumps(tenant).encode()
    return sum(
        adapter_tenant(path) == tenant or (path.suffix == ".json" and mark in path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    )


def _adapters(directory: Path, tenant: str) -> int:
    from collectors.adapter_files import adapter_tenant  # noqa: PLC0415

    return sum(adapter_tenant(path) == tenant for path in directory.rglob("*") if path.is_file())


def _files(directory: Path) -> int:
    return sum(path.is_file() for path in directory.rglob("*"))


def _mentions(path: Path, tenant: str) -> int:
    """How often a JSON file names the tenant."""
    return path.read_bytes().count(json.dumps(tenant).encode()) if path.exists() else 0


def _sqlite_rows(path: Path, tenant: str, audit: set[str]) -> int:
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name not in audit
        ]
        return sum(_named(connection, table, tenant) for table in tables)


def _named(connection: sqlite3.Connection, table: str, tenant: str) -> int:
    columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    if "tenant" not in columns:
        return 0
    query = f"SELECT count(*) FROM {table} WHERE tenant = ?"  # noqa: S608  # a name of sqlite_master
    count: int = connection.execute(query, (tenant,)).fetchone()[0]
    return count


def _database(settings: Settings, tenant: str) -> int:
    """Rows of the controller's database that name the tenant, in a column or inside a message."""
    from sqlalchemy import MetaData, create_engine, make_url, select  # noqa: PLC0415

    url = make_url(settings.resolved_database_url)
    if url.get_backend_name() == "sqlite" and not (url.database and Path(url.database).exists()):
        return 0
    engine = create_engine(url)
    try:
        tables = MetaData()
        tables.reflect(engine)
        with engine.connect() as connection:
            return sum(
                _names(list(row), tenant)
                for table in tables.sorted_tables
                if table.name not in _RECORD_TABLES  # an outbox row would be one of a job that is not done
                for row in connection.execute(select(table))
            )
    finally:
        engine.dispose()


def _names(values: list[Any], tenant: str) -> bool:
    from collectors.erasure import mention  # noqa: PLC0415

    return any(
        value == tenant or (isinstance(value, bytes) and mention(tenant) in value) for value in _flat(values)
    )


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _flat(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    else:
        yield value
