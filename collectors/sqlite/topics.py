"""Topics of the embedded log as an operator sees them: made on opening, so there is little to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec

from collectors.sqlite.transport import SqliteTransport
from collectors.topics import TopicSpec, TopicState
from collectors.transport import TransportUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Self


class SqliteTopicAdmin:
    """A `TopicAdmin` of one log file.

    Args:
        path: The file; `create` makes it where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path: Final = path

    def create(self, specs: Sequence[TopicSpec], *, update: bool = False) -> list[TopicState]:
        """Make the file and the topics that are missing; see `TopicAdmin.create`.

        Retention of topics that are there changes too, whatever `update` says: every process that opens the
        log sets it.
        """
        del update
        before = self.describe(specs)
        SqliteTransport(self._path, specs=specs).close()
        return [
            msgspec.structs.replace(
                state,
                created=not earlier.partitions,
                updated=bool(earlier.partitions) and earlier.differences != state.differences,
            )
            for earlier, state in zip(before, self.describe(specs), strict=True)
        ]

    def describe(self, specs: Sequence[TopicSpec]) -> list[TopicState]:
        """Report, without making anything; see `TopicAdmin.describe`."""
        if not self._path.exists():
            return [TopicState(spec.name, 0, differences=("missing",)) for spec in specs]
        try:
            with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as connection:
                rows = connection.execute(
                    "SELECT name, compacted, retention_seconds, retention_bytes, count(part.id) FROM topic "
                    "JOIN part ON part.topic_id = topic.id GROUP BY topic.id"
                ).fetchall()
        except sqlite3.Error as error:
            raise TransportUnavailableError(f"cannot read the log {self._path}: {error}") from error
        found = {name: tuple(rest) for name, *rest in rows}
        return [_state(spec, found.get(spec.name)) for spec in specs]

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _state(spec: TopicSpec, found: tuple[int, float, int, int] | None) -> TopicState:
    if found is None:
        return TopicState(spec.name, 0, differences=("missing",))
    compacted, seconds, limit, partitions = found
    wanted = {
        "compacted": (bool(compacted), spec.compacted),
        "retention_seconds": (seconds, spec.retention_seconds),
        "retention_bytes": (limit, spec.retention_bytes),
    }
    differences = tuple(
        f"{name} is {actual}, specified {specified}"
        for name, (actual, specified) in wanted.items()
        if actual != specified
    )
    return TopicState(spec.name, partitions, differences=differences)
