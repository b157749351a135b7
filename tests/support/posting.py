"""``to-http`` as a process whose failures pass fast, and what it leaves as dead letters."""

from __future__ import annotations

import itertools
import json
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.binaries import expect_nsq
from tests.support.eventually import eventually
from tests.support.servers import Nsqd, SandboxNsqd, at, drained, empty

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.support.process import Cli, Result

DIRECT = {"http_proxy": "", "https_proxy": "", "all_proxy": ""}
"""Environment in which there is no proxy."""

QUICK = tuple(
    word
    for text in (
        "default_requeue_delay,10ms",
        "backoff_multiplier,10ms",
        "max_backoff_duration,50ms",
        "reconnect_delay,100ms",
    )
    for word in ("--consumer-opt", text)
)


@dataclass(frozen=True, slots=True)
class Posting:
    """A topic of its own with channel ``c``, and the command that delivers it."""

    cli: Cli
    nsqd: Nsqd
    topic: str
    folder: Path

    def publish(self, bodies: Iterable[bytes]) -> None:
        self.nsqd.publish(self.topic, bodies)

    def numbers(self, count: int) -> None:
        """Publish the numbers below ``count``."""
        self.publish(b"%d" % number for number in range(count))

    def command(self, *options: str) -> tuple[str, ...]:
        """A command line without a source."""
        return ("to-http", "--topic", self.topic, "--channel", "c", *QUICK, *options)

    def start(self, *options: str, env: Mapping[str, str] | None = None) -> Poster:
        """Start the command, without a proxy unless ``env`` says so."""
        log = self.folder / "to-http.log"
        with log.open("wb") as stderr:
            process = self.cli.start(
                *self.command(*options, *at(self.nsqd)),
                env={**DIRECT, **(env or {})},
                stderr=stderr,
            )
        return Poster(process, log, self)

    def run(self, *options: str, env: Mapping[str, str] | None = None) -> Result:
        """Run the command until the channel is empty."""
        command = self.command(*options, *empty(self.nsqd))
        return self.cli(*command, env={**DIRECT, **(env or {})})

    def channel(self) -> dict[str, Any]:
        """The channel's entry in ``/stats``."""
        return self.nsqd.channel(self.topic, "c")

    @property
    def is_drained(self) -> bool:
        return drained(self.nsqd, self.topic, "c")

    def dead_after(self, attempts: int) -> tuple[str, ...]:
        """Options that make dead letters after so many attempts; 0 is never."""
        limit = ("--max-attempts", str(attempts)) if attempts else ()
        return (*limit, "--dead-letter-dir", str(self.folder / "dead"))

    def dead_letters(self) -> list[dict[str, Any]]:
        """All of them, by their bodies."""
        files = (self.folder / "dead").glob("*.dead.jsonl")
        lines = [line for path in files for line in path.read_text().splitlines()]
        found: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return sorted(found, key=lambda letter: str(letter.get("body")))


@dataclass(frozen=True, slots=True)
class Poster:
    """A ``to-http`` that runs."""

    process: subprocess.Popen[bytes]
    log: Path
    posting: Posting

    @property
    def said(self) -> str:
        """Its stderr up to now."""
        return self.log.read_text()

    def says(self, text: str) -> None:
        """Wait for a text on stderr."""
        eventually(lambda: text in self.said)

    def drain(self, timeout: float = 20.0) -> None:
        """Wait until all that was published is finished, and it has come to see that."""

        def is_done() -> bool:
            connected = self.posting.channel()["client_count"] > 0
            return self.process.poll() is not None or (connected and self.posting.is_drained)

        eventually(is_done, timeout)
        assert self.process.poll() is None, self.said

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(40)

    def finish(self, timeout: float = 20.0) -> None:
        """Drain, and end with exit code 0."""
        self.drain(timeout)
        assert self.end() == 0, self.said


class Pool:
    """An nsqd with channels that it has known for long; ``take`` gives each of them once.

    The real one notices new channels every 5 s only, and before that nothing in them times out or
    is deferred for less.
    """

    def __init__(self, nsqd: Nsqd, size: int) -> None:
        self.nsqd = nsqd
        for number in range(size):
            nsqd.create(f"topic{number}", "c")
        self._numbers = itertools.count()
        probe = self.take()
        nsqd.request("POST", "/pub", b"late", topic=probe, defer=1)
        eventually(lambda: nsqd.channel(probe, "c")["depth"], timeout=20)

    def take(self) -> str:
        """A topic that nobody used, with a channel ``c``."""
        topic = f"topic{next(self._numbers)}"
        self.nsqd.channel(topic, "c")
        return topic


@contextmanager
def pool(folder: Path, size: int, *args: str) -> Iterator[Pool]:
    """A pool on a real nsqd that looks at all of its channels ten times a second.

    Where there is none it is the sandbox's: what endpoints do need not be seen with both.
    """
    real = expect_nsq(build=True)
    scan = f"-queue-scan-selection-count={size}"
    with Nsqd(folder, scan, *args) if real else SandboxNsqd(folder, *args) as nsqd:
        yield Pool(nsqd, size)
