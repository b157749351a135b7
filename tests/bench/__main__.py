"""Starts a real nsqd and prints how nsqtools compares with the Go tools, as ratios.

Each pair runs in turn, A B A B, so that a machine that slows down slows both. Ratios are medians.
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

from tests.support.binaries import require_nsq
from tests.support.servers import Nsqd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BODY = b"x" * 200
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
    argv: Sequence[str], messages: int, *, stdin: Path | None = None, to_pipe: bool = False
) -> Run:
    """Run a command to its end; its output goes through a pipe to ``cat``, or nowhere."""
    with open(stdin or os.devnull, "rb") as source, open(os.devnull, "wb") as null:
        started = time.perf_counter()
        process = subprocess.Popen(
            argv,
            stdin=source,
            stdout=subprocess.PIPE if to_pipe else null,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
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


def consume(nsqd: Nsqd, messages: int, argv: Sequence[str], *, to_pipe: bool = True) -> Run:
    """Fill a topic and run a consumer of it; TOPIC in argv stands for its name."""
    with filled(nsqd, messages) as topic:
        return measure(
            [topic if word == "TOPIC" else word for word in argv], messages, to_pipe=to_pipe
        )


def compare(
    title: str, ours: Callable[[], Run], theirs: Callable[[], Run], rounds: int, other: str
) -> list[Run]:
    """Run both in turn and print a line; returns our runs."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    ratios = [a.rate / b.rate for a, b in pairs]
    mine = [a for a, _ in pairs]

    def middle(values: Iterator[float]) -> float:
        return statistics.median(values)

    print(
        f"{title:<28} {middle(a.rate for a, _ in pairs):>9,.0f}/s "
        f"{middle(a.cpu_per_message for a, _ in pairs):6.2f} us "
        f"{max(a.memory for a, _ in pairs):5.0f} MiB   "
        f"{other:<14} {middle(b.rate for _, b in pairs):>9,.0f}/s "
        f"{middle(b.cpu_per_message for _, b in pairs):6.2f} us "
        f"{max(b.memory for _, b in pairs):5.0f} MiB   "
        f"ratio {statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )
    return mine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("-n", type=int, default=300_000, help="messages of 200 bytes per run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long", type=int, default=0, help="also tail this many, for its memory")
    args = parser.parse_args()
    n, rounds = args.n, args.rounds
    nsq = require_nsq()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Nsqd(Path(scratch, "nsqd"), "-mem-queue-size=10000000") as nsqd,
    ):
        lines = Path(scratch, "lines")
        lines.write_bytes((BODY + b"\n") * n)
        fewer = Path(scratch, "fewer")
        fewer.write_bytes((BODY + b"\n") * (n // 4))
        python, address = sys.executable, str(nsqd.tcp)
        at = ["--nsqd-tcp-address", address]
        tail = [python, "-m", "nsqtools", "tail", "--topic", "TOPIC", "--channel", "bench", *at]
        pub = [python, "-m", "nsqtools", "pub", "--topic", "benchpub#ephemeral", *at]
        drain = [python, "-m", "tests.bench.drain"]

        print(f"{n:,} messages of {len(BODY)} bytes, medians of {rounds} rounds, whole processes")
        compare(
            "tail",
            lambda: consume(nsqd, n, [*tail, "-n", str(n)]),
            lambda: consume(
                nsqd,
                n,
                [nsq.path("nsq_tail"), *tail[4:], "-n", str(n)],
            ),
            rounds,
            "nsq_tail",
        )
        compare(
            "tail --snappy",
            lambda: consume(nsqd, n, [*tail, "-n", str(n), "--snappy"]),
            lambda: consume(nsqd, n, [*tail, "-n", str(n)]),
            rounds,
            "tail",
        )
        compare(
            "pub",
            lambda: measure(pub, n, stdin=lines),
            lambda: measure(
                [nsq.path("to_nsq"), "--topic", "benchpub#ephemeral", *at], n // 4, stdin=fewer
            ),
            rounds,
            "to_nsq",
        )
        compare(
            "Consumer, empty handler",
            lambda: consume(nsqd, n, [*drain, "consumer", address, "TOPIC", str(n)]),
            lambda: consume(nsqd, n, [*drain, "socket", address, "TOPIC", str(n)]),
            rounds,
            "raw socket",
        )
        compare(
            "nsqtools --version (starts)",
            lambda: measure([python, "-m", "nsqtools", "--version"], 1),
            lambda: measure([python, "-c", "import click"], 1),
            rounds * 7,
            "import click",
        )
        compare(
            "nsqtools --help (starts)",
            lambda: measure([python, "-m", "nsqtools", "--help"], 1),
            lambda: measure([python, "-c", "import click"], 1),
            rounds * 7,
            "import click",
        )
        if args.long:
            run = consume(nsqd, args.long, [*tail, "-n", str(args.long)])
            print(f"tail of {args.long:,} messages: {run.memory:.0f} MiB at most")


if __name__ == "__main__":
    main()
