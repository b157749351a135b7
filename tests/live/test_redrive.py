"""``redrive`` as a process on a real nsqd: killed, limited, chosen, and beside a writer."""

import asyncio
import json
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from nsqtools.sinks.deadletters import ToDirectory
from nsqtools.sinks.redrive.redriver import LARGEST_LOT
from tests.support.archiving import batch
from tests.support.eventually import eventually
from tests.support.process import Cli
from tests.support.servers import Nsqd, at, at_both

KILLS = 5


def write(folder: Path, topic: str, numbers: range, reason: str = "answered 500") -> None:
    """Dead letters as to-http writes them."""

    async def append() -> None:
        letters = ToDirectory(str(folder))
        await letters.open()
        given = batch(*(b'{"n":%d}' % number for number in numbers), topic=topic)
        await letters.write(given, given, reason)
        await letters.close()

    asyncio.run(append())


def arrived(cli: Cli, nsqd: Nsqd, topic: str) -> Counter[int]:
    """The numbers of all messages on the channel c."""
    count = nsqd.channel(topic, "c")["depth"]
    tailed = cli("tail", "--topic", topic, "--channel", "c", "--count", str(count), *at(nsqd))
    assert tailed.code == 0, tailed.stderr
    return Counter(json.loads(line)["n"] for line in tailed.stdout.splitlines())


def kill_five_times(cli: Cli, nsqd: Nsqd, topic: str, count: int, command: tuple[str, ...]) -> None:
    """Run it, and kill -9 it at moments drawn by chance, until a last run ends by itself."""
    moments = sorted(random.sample(range(count // 10, count * 9 // 10), KILLS))
    for moment in moments:
        process = cli.start(*command)
        eventually(lambda moment=moment: nsqd.channel(topic, "c")["depth"] >= moment)  # type: ignore[misc]
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    ended = cli(*command)
    assert (ended.code, ended.stderr) == (0, "")


def check(found: Counter[int], count: int) -> None:
    """All have arrived, and at most a lot for each kill twice."""
    doubles = found.total() - count
    print(f"{count} dead letters, {KILLS} kills, {doubles} doubles")
    assert set(found) == set(range(count))
    assert doubles <= KILLS * LARGEST_LOT


@pytest.mark.parametrize("source", ["directory", "topic"])
def test_killed_five_times_it_loses_nothing_and_doubles_at_most_a_lot_each_time(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, source: str, full: bool
) -> None:
    count = 100_000 if full else 2_000
    nsqd.create(topic, "c")
    where: tuple[str, ...] = ("--from-dir", str(tmp_path / "dead"))
    if source == "directory":
        for start in range(0, count, count // 4):
            write(tmp_path / "dead", topic, range(start, start + count // 4))
    else:
        # What a killed process has in flight waits for the message timeout.
        where = ("--from-topic", f"{topic}.dead", "--max-in-flight", "200", "--msg-timeout", "2s")
        for start in range(0, count, 1000):
            nsqd.publish(f"{topic}.dead", [b'{"n":%d}' % n for n in range(start, start + 1000)])
    rate = str(count // 5)
    kill_five_times(
        nsqtools_cli, nsqd, topic, count, ("redrive", *where, "--rate", rate, *at_both(nsqd))
    )
    check(arrived(nsqtools_cli, nsqd, topic), count)
