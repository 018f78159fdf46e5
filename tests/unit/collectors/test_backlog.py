"""The publisher's queue against a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from adaptive import contracts
from collectors.backlog import Backlog, Item

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT = 100
TRACE = msgspec.convert(
    {
        **dict.fromkeys(
            ("trace_id", "tenant", "request_id", "target_sha256", "turbo_sha256", "tokenizer_sha256"), ""
        ),
        **dict.fromkeys(("segment", "created_at", "prompt_length", "output_start"), 0),
        **dict.fromkeys(("prompt_ids", "output_ids", "steps"), ()),
        "sampling": {},
        "finished": True,
    },
    contracts.TraceRecord,
)

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
            backlog.add(Item("t", str(added), second, record=TRACE if first else None))
            added += 1
        elif step == "take" and not taken:
            taken = backlog.take(first, second, 0.0)
        elif step == "put back":
            traces = [item for item in taken if item.record is not None]
            taken = [item for item in taken if item.record is None]
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
        order = [int(item.key) for item in finished if (item.record is not None) == lane]
        assert order == sorted(order)
