"""A world in which whole commands live: one clock, one seed, servers, a network and disks."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import time
import warnings
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.cli import cli, exits, logs, service
from nsqtools.engine import cluster
from nsqtools.net.connection import Connection
from nsqtools.net.http import api
from nsqtools.sinks import repeats
from nsqtools.sinks.files import ages
from nsqtools.sinks.threads import Threads
from tests.simulation.clocks import WallClocks
from tests.simulation.loop import SimulatedLoop
from tests.simulation.outputs import PIPE, Pipe, SimulatedOutput
from tests.simulation.servers import Server, watch_channels
from tests.simulation.threads import SimulatedHook, threading_of
from tests.support.disk import Disk
from tests.support.processes import CURRENT, Killed, Process

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from nsqtools.engine.runner import RunOutcome


class ViolationError(AssertionError):
    """Something that must never happen has happened."""


class World:
    """One life. ``random`` gives a generator of its own to each purpose."""

    def __init__(
        self,
        seed: str,
        folder: Path,
        *,
        limit: float,
        ahead: float | None = None,
        talk: bool = False,
    ) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(self.random("network"), limit)
        self.loop.trouble = self._trouble  # type: ignore[method-assign]
        self.network = self.loop.network
        self.clocks = WallClocks(self.random, self.loop.time, ahead)
        self.disk = Disk(folder, self.random("disk"), self.loop.baton.pause, self.clocks.ns)
        rng = self.random("links")
        for host in ("host-0", "host-1"):
            if rng.random() < 0.25:
                self.disk.linkless[host] = rng.choice((errno.EPERM, errno.EOPNOTSUPP))
        self.servers: dict[str, Server] = {}
        self.commands: list[Command] = []
        self.events: list[str] = []
        self.wrong: list[str] = []
        self.tasks: dict[Process | None, list[asyncio.Task[Any]]] = {}
        self.max_in_flight: dict[Process | None, int] = {}
        """What the consumers of a process may have in flight together."""
        self._talk = talk
        self._pools: dict[Process | None, list[tuple[str, ThreadPoolExecutor]]] = {}
        """The threads of sinks, with their names."""
        self._urandom = self.random("ids")
        self.loop.set_task_factory(self._make_task)

    def random(self, purpose: str) -> Random:
        """The same numbers for the same seed and purpose."""
        return Random(f"{self.seed} {purpose}")

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.loop.time()

    def log(self, text: str) -> None:
        """Note an event."""
        line = f"{self.now:12.4f} {text}"
        self.events.append(line)
        if self._talk:
            print(line)

    def violated(self, text: str) -> None:
        """Note what must never happen; the life goes on to its end."""
        self.log(f"VIOLATION: {text}")
        self.wrong.append(text)

    def run(self, life: Coroutine[Any, Any, None]) -> None:
        """Live to the end; raises ViolationError."""
        with (
            pytest.MonkeyPatch.context() as patch,
            self._patched(patch),
            warnings.catch_warnings(),  # of what a killed process has not awaited
        ):
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                self.loop.run_until_complete(life)
            finally:
                self._close()
        time.tzset()
        if self.wrong:
            raise ViolationError(self.wrong[0])

    def kill(self, process: Process) -> None:
        """kill -9."""
        if process.alive:
            self.log(f"{process}: kill -9")
            process.end()

    async def within(self, process: Process, work: Coroutine[Any, Any, Any]) -> Any:
        """Await in a process what belongs to it."""
        return await process.context.run(self.loop.create_task, work)

    def server(self, name: str, **options: Any) -> Server:
        """An nsqd, which is not started yet."""
        self.servers[name] = Server(self, name, options)
        return self.servers[name]

    def command(self, name: str, host: str, argv: Sequence[str]) -> Command:
        """Start a command line on a host."""
        command = Command(self, name, host, argv)
        self.commands.append(command)
        return command

    def _here(self) -> str:
        """The host of the process that runs."""
        process = CURRENT.get()
        assert process
        return process.host

    def _make_task(self, loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        self.tasks.setdefault(CURRENT.get(), []).append(task)
        return task

    def tasks_of(self, process: Process) -> list[asyncio.Task[Any]]:
        """Its tasks that have not ended."""
        return [task for task in self.tasks.get(process, ()) if not task.done()]

    def _trouble(self, context: dict[str, Any]) -> None:
        process = CURRENT.get()
        if isinstance(context.get("exception"), Killed):
            return
        if process is None or process.alive:
            self.violated(f"{process}: {context.get('message')}: {context.get('exception')!r}")

    def _close(self) -> None:
        """End what is left, as with all processes dead: nothing of it has an effect."""
        left = [task for tasks in self.tasks.values() for task in tasks if not task.done()]
        for process in [*self.tasks, *(command.process for command in self.commands)]:
            if process:
                process.alive = False
        self.loop.baton.close()
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException):
                task.get_coro().close()
        self.disk.release()
        self.loop.close()

    @contextmanager
    def _patched(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        loop, baton = self.loop, self.loop.baton

        def replace(module: Any, name: str, simulated: Callable[..., Any]) -> None:
            """Not for other threads of this Python, such as those of earlier tests."""
            real = getattr(module, name)

            def call(*args: Any) -> Any:
                return (simulated if CURRENT.get() else real)(*args)

            patch.setattr(module, name, call)

        self.clocks.install(patch)
        replace(time, "time_ns", lambda: self.clocks.ns(self._here()))
        replace(time, "clock_gettime_ns", lambda _: self.clocks.uptime_ns(self._here()))
        replace(ages, "boot", lambda: self.clocks.boot(self._here()))
        for module in (time, api, cluster, repeats):
            replace(module, "monotonic", loop.time)
        replace(time, "sleep", lambda seconds: baton.wait(lambda: False, seconds))
        replace(os, "urandom", self._urandom.randbytes)
        patch.setattr(os, "_exit", self._exit)
        patch.setattr(asyncio, "run", self._run_main)
        patch.setattr(asyncio, "Runner", self._runner)
        patch.setattr(exits, "_write", lambda text: self._said(text))
        patch.setattr(logs, "configure", lambda *_, **__: None)
        patch.setattr(service, "tune_memory", lambda: None)
        patch.setattr(service, "_exit_code", partial(_judged, service._exit_code))
        patch.setattr("nsqtools.sinks.stdout.Output", SimulatedOutput)
        patch.setattr("nsqtools.sinks.http.assembly.Random", lambda: self.random("endpoints"))
        for name in ("consumer", "producer"):
            random = self.random(name)
            patch.setattr(f"nsqtools.engine.{name}.Random", lambda random=random: random)
        simulated = threading_of(baton)
        for name in ("hooks", "uploads", "aftercare", "journal"):
            patch.setattr(f"nsqtools.sinks.files.{name}.threading", simulated)
        for name in ("hooks", "uploads"):
            patch.setattr(f"nsqtools.sinks.files.{name}.monotonic", loop.time)
        patch.setattr("nsqtools.sinks.files.hooks.subprocess", SimulatedHook.module(self))
        patch.setattr("nsqtools.sinks.files.hooks.os.killpg", lambda *_: None)
        watch_channels(self, patch)
        self._watch_ready(patch)
        self._watch_threads(patch)
        self.disk.install(patch)
        handler = _Log(self)
        root = logging.getLogger("nsqtools")
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)

    def _watch_ready(self, patch: pytest.MonkeyPatch) -> None:
        """The RDY of all connections of a process together is at most its max_in_flight."""
        set_ready = Connection.set_ready
        known: dict[Process | None, list[Connection]] = {}

        def watched(connection: Connection, count: int) -> None:
            set_ready(connection, count)
            process = CURRENT.get()
            mine = [each for each in known.get(process, ()) if not each.is_lost]
            known[process] = [*mine, connection] if connection not in mine else mine
            total = sum(each.ready for each in known[process])
            if total > (most := self.max_in_flight.get(process, total)):
                self.violated(f"{process}: RDY {total} of at most {most}")

        patch.setattr(Connection, "set_ready", watched)

    def _watch_threads(self, patch: pytest.MonkeyPatch) -> None:
        """The threads of a sink's part are released by its close."""
        make = Threads.__init__

        def made(threads: Threads, count: int, name: str) -> None:
            make(threads, count, name)
            self._pools.setdefault(CURRENT.get(), []).append((name, threads._pool))

        patch.setattr(Threads, "__init__", made)

    def server_of(self, queue: Any) -> Server:
        """The nsqd that has this topic or channel."""
        return next(s for s in self.servers.values() if s.nsqd.broker is queue.broker)

    @contextmanager
    def _runner(self, **_: Any) -> Iterator[SimpleNamespace]:
        """asyncio.Runner."""
        yield SimpleNamespace(run=self._run_main)

    def _run_main(self, main: Coroutine[Any, Any, Any], **_: Any) -> Any:
        """asyncio.run, called in a thread of a command."""
        ended: list[asyncio.Task[Any]] = []
        process = CURRENT.get()
        assert process

        def end(task: asyncio.Task[Any]) -> None:
            ended.append(task)
            self.loop.baton.wake()

        def begin() -> None:
            self.loop.create_task(main).add_done_callback(end)

        self.loop.call_soon(begin)
        try:
            self.loop.baton.wait(lambda: bool(ended))
        except Killed:
            with suppress(BaseException):  # what it has begun has no loop any more
                main.close()
            raise
        if left := self.tasks_of(process):
            self.violated(f"{process}: left tasks: {left}")
        timers = self.loop.timers_of(process)
        # After a second signal, this timer outlives the run: asyncio.run then waits for threads.
        if timers := [each for each in timers if service._exit_at_once not in each._args]:
            self.violated(f"{process}: left timers: {timers}")
        if ends := self.network.ends_of(process):
            self.violated(f"{process}: left connections: {ends}")
        if names := [name for name, pool in self._pools.get(process, ()) if not pool._shutdown]:
            self.violated(f"{process}: left threads: {names}")
        if files := self.disk.files_of(process):
            self.violated(f"{process}: left files: {files}")
        return ended[0].result()

    def _exit(self, code: int) -> None:
        process = CURRENT.get()
        assert process
        for command in self.commands:
            if command.process is process:
                command.ended(code)
        process.end()
        raise Killed

    def _said(self, text: str) -> None:
        self.log(f"{CURRENT.get()} says: {text.rstrip()}")
        if "internal error" in text:
            self.violated(text.rstrip())


def _judged(judge: Callable[[RunOutcome], exits.Exit], outcome: RunOutcome) -> exits.Exit:
    """The exit code of a run; its process remembers the topics whose last messages failed.

    Those also that were not handled within the drain timeout.
    """
    if process := CURRENT.get():
        failing = [topic for topic, each in outcome.by_topic.items() if each.failing]
        process.failing = failing or list(outcome.by_topic) * bool(outcome.totals.abandoned)
    return judge(outcome)


class _Log(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get()
        if process is None or process.alive:
            error = f": {record.exc_info[1]!r}" if record.exc_info else ""
            level = record.levelname.lower()
            self._world.log(f"{process}: {level}: {record.getMessage()}{error}")


class Command:
    """A command line while it runs, and its exit code after that."""

    def __init__(self, world: World, name: str, host: str, argv: Sequence[str]) -> None:
        self.world = world
        self.argv = list(argv)
        self.process = Process(name, host)
        self.code: int | None = None
        self.is_ending = False
        """Whether it was asked to."""
        self.began = world.now
        self.output = Pipe(world)
        self.on_exit: Callable[[Command], None] = lambda command: None
        self.process.on_end.append(lambda: world.disk.unlock_all(self.process))
        self.process.context.run(PIPE.set, self.output)
        world.log(f"{name}: nsqtools {' '.join(self.argv)}")
        world.loop.outside(0.0, lambda: world.loop.baton.start(self.process, self._work))

    def signal(self, number: int) -> None:
        """Send a signal."""
        if not self.process.alive:
            return
        self.world.log(f"{self.process}: {signal.Signals(number).name}")
        handler = self.process.signals.get(number)
        if handler is None:
            self.world.kill(self.process)
        else:
            self.process.context.copy().run(handler)

    async def wait(self, within: float) -> None:
        """Until it has ended, at most so many seconds."""
        end = self.world.now + within
        while self.process.alive and self.world.now < end:
            await asyncio.sleep(0.05)

    def ended(self, code: int) -> None:
        """It exits."""
        self.code = code
        self.world.log(f"{self.process}: exit {code}")
        self.on_exit(self)

    def _work(self) -> None:
        try:
            code = exits._invoke(cli, self.argv)
        except Killed:
            raise
        except BaseException as error:
            code = exits._outcome(error)
        self.ended(int(code))
        self.process.end()
