"""Runs whole processes, A B A B, and prints how they compare."""

import os
import re
import select
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path

from tests.support.servers import Nsqd, at

BODY = b"x" * 200
_LOOK = 0.02
"""Seconds between looks at nsqd, which cost both sides the same."""
_numbers = count()

# Users' Pythons keep compiled modules.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a process with its workers; ``cpu`` in seconds, ``memory`` in MiB."""

    messages: int
    seconds: float
    cpu: float
    memory: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


def peak_of(pid: int) -> float:
    """MiB of a process that runs; rusage would count what its parent had when it forked."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def workers_of(pid: int) -> list[int]:
    """The children of a process."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def spent(pid: int) -> float:
    """Seconds of CPU time of a process that runs."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def measure(
    argv: Sequence[str],
    messages: int,
    *,
    stdin: Path | None = None,
    to_pipe: bool = False,
    env: Mapping[str, str] | None = None,
    is_done: Callable[[], bool] | None = None,
) -> Run:
    """Run a command to its end, or until it is done, and does not have to say goodbye.

    Its output goes through a pipe to ``cat``, or nowhere.
    """
    with open(stdin or os.devnull, "rb") as source, open(os.devnull, "wb") as null:
        started = time.perf_counter()
        process = subprocess.Popen(
            argv,
            stdin=source,
            stdout=subprocess.PIPE if to_pipe else null,
            stderr=subprocess.DEVNULL,
            env={**ENVIRONMENT, **(env or {})},
        )
        reader = subprocess.Popen(["cat"], stdin=process.stdout, stdout=null) if to_pipe else None
        if process.stdout:
            process.stdout.close()
        ended, memory, workers = os.pidfd_open(process.pid), 0.0, list[int]()
        while not select.select([ended], [], [], _LOOK)[0]:
            workers = workers_of(process.pid)
            memory = max(memory, sum(map(peak_of, (process.pid, *workers))))
            if is_done and is_done():
                break
        seconds = time.perf_counter() - started
        cpu = sum(map(spent, workers)) if is_done else 0.0
        for pid in (process.pid, *(workers if is_done else ())):  # they would begin another worker
            os.kill(pid, signal.SIGKILL)
        os.close(ended)
        _, status, usage = os.wait4(process.pid, 0)
        if reader:
            reader.wait()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != (-signal.SIGKILL if is_done else 0):
        raise RuntimeError(f"{argv[0]} ended with {process.returncode}")
    return Run(messages, seconds, cpu + usage.ru_utime + usage.ru_stime, memory)


@contextmanager
def filled(nsqd: Nsqd, messages: int, bodies: Sequence[bytes] = (BODY,)) -> Iterator[str]:
    """A topic whose channel ``bench`` holds this many messages, these bodies over and over."""
    topic = f"bench{next(_numbers)}"
    nsqd.create(topic, "bench")
    nsqd.publish(topic, islice(cycle(bodies), messages))
    yield topic
    nsqd.delete(topic)


def drain(
    nsqd: Nsqd,
    messages: int,
    argv: Sequence[str],
    *,
    bodies: Sequence[bytes] = (BODY,),
    settled: bool = False,
) -> Run:
    """Run a consumer of a full topic until none waits, or, ``settled``, all are finished."""
    with filled(nsqd, messages, bodies) as topic:

        def is_done() -> bool:
            channel = nsqd.channel(topic, "bench")
            return not (channel["depth"] or (settled and channel["in_flight_count"]))

        words = [*argv, "--topic", topic, "--channel", "bench", *at(nsqd)]
        return measure(words, messages, is_done=is_done)


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
    cpu = statistics.median(run.cpu / run.messages * 1e6 for run in runs)
    return f"{rate:>9,.0f}/s {cpu:9.2f} us CPU {max(run.memory for run in runs):3.0f} MiB"
