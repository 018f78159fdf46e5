"""Formatting the storage of the broker in deploy/kafka."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from deploy.kafka.broker import Broker

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_cluster_id_that_begins_with_a_dash_is_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One random cluster id in 64 begins with a dash; the storage is formatted all the same."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=b"\xf8" + bytes(15)))
    broker = Broker(tmp_path)
    broker.format()
    assert list(tmp_path.rglob("meta.properties"))
