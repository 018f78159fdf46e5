"""Groups of the embedded log under members that come, go and die in any order."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.sqlite import SqliteTransport
from collectors.topics import TopicSpec
from collectors.transport import OutgoingRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from collectors.sqlite.consumer import SqliteConsumer
    from collectors.transport import LogRecord

KEYS = "abcdef"
LEASE_SECONDS = 1000.0

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "poll", "poll", "poll", "commit", "join", "leave", "die"]), st.integers(0, 2)
    ),
    max_size=40,
)


class Group:
    """A group whose members' time stands still unless one dies."""

    def __init__(self, path: pytest.TempPathFactory) -> None:
        self.now = 0.0
        self.transport = SqliteTransport(
            path.mktemp("log") / "log.db",
            specs=[TopicSpec("topic")],
            partitions=3,
            lease_seconds=LEASE_SECONDS,
            clock=lambda: self.now,
        )
        self.members: list[SqliteConsumer] = []
        self.sent = 0
        self.seen: dict[tuple[int, int], list[LogRecord]] = defaultdict(list)
        self.committed: set[tuple[int, int]] = set()
        self.in_hand: dict[SqliteConsumer, set[tuple[int, int]]] = defaultdict(set)

    def send(self, _: int) -> None:
        """Append a few records."""
        batch = [
            OutgoingRecord("topic", KEYS[(self.sent + i) % 6], str(self.sent + i).encode()) for i in range(5)
        ]
        self.transport.send_many(batch)
        self.sent += 5

    def join(self, _: int) -> None:
        """Let a new member in."""
        self.members.append(self.transport.consumer(["topic"], "group"))

    def poll(self, which: int) -> None:
        """Let one member poll, rebalancing first."""
        if self.members:
            member = self.members[which % len(self.members)]
            member._settle_at = 0.0
            for record in member.poll(0, max_records=3):
                place = record.partition, record.offset
                assert place not in self.committed, "a committed record came again"
                self.seen[place].append(record)
                self.in_hand[member].add(place)
            self.in_hand[member] = {
                place for place in self.in_hand[member] if ("topic", place[0]) in member.lag()
            }

    def commit(self, which: int) -> None:
        """Let one member commit what it polled."""
        if self.members:
            member = self.members[which % len(self.members)]
            member._settle_at = 0.0
            member._settle()
            held = {partition for _, partition in member.lag()}
            member.commit()
            self.committed |= {place for place in self.in_hand.pop(member, set()) if place[0] in held}

    def leave(self, which: int) -> None:
        """Close a member."""
        if self.members:
            member = self.members.pop(which % len(self.members))
            member.close()

    def die(self, which: int) -> None:
        """End a member without a word; its lease expires, the others' do not."""
        if self.members:
            membership = self.members.pop(which % len(self.members))._membership
            assert membership is not None
            membership._left.set()
            self.now += LEASE_SECONDS + 1
            for member in self.members:
                assert member._membership is not None
                member._membership.renew()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_at_least_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, int]]
) -> None:
    """Nothing is lost, nothing committed comes again, and each key's records first come in order."""
    group = Group(tmp_path_factory)
    for step, which in steps:
        getattr(group, step)(which)
    while group.members:
        group.die(0)
    group.join(0)
    while sum(group.members[0].lag().values()):
        group.poll(0)
    assert len(group.seen) == group.sent
    by_key: dict[str, list[int]] = defaultdict(list)
    for records in group.seen.values():
        by_key[records[0].key].append(int(records[0].value or b"-1"))
    for numbers in by_key.values():
        assert numbers == sorted(numbers)
    group.transport.close()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["join", "leave", "die"]), max_size=12))
def test_every_partition_has_one_reader(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[str]
) -> None:
    """After any membership changes, two rounds of polls leave each partition with exactly one live member."""
    group = Group(tmp_path_factory)
    group.join(0)
    for step in steps:
        getattr(group, step)(0)
        for which in [*range(len(group.members))] * 2:
            group.poll(which)
        if group.members:
            held = [partition for member in group.members for _, partition in member.lag()]
            assert sorted(held) == [0, 1, 2]
            sizes = [len(member.lag()) for member in group.members]
            assert max(sizes) - min(sizes) <= 1
    group.transport.close()
