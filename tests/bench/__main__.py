"""Starts a real nsqd and prints how nsqtools compares with the Go tools, as ratios.

Each pair runs in turn, A B A B, so that a machine that slows down slows both. Ratios are medians.
A TAB press that takes longer than its bound makes the exit status 1.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from nsqtools.cli.exits import COMPLETE
from nsqtools.cli.tab import LINE
from tests.support.binaries import require_nsq
from tests.support.servers import Nsqd, at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.support.binaries import Nsq

BODY = b"x" * 200
SLOWEST_TAB = 1.6  # of the time to start Python and import click
FILE = """\
default_profile = "here"
[defaults]
log-format = "json"
[tail]
max-in-flight = 500
[profile.here]
lookupd-http-address = ["127.0.0.1:4161"]
"""
_numbers = count()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a whole process; ``cpu`` in seconds, ``memory`` in MiB."""

    messages: int
    seconds: float
    cpu: float
    memory: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_per_message(self) -> float:
        """Microseconds."""
        return self.cpu / self.messages * 1e6


# Users' Pythons keep compiled modules.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


class _Peak(threading.Thread):
    """Watches a process's peak memory; rusage would count what its parent had when it forked."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{pid}/status")
        self._ended = threading.Event()
        self.mebibytes = 0.0

    def run(self) -> None:
        while not self._ended.wait(0.02):
            for line in self._status.read_text().splitlines():
                if line.startswith("VmHWM"):
                    self.mebibytes = int(line.split()[1]) / 1024

    def end(self) -> float:
        self._ended.set()
        self.join()
        return self.mebibytes


def measure(
    argv: Sequence[str],
    messages: int,
    *,
    stdin: Path | None = None,
    to_pipe: bool = False,
    env: Mapping[str, str] | None = None,
) -> Run:
    """Run a command to its end; its output goes through a pipe to ``cat``, or nowhere."""
    with open(stdin or os.devnull, "rb") as source, open(os.devnull, "wb") as null:
        started = time.perf_counter()
        process = subprocess.Popen(
            argv,
            stdin=source,
            stdout=subprocess.PIPE if to_pipe else null,
            stderr=subprocess.DEVNULL,
            env={**_ENVIRONMENT, **(env or {})},
        )
        peak = _Peak(process.pid)
        peak.start()
        reader = subprocess.Popen(["cat"], stdin=process.stdout, stdout=null) if to_pipe else None
        if process.stdout:
            process.stdout.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        seconds = time.perf_counter() - started
        memory = peak.end()
        _, status, usage = os.wait4(process.pid, 0)
        if reader:
            reader.wait()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{argv[0]} ended with {process.returncode}")
    return Run(messages, seconds, usage.ru_utime + usage.ru_stime, memory)


@contextmanager
def filled(nsqd: Nsqd, messages: int) -> Iterator[str]:
    """A topic whose channel ``bench`` holds this many messages."""
    topic = f"bench{next(_numbers)}"
    nsqd.create(topic, "bench")
    for _ in range(messages // 10_000):
        nsqd.publish(topic, [BODY] * 10_000)
    yield topic
    nsqd.delete(topic)


def consume(nsqd: Nsqd, messages: int, argv: Sequence[str]) -> Run:
    """Fill a topic and run a consumer of it into a pipe; TOPIC in argv stands for its name."""
    with filled(nsqd, messages) as topic:
        words = [topic if word == "TOPIC" else word for word in argv]
        return measure(words, messages, to_pipe=True)


@dataclass(frozen=True, slots=True)
class Side:
    """One of two programs."""

    name: str
    run: Callable[[], Run]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two programs at the same work; ``rounds`` multiplies how often.

    ``slowest`` is the most time that ours may take, in times of theirs.
    """

    ours: Side
    theirs: Side
    rounds: int = 1
    slowest: float | None = None


def compare(pair: Pair, rounds: int) -> bool:
    """Run both in turn and print a line; whether ours is fast enough."""
    runs = [(pair.ours.run(), pair.theirs.run()) for _ in range(rounds * pair.rounds)]
    rates = [ours.rate / theirs.rate for ours, theirs in runs]
    quantity, ratios, bound, kept = "rate", rates, "", True
    if pair.slowest is not None:
        quantity, ratios = "time", [1 / rate for rate in rates]
        kept = statistics.median(ratios) <= pair.slowest
        bound = f", at most {pair.slowest:.2f}{'' if kept else ': TOO SLOW'}"
    ours, theirs = zip(*runs, strict=True)
    print(
        f"{pair.ours.name:<32} {_show(ours)}   {pair.theirs.name:<12} {_show(theirs)}   "
        f"{quantity} {statistics.median(ratios):5.2f} times "
        f"({min(ratios):.2f} to {max(ratios):.2f}){bound}",
        flush=True,
    )
    return kept


def _show(runs: Sequence[Run]) -> str:
    rate = statistics.median(run.rate for run in runs)
    cpu = statistics.median(run.cpu_per_message for run in runs)
    return f"{rate:>9,.0f}/s {cpu:9.2f} us CPU {max(run.memory for run in runs):3.0f} MiB"


def pairs(nsqd: Nsqd, nsq: Nsq, n: int, scratch: Path) -> list[Pair]:
    """What is compared, in order."""
    lines, fewer = scratch / "lines", scratch / "fewer"
    for path, number in (lines, n), (fewer, n // 4):
        path.write_bytes((BODY + b"\n") * number)
    python, address = sys.executable, str(nsqd.tcp)
    consumed = ["--topic", "TOPIC", "--channel", "bench", "-n", str(n)]
    consumed += ["--nsqd-tcp-address", address]
    published = ["--topic", "benchpub#ephemeral", "--nsqd-tcp-address", address]
    tail = [python, "-m", "nsqtools", "tail", *consumed]
    pub = [python, "-m", "nsqtools", "pub", *published]
    to_nsq = [nsq.path("to_nsq"), *published]
    drain = [python, "-m", "tests.bench.drain"]
    click = Side("import click", lambda: measure([python, "-c", "import click"], 1))

    def start(flag: str) -> Side:
        return Side(f"nsqtools {flag}", lambda: measure([python, "-m", "nsqtools", flag], 1))

    file = scratch / "config.toml"
    file.write_text(FILE)

    def tab(line: str) -> Pair:
        env = {COMPLETE: "bash_complete", LINE: f"nsqtools {line}", "NSQTOOLS_CONFIG": str(file)}
        side = Side(f"{line}<TAB>", lambda: measure([python, "-m", "nsqtools"], 1, env=env))
        return Pair(side, click, rounds=7, slowest=SLOWEST_TAB)

    def consuming(name: str, argv: Sequence[str]) -> Side:
        return Side(name, lambda: consume(nsqd, n, argv))

    return [
        Pair(consuming("tail", tail), consuming("nsq_tail", [nsq.path("nsq_tail"), *consumed])),
        Pair(consuming("tail --snappy", [*tail, "--snappy"]), consuming("tail", tail)),
        Pair(
            Side("pub", lambda: measure(pub, n, stdin=lines)),
            Side("to_nsq", lambda: measure(to_nsq, n // 4, stdin=fewer)),
        ),
        Pair(
            consuming("Consumer", [*drain, "consumer", address, "TOPIC", str(n)]),
            consuming("raw socket", [*drain, "socket", address, "TOPIC", str(n)]),
        ),
        Pair(start("--version"), click, rounds=7),
        Pair(start("--help"), click, rounds=7),
        tab("ta"),
        tab("tail --mo"),
        tab("tail --profile "),
        tab("config show tail --max"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("-n", type=int, default=300_000, help="messages of 200 bytes per run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long", type=int, default=0, help="also tail this many, for its memory")
    args = parser.parse_args()
    nsq = require_nsq()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Nsqd(Path(scratch, "nsqd"), "-mem-queue-size=10000000") as nsqd,
    ):
        print(f"{args.n:,} messages of {len(BODY)} bytes, medians of {args.rounds} rounds")
        kept = [compare(pair, args.rounds) for pair in pairs(nsqd, nsq, args.n, Path(scratch))]
        if args.long:
            argv = [sys.executable, "-m", "nsqtools", "tail", "--topic", "TOPIC"]
            argv += ["--channel", "bench", "-n", str(args.long), *at(nsqd)]
            run = consume(nsqd, args.long, argv)
            print(f"tail of {args.long:,} messages: {run.memory:.0f} MiB at most")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
