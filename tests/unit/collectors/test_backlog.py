"""The publisher's queue against a model."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from collectors.backlog import Backlog, Item
from collectors.features import FeatureMeta

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT = 100
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.booleans(), st.integers(1, 120)),
        st.tuples(st.just("take"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("put back"), st.just(0), st.just(0)),
        st.tuples(st.just("done"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_nothing_is_lost_uncounted(steps: Sequence[tuple[str, int, int]]) -> None:
    """Added = finished + waiting + dropped at any time, bytes stay in bounds, lanes keep their order."""
    backlog = Backlog(LIMIT)
    added = 0
    finished: list[Item] = []
    taken: list[Item] = []
    for step, first, second in steps:
        if step == "add":
            backlog.add(Item("t", str(added), second, b"", "trace" if first else ""))
            added += 1
        elif step == "take" and not taken:
            taken = backlog.take(first, second, 0.0)
        elif step == "put back":
            traces = [item for item in taken if item.trace_id]
            taken = [item for item in taken if not item.trace_id]
            backlog.put_back(traces)
        elif step == "done":
            backlog.done()
            finished += taken
            taken = []
        dropped, _, depth, waiting = backlog.statistics()
        assert added == dropped + depth + len(finished)
        assert depth == len(backlog._ready) + len(backlog._traces) + len(taken)
        assert waiting == sum(item.size for item in (*backlog._ready, *backlog._traces, *taken))
        assert waiting <= LIMIT
    for lane in (True, False):
        order = [int(item.key) for item in finished if bool(item.trace_id) == lane]
        assert order == sorted(order)


def with_features(number: int, rows: int) -> Item:
    """A trace whose features take 8 bytes per row."""
    meta = FeatureMeta(0, rows, "float32", (1,), 1)
    return Item("t", "acme", 8 * rows, b"", f"trace:{number}", meta=meta)


def test_features_wait_for_company() -> None:
    """Traces come when their features fill a batch, the oldest has waited long enough, or a flush asks."""
    backlog = Backlog(10_000, batch_bytes=80, linger=0.15)
    backlog.add(with_features(0, 4))
    assert backlog.take(9, 9, 0.0) == []
    backlog.add(with_features(1, 6))
    backlog.add(with_features(2, 6))
    assert [item.trace_id for item in backlog.take(9, 9, 0.0)] == ["trace:0", "trace:1"]
    backlog.done()
    began = time.monotonic()
    assert [item.trace_id for item in backlog.take(9, 9, 5.0)] == ["trace:2"]
    assert 0.05 < time.monotonic() - began < 2
    backlog.done()
    backlog.add(with_features(3, 1))
    flushing = threading.Thread(target=backlog.wait_empty, args=(5.0,))
    flushing.start()
    assert [item.trace_id for item in backlog.take(9, 9, 5.0)] == ["trace:3"]
    backlog.done()
    flushing.join(1)
    assert not flushing.is_alive()


def test_traces_without_features_wait_for_nobody() -> None:
    """Only what is to share an object lingers."""
    backlog = Backlog(10_000, batch_bytes=80, linger=60.0)
    backlog.add(Item("t", "acme", 8, b"", "trace:0"))
    assert len(backlog.take(9, 9, 0.0)) == 1


def test_features_that_were_put_back_or_dropped_do_not_count_twice() -> None:
    """Whether a batch is full follows from what waits, whatever happened to the rest."""
    backlog = Backlog(200, batch_bytes=100, linger=60.0)
    for number in range(2):
        backlog.add(with_features(number, 8))
    taken = backlog.take(9, 9, 0.0)
    assert len(taken) == 2
    backlog.put_back(taken)
    assert len(backlog.take(9, 9, 0.0)) == 2
    backlog.done()
    backlog.add(with_features(2, 10))
    backlog.add(with_features(3, 24))
    assert [item.trace_id for item in backlog.take(9, 9, 0.0)] == ["trace:3"]
    backlog.done()
    backlog.add(with_features(4, 10))
    assert backlog.take(9, 9, 0.0) == []
