"""``redrive`` as a process on a real nsqd: killed, limited, chosen, and beside a writer."""

import asyncio
import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from nsqtools.cli import cli, exits
from nsqtools.redrive.redriver import LARGEST_LOT
from nsqtools.sinks.deadletters import ToDirectory
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


@pytest.mark.parametrize(
    "source",
    ["directory", pytest.param("topic", marks=pytest.mark.full("kills are lives, too"))],
)
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


def left(nsqd: Nsqd, dead: str) -> int:
    """The number of messages in the channel of redrive."""
    channel = nsqd.channel(dead, "redrive")
    return sum(channel[name] for name in ("depth", "deferred_count", "in_flight_count"))


def test_what_is_not_chosen_stays_in_the_channel_for_the_next_run(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    """The last message is one that failed again: it is newer than the run."""
    dead = f"{topic}.dead"
    nsqd.create(topic, "c")
    nsqd.publish(dead, [b'{"n":%d}' % n for n in range(500)])
    command = ("redrive", "--from-topic", dead, "-v", *at_both(nsqd))
    plan = nsqtools_cli(*command, "--where", ".n < 100", "--dry-run")
    assert (plan.code, plan.stdout) == (0, f"{topic}\t-\t100\n".encode()), plan.stderr
    for where, staying in ((".n < 100", 400), (".n < 300", 200), ("true", 0)):
        ended = nsqtools_cli(*command, "--where", where)
        assert ended.code == 0, ended.stderr
        assert left(nsqd, dead) == staying
    assert arrived(nsqtools_cli, nsqd, topic) == Counter(range(500))


def test_what_is_older_is_so_by_the_clock_of_nsqd(
    nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the clock of this host, which is a year behind."""
    now, year = time.time_ns, 365 * 86_400 * 10**9
    monkeypatch.setattr("time.time_ns", lambda: now() - year)
    nsqd.create(topic, "c")
    nsqd.publish(f"{topic}.dead", [b"%d" % number for number in range(50)])
    assert exits.run(cli, ["redrive", "--from-topic", f"{topic}.dead", *at_both(nsqd)]) == 0
    assert (nsqd.channel(topic, "c")["depth"], left(nsqd, f"{topic}.dead")) == (50, 0)


def test_a_channel_that_misses_the_messages_is_not_created_and_a_paused_one_is_refused(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(f"{topic}.dead", "archive")
    command = ("redrive", "--from-topic", f"{topic}.dead", *at_both(nsqd))
    nsqd.request("POST", "/channel/pause", topic=f"{topic}.dead", channel="archive")
    ended = nsqtools_cli(*command, "--channel", "archive")
    assert (ended.code, "is paused" in ended.stderr) == (1, True), ended.stderr
    ended = nsqtools_cli(*command)
    assert (ended.code, "--channel: archive" in ended.stderr) == (1, True), ended.stderr
    assert [each["channel_name"] for each in nsqd.topic(f"{topic}.dead")["channels"]] == ["archive"]


def test_a_second_run_on_a_directory_is_refused_and_a_signal_ends_the_first(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic, "c")
    write(tmp_path, topic, range(1000))
    command = ("redrive", "--from-dir", str(tmp_path), "--topic", topic, *at(nsqd))
    first = nsqtools_cli.start(*command, "--rate", "1")
    eventually(lambda: nsqd.channel(topic, "c")["depth"])
    assert nsqtools_cli(*command).code == 75
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    late = nsqtools_cli(*command, "--rate", "1", "--max-duration", "1s")
    assert (late.code, "--max-duration" in late.stderr) == (4, True), late.stderr
    ended = nsqtools_cli(*command)
    assert (ended.code, ended.stderr) == (0, "")
    assert arrived(nsqtools_cli, nsqd, topic) == Counter(range(1000))
