"""A command that consumes a topic of its own, as a process whose failures pass fast."""

import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.support.eventually import eventually
from tests.support.process import Cli, Result
from tests.support.servers import Nsqd, at, drained, empty

QUICK = (
    *("--consumer-opt", "default_requeue_delay,10ms", "--consumer-opt", "backoff_multiplier,10ms"),
    *("--consumer-opt", "max_backoff_duration,50ms", "--consumer-opt", "reconnect_delay,100ms"),
)


def make_known(nsqd: Nsqd, *topics: str) -> None:
    """Create channel ``c`` of each topic, and have nsqd look at these channels from now on.

    A real one notices new channels every 5 s only, and before that nothing in them times out or
    is deferred for less; but what its disk has it knows at its start. The sandbox forgets all.
    """
    for topic in topics:
        nsqd.create(topic, "c")
    nsqd.restart()
    for topic in topics:
        nsqd.create(topic, "c")


def run_beside(
    cli: Cli, ours: Sequence[str], theirs: Sequence[str], nsqd: Nsqd, topic: str, **options: Any
) -> None:
    """Run a command and the Go program that it is like until ``py`` and ``go`` are drained."""
    process = cli.start(*ours, **options)
    with subprocess.Popen(theirs, stderr=subprocess.DEVNULL) as program:
        try:
            eventually(lambda: all(drained(nsqd, topic, channel) for channel in ("go", "py")))
            for each in (process, program):
                each.terminate()
                assert each.wait(100) == 0
        finally:
            program.kill()


@dataclass(frozen=True, slots=True)
class Consuming:
    """A topic with channel ``c``, and the command ``name`` that consumes it."""

    name: ClassVar[str]
    cli: Cli
    nsqd: Nsqd
    topic: str
    folder: Path

    def create(self) -> None:
        self.nsqd.create(self.topic, "c")

    def make_known(self) -> None:
        make_known(self.nsqd, self.topic)

    def publish(self, bodies: Iterable[bytes]) -> None:
        self.nsqd.publish(self.topic, bodies)

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def usual(self) -> tuple[str, ...]:
        """Options that it always has."""
        return ()

    def command(self, *options: str) -> tuple[str, ...]:
        """A command line without a source."""
        topic = ("--topic", self.topic, "--channel", "c")
        return (self.name, *topic, *self.usual(), *options)

    def start(
        self,
        *options: str,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        **more: Any,
    ) -> "Running":
        """Start the command; ``more`` is Popen's. Its stderr goes to the file ``log``."""
        log = log or self.folder / f"{self.name}.log"
        with log.open("ab") as stderr:
            process = self.cli.start(
                *self.command(*options, *at(self.nsqd)),
                env={**self.environment, **(env or {})},
                **{"stderr": stderr, **more},
            )
        return Running(process, log, self)

    def run(self, *options: str, timeout: float = 200.0) -> Result:
        """Run the command until the channel is empty."""
        line = self.command(*options, *empty(self.nsqd))
        return self.cli(*line, env=self.environment, timeout=timeout)

    def take(self, count: int, *options: str) -> Result:
        """Run the command for so many messages."""
        command = self.command("--count", str(count), *options, *at(self.nsqd))
        return self.cli(*command, env=self.environment)

    def channel(self) -> dict[str, Any]:
        """The channel's entry in ``/stats``."""
        return self.nsqd.channel(self.topic, "c")

    def depth(self) -> int:
        depth: int = self.channel()["depth"]
        return depth

    @property
    def held(self) -> int:
        """How many messages the channel has that are not finished."""
        channel = self.channel()
        return sum(channel[name] for name in ("depth", "in_flight_count", "deferred_count"))

    @property
    def is_drained(self) -> bool:
        return drained(self.nsqd, self.topic, "c")


@dataclass(frozen=True, slots=True)
class Running:
    """A command that runs."""

    process: subprocess.Popen[bytes]
    log: Path
    of: Consuming

    @property
    def said(self) -> str:
        """Its stderr up to now."""
        return self.log.read_text()

    def says(self, text: str) -> None:
        """Wait for a text on stderr."""
        eventually(lambda: text in self.said)

    def connect(self) -> None:
        """Wait until it has subscribed."""
        self._runs_until(lambda: self.of.channel()["client_count"])

    def drain(self, timeout: float = 100.0) -> None:
        """Wait until all that was published is finished, and it has come to see that."""
        self._runs_until(lambda: self.of.channel()["client_count"] and self.of.is_drained, timeout)

    def _runs_until(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        eventually(lambda: self.process.poll() is not None or condition(), timeout)
        assert self.process.poll() is None, self.said

    def kill(self) -> None:
        """Return when nsqd has seen it: what it sends to the dead comes again after a minute."""
        clients = self.of.channel()["client_count"]
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL, self.said
        eventually(lambda: self.of.channel()["client_count"] < max(clients, 1))

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(100)

    def finish(self, timeout: float = 100.0) -> None:
        """Drain, and end with exit code 0."""
        self.drain(timeout)
        assert self.end() == 0, self.said
