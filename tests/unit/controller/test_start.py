"""What the controller needs to start: database, admin key, log."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from adaptive.settings import Settings
from collectors.transport import TransportError
from controller.admin_key import AdminKeyError, ensure_admin_key, find_admin_key
from controller.app import create_app
from controller.database import Database, DatabaseUrlError
from controller.models import Base

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.controller.conftest import Bench


def test_migrations_make_the_tables_that_the_models_describe(tmp_path: Path) -> None:
    """Nothing differs between the migrated schema and the ORM, also after a second run."""
    database = Database(f"sqlite:///{tmp_path}/control.db")
    database.migrate()
    database.migrate()
    with database._engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    database.close()


@pytest.mark.parametrize("url", ["nonsense", "postgresql+missing://host/db", "oracle+nope://x"])
def test_an_unusable_database_url_names_the_setting(url: str) -> None:
    """The error says which setting is wrong and shows a right one."""
    with pytest.raises(DatabaseUrlError, match=r"ADAPTIVE_DATABASE_URL.*sqlite:///"):
        Database(url)


def test_an_unusable_log_url_stops_the_start(tmp_path: Path) -> None:
    """The controller does not start without its log."""
    with pytest.raises(TransportError, match="log_url"):
        create_app(Settings(home=tmp_path, admin_key="k", log_url="ftp://x"))


def test_an_admin_key_is_made_once_for_this_user_only(tmp_path: Path) -> None:
    """Of several processes that start at once one makes the key, all use it, and its mode is 0600."""
    settings = Settings(home=tmp_path / "home")
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: ensure_admin_key(settings), range(16)))
    assert sum(made for _, made in results) == 1
    assert len({key for key, _ in results}) == 1
    assert len(results[0][0]) >= 47
    path = tmp_path / "home" / "admin_key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["admin_key"]
    assert find_admin_key(settings) == results[0][0]


def test_a_made_admin_key_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first start shows the key, the second does not, and a configured key is never shown."""
    settings = Settings(home=tmp_path)
    apps = [create_app(settings)]
    key = find_admin_key(settings)
    assert key in capsys.readouterr().out
    apps.append(create_app(settings))
    apps.append(create_app(Settings(home=tmp_path, admin_key="very-secret")))
    shown = capsys.readouterr()
    assert key not in shown.out + shown.err
    assert "very-secret" not in shown.out + shown.err
    for app in apps:
        app.state.control.database.close()


def test_a_missing_or_empty_admin_key_says_what_to_do(tmp_path: Path) -> None:
    """Clients without a key, an empty file and an empty setting are told apart and told the remedy."""
    with pytest.raises(AdminKeyError, match="start the controller once"):
        find_admin_key(Settings(home=tmp_path))
    (tmp_path / "admin_key").touch()
    with pytest.raises(AdminKeyError, match="is empty: delete it"):
        ensure_admin_key(Settings(home=tmp_path))
    with pytest.raises(AdminKeyError, match="ADAPTIVE_ADMIN_KEY"):
        ensure_admin_key(Settings(home=tmp_path, admin_key=" "))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"tenants": []}', b'{"tenants": {"acme": 3}}'])
def test_a_damaged_learner_status_is_no_error(bench: Bench, content: bytes) -> None:
    """Whatever the learner left behind, the tenant is shown, with no learning status."""
    bench.create()
    path = bench.control.learner_status
    path.parent.mkdir()
    path.write_bytes(content)
    assert bench.tenant()["learning"] is None


def test_the_learner_status_is_shown(bench: Bench) -> None:
    """The tenant's own part of the learner's status is passed on, with whether learning is paused."""
    bench.create()
    assert bench.tenant()["learning"] is None
    path = bench.control.learner_status
    path.parent.mkdir()
    path.write_text(json.dumps({"paused": True, "tenants": {"acme": {"state": "idle"}, "other": {}}}))
    assert bench.tenant()["learning"] == {"state": "idle", "paused": True}
