"""A model of all who use a staging: any interleaving, lost and late requests, kills, time-outs.

Whatever was finished in nsqd is in a partition that was sealed before the commit of its batch, or
kept as unread; only what was requeued before it was staged may be there twice.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqtools.errors import OutputError
from nsqtools.spark.staging.ledger import Ledger
from nsqtools.spark.staging.log import HEADER, EntryKind, PartitionLog, StaleError
from nsqtools.spark.staging.partitions import Sealed
from tests.support.ledgers import (
    STREAM,
    Actor,
    Connection,
    Memory,
    Nsqd,
    Overtaken,
    ids,
    planned,
    pull,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqtools.spark.source.plans import BatchPlan

_ENTRY = re.compile(r".*/b(\d+)/p(\d+)/\d+")
_TRIES = 4


class World:
    """Drivers and attempts at one checkpoint, one staging and one channel of nsqd.

    Of batches in ``partial`` Spark commits the first partition alone.
    """

    def __init__(
        self, partitions: int = 2, partial: frozenset[int] = frozenset(), total: int = 8
    ) -> None:
        self.store = Memory()
        self.store.created = self.created
        self.total = total
        self.nsqd = Nsqd(total)
        self.partitions = partitions
        self.partial = partial
        self.offsets: dict[int, BatchPlan] = {}
        self.commits: set[int] = set()
        self.sealed: dict[tuple[int, int], list[int]] = {}
        self.doubtful: set[int] = set()
        self.actors: list[Actor] = []
        self.clients: dict[Actor, Memory] = {}
        self.connections: list[Connection] = []

    def created(self, path: str, data: bytes) -> None:
        """Note what a partition has when it is sealed."""
        match = _ENTRY.fullmatch(path)
        if match and json.loads(data[:HEADER])["kind"] == "seal":
            batch, k = map(int, match.groups())
            if f"{STREAM}/done-{batch:010d}" not in self.store.content:
                assert (batch, k) not in self.sealed
                self.sealed[batch, k] = self.staged(path.rpartition("/")[0])

    def staged(self, log: str) -> list[int]:
        """The messages in the segments of a log, in order."""
        data = [
            self.store.content[f"{log}/{entry.name}"][HEADER:]
            for entry in PartitionLog(Memory(self.store), log).read_on()
            if entry.kind is EntryKind.SEGMENT
        ]
        return [int(each, 16) for each in re.findall(rb"[0-9a-f]{16}", b"".join(data))]

    def start(self, work: Callable[[Memory], None]) -> Actor:
        client = Memory(self.store)

        def run(stall: Callable[[], None]) -> None:
            client.stall = stall
            work(client)

        actor = Actor(run)
        self.clients[actor] = client
        self.actors.append(actor)
        return actor

    def start_attempt(self, batch: int, k: int) -> Actor:
        return self.start(lambda client: self.attempt(client, batch, k))

    def drive(self, client: Memory) -> None:
        """As Spark does, until nothing is waiting."""
        ledger = Ledger(client, STREAM)
        while True:
            done = max(self.commits, default=0)
            ledger.clean(done)
            batch = done + 1
            if batch not in self.offsets:
                staged = ledger.prepared(batch)
                if not (staged or self.nsqd.waiting):
                    return
                plan = staged or planned(batch, self.partitions)
                ledger.prepare(plan)
                if batch in self.offsets:
                    raise Overtaken
                self.offsets[batch] = plan
            ledger.expect(self.offsets[batch].offset)
            for k in range(1 if batch in self.partial else self.partitions):
                self.task(client, batch, k)
            if batch in self.commits:
                raise Overtaken
            self.commits.add(batch)

    def task(self, client: Memory, batch: int, k: int) -> None:
        for left in reversed(range(_TRIES)):
            try:
                return self.attempt(client, batch, k)
            except StaleError:
                raise
            except OutputError:
                if not left:
                    raise
        return None

    def attempt(self, client: Memory, batch: int, k: int) -> None:
        plan = self.offsets[batch]
        held = Ledger(client, STREAM).claim(plan.offset, k, plan.tasks[k])
        if not isinstance(held, Sealed):
            connection = Connection(self.nsqd)
            self.connections.append(connection)
            try:
                held = pull(held, connection, plan.tasks[k][0].count, client.stall)
            except OutputError:
                self.requeue(*connection.held())
                raise
        assert ids(held) == self.sealed[batch, k]

    def requeue(self, *numbers: int) -> None:
        for each in numbers:
            name = b"%016x" % each
            if not any(name in data for data in self.store.content.values()):
                self.doubtful.add(each)
            self.nsqd.requeue(each)

    def move(self, what: str, number: int) -> None:
        alive = [actor for actor in self.actors if actor.alive]
        actor = alive[number % len(alive)] if alive else None
        newest = max(self.offsets, default=0)
        match what:
            case "driver" if len(alive) < 5:
                self.start(self.drive)
            case "attempt" if newest and len(alive) < 5:
                before, k = divmod(number, self.partitions)
                self.start_attempt(max(1, newest - before % 2), k)
            case "arrive":
                self.store.arrive(number)
            case "time out" if self.nsqd.in_flight:
                self.requeue(sorted(self.nsqd.in_flight)[number % len(self.nsqd.in_flight)])
            case "drop" if self.connections:
                self.connections[-1 - number % len(self.connections)].lost = True
            case "kill" if actor:
                actor.kill()
            case "lost" | "late" if actor:
                self.clients[actor].fate = what
            case "end" if actor:
                actor.step()
            case "step" if actor:
                actor.step(1 + number)

    def finish(self) -> None:
        """Whoever was left works to the end, but not before another driver has."""
        for late in ([], self.actors):
            for actor in late:
                actor.step()
            while self.store.late and self.actors:
                self.store.arrive(0)
            self.requeue(*self.nsqd.in_flight)
            self.drive(Memory(self.store))
        self.drive(Memory(self.store))

    def check(self) -> None:
        assert sorted(self.nsqd.finished) == list(range(self.total))
        rows = [
            (each, batch)
            for (batch, _), numbers in self.sealed.items()
            if batch in self.commits
            for each in numbers
        ]
        found = Counter(each for each, _ in rows)
        for each, copies in found.items():
            # Twice only in one batch: nobody puts anything to a batch that was committed.
            batches = {batch for number, batch in rows if number == each}
            assert copies == 1 or (each in self.doubtful and len(batches) == 1 < self.partitions)
        left = {int(path.split("/")[1][1:]) for path in self.store.content if "/b0" in path}
        unread: set[int] = set()
        for batch in left:
            assert f"{STREAM}/unread-{batch:010d}" in self.store.content
            logs = (f"{STREAM}/b{batch:010d}/p{k:05d}" for k in range(self.partitions))
            open_logs = [log for k, log in enumerate(logs) if (batch, k) not in self.sealed]
            assert any(map(self.staged, open_logs))
            unread.update(*map(self.staged, open_logs))
        assert set(range(self.total)) <= set(found) | unread


moves = st.tuples(
    st.sampled_from(
        [
            *("step",) * 8,
            *("end", "driver", "attempt", "attempt", "kill", "lost", "late", "arrive"),
            *("time out", "time out", "drop"),
        ]
    ),
    st.integers(0, 30),
)


@given(
    st.lists(moves, max_size=40),
    st.integers(1, 3),
    st.frozensets(st.integers(1, 3), max_size=2),
    st.integers(1, 8),
)
@settings(max_examples=400)
def test_any_interleaving_loses_nothing(
    turns: list[tuple[str, int]], partitions: int, partial: frozenset[int], total: int
) -> None:
    world = World(partitions, partial, total)
    world.move("driver", 0)
    for what, number in turns:
        world.move(what, number)
    world.finish()
    world.check()


@pytest.mark.parametrize(
    ("first", "second", "partial"),
    [
        ("driver", "driver", False),
        ("attempt", "driver", False),
        ("attempt", "attempt", False),
        ("attempt", "driver", True),
        ("driver", "attempt", True),
    ],
)
def test_two_may_be_stopped_anywhere(first: str, second: str, partial: bool, full: bool) -> None:
    """One stops, another stops, the first one goes on to its end, and then the second."""
    stride = 7 if full else 29
    for stop in count():
        for then in count(stop % stride, stride):
            world = World(2, frozenset([1] if partial else []), total=4)
            start = world.start(world.drive)
            while not world.offsets:
                start.step(1)
            start.kill()
            one, two = (
                world.start(world.drive) if each == "driver" else world.start_attempt(1, 1)
                for each in (first, second)
            )
            one.step(stop)
            stopped = one.alive
            two.step(then)
            all_stops_tried = not two.alive
            one.step()
            two.step()
            world.finish()
            world.check()
            if all_stops_tried:
                break
        if not stopped:
            assert stop > 20
            return
