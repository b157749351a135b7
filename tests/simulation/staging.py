"""``format("nsq")`` without Spark: a driver that plans batches, and executors that receive them.

All of them are processes of one host, whose disk has the staging. They run the functions that Spark
would call; this is what Spark itself does: it logs the offsets and commits of batches, syncing
neither, gives each partition to an executor, again where that is dead or hangs, and a few times
where it fails, and starts a query anew that has failed. An executor that hung goes on.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import NSQError, OutputError
from nsqtools.spark.source.source import NsqPartition, NsqStreamReader
from nsqtools.spark.source.sourceoptions import parse_source
from nsqtools.spark.source.stagingreader import StagingReader
from nsqtools.spark.staging.partitions import Claim
from tests.simulation.lives import CHANNEL, PATIENCE, TOPIC, Life
from tests.simulation.processes import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nsqtools.spark.staging.log import LogEntry
    from tests.simulation.plans import Fault, Plan
    from tests.simulation.world import World

    Part = tuple[str, int, int]
    """Stream, batch, and number of a partition."""

_DRIVER = 0
_TRIES = 4
_MISSED = 5.0
"""Seconds after which an executor that does not run is taken for dead."""
_RESTART = 3.0
_RECOGNISED = {
    *("server restarts", "break", "garbage", "kill", "kill at", "power"),
    *("disk full", "disk fails", "clock", "lookupd stops", "lookupd restarts"),
}
"""Faults after which what comes again is known to be staged. Others let it time out before."""


@dataclass(slots=True, eq=False)
class Worker:
    """The driver or an executor; ``task`` is what an executor does."""

    process: Process
    task: Task | None = None
    is_ending = False

    @property
    def name(self) -> str:
        """That of its process."""
        return self.process.name


@dataclass(slots=True, eq=False)
class Task:
    """An attempt of a partition, on an executor."""

    partition: NsqPartition
    worker: Worker
    seen: float
    error: Exception | None = None
    rows: list[bytes] | None = field(default=None)


class StagingLife(Life):
    """A query that runs all the time; copy 0 is its driver, the others are executors."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, replace(plan, copies=max(2, plan.copies)))
        self.place = os.path.join(world.disk.make("host-0"), "staging")
        servers = {"nsqd.tcp.addresses": ",".join(server.tcp for server in self.servers)}
        if self.lookupds:
            addresses = ",".join(f"{each.name}:4161" for each in self.lookupds)
            servers = {"nsqlookupd.http.addresses": addresses}
        given = dict(zip(plan.options[::2], plan.options[1::2], strict=True))
        given |= {"subscribe": TOPIC, "channel": CHANNEL, "stagingLocation": self.place}
        self.settings = parse_source({**given, **servers, "checkpointPath": "checkpoint"})
        self.offsets: dict[int, dict[str, Any]] = {}
        """Spark's log of them, and that of commits."""
        self.commits: set[int] = set()
        self.synced = {"offsets": 0, "commits": 0}
        self.rows: dict[Part, list[bytes]] = {}
        """What was read of each partition."""
        self.sink: dict[Part, list[bytes]] = {}
        self._owners: dict[tuple[str, int], str] = {}
        self._workers: dict[int, Worker] = {}
        self.commands = self._workers  # type: ignore[assignment]

    async def run(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("nsqtools.spark.source.source.sync_log", self._sync)
            put = Claim._put

            def noted(claim: Claim, *args: Any) -> LogEntry:
                entry = put(claim, *args)
                owner = self._owners.setdefault((claim._log.path, entry.number), entry.attempt)
                if owner != entry.attempt:
                    self.world.violated(f"{claim._log.path}/{entry.name}: of two attempts")
                return entry

            patch.setattr(Claim, "_put", noted)
            await super().run()

    def host(self, number: int) -> str:
        return "host-0"

    def start(self, number: int) -> Any:
        name = f"executor-{number}" if number else "driver"
        worker = Worker(Process(name, self.host(number)))
        worker.process.on_end.append(lambda: self.world.disk.unlock_all(worker.process))
        self._workers[number] = worker
        self.world.log(f"{name}: starts")
        if number == _DRIVER:
            self._begin(worker, lambda: self._drive(worker))
        return worker

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
        if worker is self._workers[_DRIVER]:
            self.world.loop.outside(_RESTART, self.again, _DRIVER)

    def _query(self) -> None:
        """Until it fails, or another driver is faster."""
        reader = NsqStreamReader(self.settings)
        start = reader.initialOffset()
        done = max(self.offsets, default=0)
        if done not in self.commits and done:
            done -= 1
        start = self.offsets.get(done, start)
        while not self.over:
            if not (end := self.offsets.get(done + 1)):
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end == start:
                    continue
                if done + 1 in self.offsets:
                    raise OutputError("the offset is logged already")
                self.offsets[done + 1] = end
                if done:
                    reader.commit(start)
            rows = self._run(reader.partitions(start, end))
            self.sink |= rows
            if done + 1 in self.commits:
                raise OutputError("the batch is committed already")
            done, start = done + 1, end
            self.commits.add(done)

    def _run(self, partitions: Iterable[Any]) -> dict[Part, list[bytes]]:
        """The rows of the partitions, each from the first attempt that succeeds."""
        waiting = [(partition, _TRIES) for partition in partitions]
        running: dict[Task, int] = {}
        rows: dict[Part, list[bytes]] = {}
        while waiting or running:
            for worker in self._workers.values() if waiting else ():
                if waiting and self._is_idle(worker):
                    partition, tries = waiting.pop(0)
                    running[self._start_task(partition, worker)] = tries
            before = len(rows)
            self.world.loop.baton.wait(lambda: any(map(_is_over, running)), 1.0)
            for task, tries in list(running.items()):
                process = task.worker.process
                if task.rows is not None:
                    rows[_part(task.partition)] = task.rows
                elif not task.error and process.alive and not self._is_missed(task):
                    continue
                elif task.error and tries == 1:
                    raise OutputError(f"a task has failed {_TRIES} times: {task.error}")
                else:
                    waiting.append((task.partition, tries - bool(task.error)))
                del running[task]
        return rows

    def _is_idle(self, worker: Worker) -> bool:
        is_executor = worker is not self._workers[_DRIVER]
        process = worker.process
        return is_executor and not worker.task and process.alive and not process.stopped

    def _is_missed(self, task: Task) -> bool:
        if not task.worker.process.stopped:
            task.seen = self.world.now
        return self.world.now - task.seen > _MISSED

    def _start_task(self, partition: NsqPartition, worker: Worker) -> Task:
        worker.task = task = Task(partition, worker, self.world.now)

        def work() -> None:
            rows: list[bytes] = []
            try:
                for batch in NsqStreamReader(self.settings).read(partition):
                    rows += batch.column("body").to_pylist()
            except NSQError as error:
                self.world.log(f"{worker.process}: {error}")
                task.error = error
            except Exception as error:
                self.world.violated(f"{worker.process}: {error!r}")
                task.error = error
            else:
                task.rows = rows
                if rows != self.rows.setdefault(_part(partition), rows):
                    self.world.violated(f"{_part(partition)}: other rows than before")
            worker.task = None
            self.world.loop.baton.wake()

        self._begin(worker, work)
        return task

    def _sync(self, checkpoint: str, log: str) -> None:
        of: Iterable[int] = self.offsets if log == "offsets" else self.commits
        self.synced[log] = max(of, default=0)

    # Faults

    def fault_worker_stops(self, fault: Fault) -> Any:
        worker = self._workers[fault.which % self.plan.copies]
        return self.hang(worker)

    async def fault_replaced(self, fault: Fault) -> None:
        """It hangs, and goes on beside the one that has replaced it."""
        number = fault.which % self.plan.copies
        go_on = self.hang(self._workers[number])
        await asyncio.sleep(fault.lasts)
        if go_on:
            self.start(number)
            await asyncio.sleep(fault.how * 10)
            go_on()

    def fault_power(self, fault: Fault) -> Any:
        back = super().fault_power(fault)
        keep = self.random.random() < 0.5
        for number in [n for n in self.offsets if n > self.synced["offsets"] and not keep]:
            del self.offsets[number]
        self.commits &= {n for n in self.commits if n <= self.synced["commits"] or keep}
        self._check_finished()
        return back

    # The end

    async def watch(self) -> None:
        """Batches take what they have planned, one after the other."""

    async def connect(self) -> None:
        """Wait until the last batch is committed."""
        end = self.world.now + PATIENCE
        while max(self.offsets, default=0) not in {0, *self.commits}:
            if self.world.now > end:
                self.world.violated("the last batch is never committed")
                return
            await asyncio.sleep(1)

    @property
    def is_once(self) -> bool:
        return {fault.kind for fault in self.plan.faults} <= _RECOGNISED

    async def finish(self) -> None:
        self._check_finished()
        self.compare()

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
        for each in reader.partitions():
            if (each.stream, each.batch, each.number) not in self.sink:  # type: ignore[attr-defined]
                for batch in reader.read(each):
                    yield from batch.column("body").to_pylist()


def _part(partition: NsqPartition) -> Part:
    return partition.stream, partition.batch, partition.number


def _is_over(task: Task) -> bool:
    return task.rows is not None or task.error is not None
