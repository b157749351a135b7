"""``format("nsq")`` without Spark: a driver that plans batches, and executors that receive them.

All are processes of one host, whose disk has the staging, and run the functions that Spark would
call. The rest is what Spark does: it logs offsets and commits of batches, syncing neither, gives a
partition to another executor if its own is dead or hangs, and starts a query that has failed again.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import NSQError, OutputError
from nsqtools.spark.source.source import NsqPartition, NsqStreamReader
from nsqtools.spark.source.sourceoptions import parse_source
from nsqtools.spark.source.stagingreader import StagingReader
from nsqtools.spark.staging.partitions import Claim
from tests.simulation.lives import CHANNEL, PATIENCE, TOPIC, Life
from tests.support.processes import Process

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator

    from nsqtools.spark.staging.log import LogEntry
    from tests.simulation.plans import Fault, Plan
    from tests.simulation.world import World

    Part = tuple[str, int, int]
    """Stream, batch, and number of a partition."""

_DRIVER = 0
_RESTART = 3.0
_RECOGNISED = {
    *(
        "server restarts",
        "break",
        "kill",
        "kill at",
        "power",
        "disk full",
        "disk fails",
        "clock",
        "reply lost",
    ),
}
"""Faults after which what comes again is known to be staged. Others let it time out before."""


@dataclass(eq=False)
class Worker:
    """The driver, or an executor, which has one task at a time."""

    process: Process
    is_busy = False

    @property
    def name(self) -> str:
        """That of its process."""
        return self.process.name

    @property
    def runs(self) -> bool:
        """Whether it is neither dead nor hangs."""
        return self.process.alive and not self.process.stopped


@dataclass(slots=True, eq=False)
class Task:
    """An attempt of a partition: it ends with rows, or an error."""

    part: NsqPartition
    worker: Worker
    rows: list[bytes] | None = None
    error: str = ""


class StagingLife(Life):
    """A query that runs all the time; copy 0 is its driver, the others are executors."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, replace(plan, copies=max(2, plan.copies)))
        self.place = os.path.join(world.disk.make("host-0"), "staging")
        world.disk.linkless.clear()  # a staging on a disk without hard links is refused
        world.disk.slow["host-0"].append(self.random.choice((0.0, 0.002, 0.02)))
        given = {
            **dict(zip(plan.options[::2], plan.options[1::2], strict=True)),
            "subscribe": TOPIC,
            "channel": CHANNEL,
            "stagingLocation": self.place,
            "nsqd.tcp.addresses": ",".join(server.tcp for server in self.servers),
            "checkpointPath": "checkpoint",
        }
        self.settings = parse_source(given)
        self.logs: dict[str, dict[int, Any]] = {"offsets": {}, "commits": {}}
        """Spark's, by batch."""
        self.synced = {"offsets": 0, "commits": 0}
        self.rows: dict[Part, list[bytes]] = {}
        """What was read of each partition."""
        self.sink: dict[Part, list[bytes]] = {}
        self.all: list[Worker] = []
        self._owners: dict[tuple[str, int], str] = {}

    async def run(self) -> None:
        put = Claim._put

        def noted(claim: Claim, *args: Any) -> LogEntry:
            entry = put(claim, *args)
            owner = self._owners.setdefault((claim._log.path, entry.number), entry.attempt)
            if owner != entry.attempt:
                self.world.violated(f"{claim._log.path}/{entry.name}: of two attempts")
            return entry

        def sync_log(checkpoint: str, log: str) -> None:
            self.synced[log] = max(self.logs[log], default=0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("nsqtools.spark.source.source.sync_log", sync_log)
            patch.setattr(Claim, "_put", noted)
            await super().run()

    def host(self, number: int) -> str:
        return "host-0"

    def start(self, number: int) -> Any:
        worker = Worker(Process(f"executor-{number}" if number else "driver", "host-0"))
        worker.process.on_end.append(lambda: self.world.disk.unlock_all(worker.process))
        self.commands[number] = worker  # type: ignore[assignment]
        self.all.append(worker)
        self.world.log(f"{worker.name}: starts")
        if number == _DRIVER:
            self._begin(worker, lambda: self._drive(worker))

    def _begin(self, worker: Worker, work: Callable[[], None]) -> None:
        self.world.loop.outside(0.0, lambda: self.world.loop.baton.start(worker.process, work))

    # Of Spark

    def _drive(self, worker: Worker) -> None:
        try:
            self._query()
        except NSQError as error:
            self.world.log(f"driver: {error}")
        except Exception as error:
            self.world.violated(f"driver: {error!r}")
        worker.process.end()
        self.world.loop.outside(_RESTART, self.again, _DRIVER)

    def _query(self) -> None:
        """Until it fails, or another driver is faster."""
        reader = NsqStreamReader(self.settings)
        start = reader.initialOffset()
        offsets, commits = self.logs["offsets"], self.logs["commits"]
        done = max(offsets, default=0)
        if done not in commits:
            done = max(0, done - 1)
        start = offsets.get(done, start)
        while not self.over:
            if not (end := offsets.get(done + 1)):
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end == start:
                    continue
                self._log("offsets", done + 1, end)
                if done:
                    reader.commit(start)
            self.sink |= self._run(reader.partitions(start, end))
            done, start = done + 1, end
            self._log("commits", done, True)

    def _log(self, name: str, batch: int, content: object) -> None:
        if batch in self.logs[name]:
            raise OutputError(f"batch {batch} is in {name} already")
        self.logs[name][batch] = content

    def _run(self, parts: Iterable[Any]) -> dict[Part, list[bytes]]:
        """The rows of the partitions, each from the first attempt that succeeds."""
        waiting, running, rows = list(parts), set[Task](), {}
        while waiting or running:
            for worker in [w for w in self.all if w.name != "driver" and w.runs and not w.is_busy]:
                if waiting:
                    running.add(self._start_task(waiting.pop(0), worker))
            self.world.loop.baton.wait(
                lambda: any(t.rows is not None or t.error for t in running), 1.0
            )
            for task in [t for t in running if t.error or t.rows is not None or not t.worker.runs]:
                running.remove(task)
                if task.error:
                    raise OutputError(f"a task has failed: {task.error}")
                if task.rows is None:
                    waiting.append(task.part)
                else:
                    rows[_key(task.part)] = task.rows
        return rows

    def _start_task(self, part: NsqPartition, worker: Worker) -> Task:
        task = Task(part, worker)
        worker.is_busy = True

        def work() -> None:
            try:
                read = NsqStreamReader(self.settings).read(part)
                rows = [body for batch in read for body in batch.column("body").to_pylist()]
            except NSQError as error:
                task.error = str(error)
            except Exception as error:
                self.world.violated(f"{worker.process}: {error!r}")
                task.error = repr(error)
            else:
                task.rows = rows
                if rows != self.rows.setdefault(_key(part), rows):
                    self.world.violated(f"{_key(part)}: other rows than before")
            worker.is_busy = False
            self.world.loop.baton.wake()

        self._begin(worker, work)
        return task

    # Faults

    def fault_worker_stops(self, fault: Fault) -> Any:
        return self.hang(self.commands[fault.which % self.plan.copies])

    async def fault_replaced(self, fault: Fault) -> None:
        """It hangs, and goes on beside the one that has replaced it."""
        number = fault.which % self.plan.copies
        go_on = self.hang(self.commands[number])
        await asyncio.sleep(fault.lasts)
        if go_on:
            self.start(number)
            await asyncio.sleep(fault.how * 10)
            go_on()

    def fault_power(self, fault: Fault) -> Any:
        back = super().fault_power(fault)
        for worker in self.all:  # also those that were replaced
            self.world.kill(worker.process)
        if fault.how < 0.5:
            for name, log in self.logs.items():
                self.logs[name] = {n: log[n] for n in log if n <= self.synced[name]}
        self._check_finished()
        return back

    # The end

    async def watch(self) -> None:
        """A batch takes what was planned, so nsqds wait for each other."""

    async def connect(self) -> None:
        """Wait until the last batch is committed."""
        end = self.world.now + PATIENCE
        while self.logs["offsets"].keys() - self.logs["commits"].keys() and self.world.now < end:
            await asyncio.sleep(1)

    async def finish(self) -> None:
        self._check_finished()
        self.compare()

    def check_doubles(self, arrived: Counter[bytes]) -> None:
        """A message that is staged is recognised when it comes again, unless it timed out."""
        if {fault.kind for fault in self.plan.faults} <= _RECOGNISED and arrived.total() > len(
            arrived
        ):
            self.world.violated(f"{arrived.total() - len(arrived)} messages came again")
        super().check_doubles(arrived)

    @property
    def in_flight(self) -> int:
        """Of all connections of an executor."""
        options = self.plan.options
        return int(options[options.index("maxInFlight") + 1])

    @property
    def msg_timeout(self) -> float:
        options = self.plan.options
        return float(options[options.index("nsq.msg_timeout") + 1].rstrip("s"))

    def _check_finished(self) -> None:
        """What nsqd has finished is in the sink or in the staging."""
        there = set(self.arrived())
        for server in self.servers:
            if lost := set(server.finishes.get((TOPIC, CHANNEL), ())) - there:
                self.world.violated(f"{len(lost)} finished messages are nowhere")

    def arrived(self) -> Iterator[bytes]:
        for rows in self.sink.values():
            yield from rows
        reader = StagingReader(self.place)
        for part in reader.partitions():
            if _key(part) not in self.sink:
                for batch in reader.read(part):
                    yield from batch.column("body").to_pylist()


def _key(part: Any) -> Part:
    batch = getattr(part, "offset", part)
    return batch.stream, batch.batch, part.number
