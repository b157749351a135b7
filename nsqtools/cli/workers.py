"""Several processes for one command: each runs it with its share of the limits.

A worker starts with the command line of the run. The parent asks for metrics through the worker's
standard input, a pipe: it reaches EOF when the parent dies. The worker answers on standard output.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections import defaultdict, deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.service import Signals, supervised
from nsqtools.errors import ConfigError
from nsqtools.metrics import Metric, Sample
from nsqtools.names import listening_address
from nsqtools.net.systemd import Notifier
from nsqtools.tasks import end

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Callable, Iterable

    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.config.consuming import MetricsOptions, StopOptions
    from nsqtools.config.http import HttpOptions

log = logging.getLogger(__name__)

_VARIABLE = "_NSQTOOLS_WORKER"
_READY = b"ready\n"
_METRICS = b"metrics\n"
_LONGEST_ANSWER = 64 << 20
_ANSWER_TIMEOUT = 5.0

# After more deaths within the period (seconds), replacing workers would not help.
_MAX_DEATHS = 5
_DEATHS_PERIOD = 60.0

_BY_SEVERITY = (Exit.DONE, Exit.PARTIAL, Exit.FAILURE, Exit.UNREACHABLE, Exit.LOCKED, Exit.USAGE)


class Worker(Notifier):
    """This process as a worker of a run: it notifies the parent instead of systemd."""

    def __init__(self, number: int, count: int) -> None:
        super().__init__({})
        self.number = number
        self.count = count

    @classmethod
    def find(cls) -> Worker | None:
        """Return this process as a worker; None if it is not a worker.

        Removes the variable from the environment: child processes must not inherit it.
        """
        if not (found := os.environ.pop(_VARIABLE, "")):
            return None
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # to log from the background
        return cls(*map(int, found.split("/")))

    def share(self, total: int) -> int:
        """Return this worker's part of a limit."""
        return total // self.count + (self.number < total % self.count)

    def ready(self) -> None:
        """Report the start of a topic's consumer to the parent."""
        self._tell(_READY)

    @asynccontextmanager
    async def attached(self, collect: Callable[[], Iterable[Metric]]) -> AsyncIterator[None]:
        """Answer the parent, and stop once the parent has ended."""
        answering = asyncio.get_running_loop().create_task(self._answer(collect))
        try:
            yield
        finally:
            await end((answering,))

    async def _answer(self, collect: Callable[[], Iterable[Metric]]) -> None:
        requests = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(requests)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while await requests.readline():
            self._tell(json.dumps(list(collect())).encode() + b"\n")
        log.warning("worker %d: the parent process has ended: stopping", self.number)
        os.kill(os.getpid(), signal.SIGTERM)

    def _tell(self, line: bytes) -> None:
        with suppress(BrokenPipeError):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


def check_shares(http: HttpOptions, config: ConsumerConfig, stop: StopOptions) -> None:
    """Raise ConfigError if limits cannot be shared among the workers."""
    if stop.count:
        raise ConfigError("--workers cannot share --count: omit it, or give --workers 1")
    for flag, value in (
        ("--concurrency", http.concurrency),
        ("--max-in-flight", config.max_in_flight),
    ):
        if value < http.workers:
            raise ConfigError(
                f"--workers {http.workers} is above {flag} {value}: give at most {value} workers"
            )


async def run_workers(count: int, metrics: MetricsOptions, *, endless: bool) -> None:
    """Run this command in workers until all have ended, and pass signals on to them.

    The first worker must reach a server before the others start, to report a failure at the start
    only once. Killed workers are replaced. If the run is ``endless``, a worker that has failed ends
    the others. Raises Ended for every exit code but 0.
    """
    crew = _Crew(count, endless=endless)
    signals = Signals(crew.stop, crew.stop, "nsqd delivers the messages in flight again")
    address = listening_address(metrics.metrics_address)
    async with supervised(crew.notifier, crew.status, address, crew.metrics):
        worst = await crew.run()
    if code := signals.exit_code(worst):
        raise Ended(code)


class _Crew:
    """The workers of a run."""

    def __init__(self, count: int, *, endless: bool) -> None:
        self.notifier = Notifier()
        self._count = count
        self._endless = endless
        self._processes: dict[int, Process] = {}
        self._answers: dict[int, asyncio.Future[list[Any]]] = {}
        self._reached = asyncio.Event()
        self._deaths: deque[float] = deque(maxlen=_MAX_DEATHS)
        self._asking = asyncio.Lock()
        self._stop = asyncio.Event()

    def status(self) -> str:
        """The status for systemd."""
        return f"{len(self._processes)} of {self._count} workers"

    def stop(self) -> None:
        """Tell all workers to stop; a second call ends them at once."""
        self._stop.set()
        self.notifier.stopping()
        for process in self._processes.values():
            _terminate(process)

    async def run(self) -> int:
        """Return the worst exit code of the workers."""
        loop = asyncio.get_running_loop()
        keeping = [loop.create_task(self._keep(0))]
        reaching = loop.create_task(self._reached.wait())
        try:
            await asyncio.wait((keeping[0], reaching), return_when=asyncio.FIRST_COMPLETED)
            if self._reached.is_set():
                self.notifier.ready()
                keeping += [loop.create_task(self._keep(n)) for n in range(1, self._count)]
            return max(await asyncio.gather(*keeping), key=_BY_SEVERITY.index)
        finally:
            await end((reaching, *keeping))

    async def _keep(self, number: int) -> int:
        """Keep a worker running, replaced if killed; returns the exit code of its normal end."""
        while not self._stop.is_set():
            code = await self._run_one(number)
            if code >= 0:
                if self._endless and code not in (Exit.DONE, Exit.PARTIAL):
                    self.stop()
                return code if code in _BY_SEVERITY else Exit.FAILURE
            cause = signal.Signals(-code).name
            if self._stop.is_set():
                return Exit.DONE if -code == signal.SIGTERM else Exit.FAILURE
            if not self._may_replace(asyncio.get_running_loop().time()):
                log.error(
                    "worker %d was killed by %s: stopping, as too many workers were killed",
                    number,
                    cause,
                )
                self.stop()
                return Exit.FAILURE
            log.warning("worker %d was killed by %s: starting another one", number, cause)
        return Exit.DONE

    def _may_replace(self, now: float) -> bool:
        full = len(self._deaths) == _MAX_DEATHS
        allowed = not full or now - self._deaths[0] > _DEATHS_PERIOD
        self._deaths.append(now)
        return allowed

    async def _run_one(self, number: int) -> int:
        """Run a worker; returns its exit code, or the negative number of a signal."""
        environment = {**os.environ, _VARIABLE: f"{number}/{self._count}"}
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            environment.pop(name, None)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *sys.orig_argv[1:],
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_ANSWER,
            # Signals to the parent's group reach workers only through the parent. uvloop knows no
            # process_group.
            preexec_fn=os.setpgrp,
        )
        self._processes[number] = process
        try:
            if self._stop.is_set():
                _terminate(process)
            await self._listen(number, process)
            return await process.wait()
        finally:
            del self._processes[number]

    async def _listen(self, number: int, process: Process) -> None:
        """Read the lines of a worker until it has ended."""
        assert process.stdout
        async for line in process.stdout:
            if line == _READY:
                self._reached.set()
            elif answer := self._answers.pop(number, None):
                answer.set_result(json.loads(line))

    async def metrics(self) -> list[Metric]:
        """The metrics of all answering workers; a label has the number of the worker."""
        async with self._asking:
            for number, process in self._processes.items():
                assert process.stdin
                process.stdin.write(_METRICS)
                self._answers[number] = asyncio.get_running_loop().create_future()
            answers = dict(self._answers)
            if answers:
                await asyncio.wait(answers.values(), timeout=_ANSWER_TIMEOUT)
            self._answers.clear()
        found: dict[str, Metric] = {}
        samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for number, answer in answers.items():
            for name, kind, text, values in answer.result() if answer.done() else ():
                found[name] = Metric(name, kind, text, samples[name])
                for labels, value in values:
                    samples[name].append(Sample({**labels, "worker": str(number)}, value))
        return list(found.values())


def _terminate(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
