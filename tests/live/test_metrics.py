"""Metrics of commands that run on real servers."""

from __future__ import annotations

import re
import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.metrics import scrape
from tests.support.servers import at, drained

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.metrics import Values
    from tests.support.process import Cli
    from tests.support.servers import Nsqd

TAKEN = ("messages_received_total", "received_bytes_total", "messages_finished_total")
NOW = ("messages_in_flight", "connections", "connections_opened_total")
ARCHIVED = ("archive_files_total", "archive_records_total", "archive_bytes_total")


class Measured:
    """A command that serves its metrics at a free port."""

    def __init__(self, cli: Cli, folder: Path, *args: str) -> None:
        log = folder / "stderr"
        with log.open("wb") as stderr:
            self.process = cli.start(*args, "-v", "--metrics-address", ":0", stderr=stderr)
        self.url = eventually(lambda: _url(log.read_text()))

    def all(self) -> Values:
        return scrape(self.url)

    def values(self, names: Sequence[str], *labels: str) -> list[float]:
        """Values of one set of labels, given in order of their names."""
        found = self.all()
        return [found[f"nsqtools_{name}", *labels] for name in names]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


def _url(log: str) -> str:
    found = re.search(
        r"^nsqtools: info: metrics are at (http://127\.0\.0\.1:\d+/metrics)$", log, re.M
    )
    return found[1] if found else ""


def test_counters_of_tail_are_those_of_its_topics_and_outlive_nsqd(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    other = f"{topic}.other"
    tail = Measured(
        *(nsqtools_cli, tmp_path, "tail", "--topic", topic, "--topic", other, "--channel", "c"),
        *("--consumer-opt", "reconnect_delay,100ms", *at(nsqd)),
    )
    eventually(lambda: tail.values(NOW, "c", other) == [0, 1, 1])
    nsqd.publish(topic, [b"12345"] * 10)
    eventually(lambda: tail.values(TAKEN, "c", topic) == [10, 50, 10])
    assert tail.values(TAKEN, "c", other) == [0, 0, 0]
    nsqd.restart()
    eventually(lambda: tail.values(NOW, "c", topic) == [0, 1, 2])
    nsqd.publish(topic, [b"1"] * 5)
    eventually(lambda: tail.values(TAKEN, "c", topic) == [15, 55, 15])
    assert tail.end() == 0


def test_to_file_counts_what_it_publishes(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic, "c")
    archiver = Measured(
        *(nsqtools_cli, tmp_path, "to-file", "--topic", topic, "--channel", "c", *at(nsqd)),
        *("--output-dir", str(tmp_path), "--sync-interval", "100ms"),
    )
    nsqd.publish(topic, [b"123"] * 5)
    eventually(lambda: archiver.values(TAKEN, "c", topic) == [5, 15, 5])
    assert archiver.values(ARCHIVED, topic) == [0, 0, 0]
    archiver.process.send_signal(signal.SIGHUP)
    eventually(lambda: archiver.values(ARCHIVED, topic) == [1, 5, 20])
    assert archiver.values(["archive_write_failures_total"], topic) == [0]
    assert archiver.end() == 0


def test_metrics_are_there_until_the_last_message_is_safe(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    """A pipe that nobody reads keeps the messages in flight while it drains."""
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x" * 10_000] * 1000)

    def late_messages_wait() -> bool:
        nsqd.publish(topic, [b"late"])
        return bool(nsqd.channel(topic, "c")["depth"])

    read, write = socket.socketpair()
    with read, write, (tmp_path / "stderr").open("wb") as stderr:
        process = nsqtools_cli.start(
            *("tail", "--topic", topic, "--channel", "c", "--drain-timeout", "60s", *at(nsqd)),
            *("-v", "--metrics-address", ":0"),
            stdout=write,
            stderr=stderr,
        )
        write.close()
        url = eventually(lambda: _url((tmp_path / "stderr").read_text()))
        in_flight = "nsqtools_messages_in_flight", "c", topic
        eventually(lambda: scrape(url)[in_flight] > 100)
        process.terminate()
        eventually(late_messages_wait)
        assert scrape(url)[in_flight] > 100
        while read.recv(1 << 20):
            pass
        assert process.wait(20) == 0
    with pytest.raises(ConnectionError):
        scrape(url)


@pytest.mark.parametrize("command", ["tail", "to-file"])
def test_an_address_that_is_taken_is_one_line_and_nothing_is_taken_or_touched(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, command: str
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x"])
    before = sorted(tmp_path.iterdir())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = nsqtools_cli(
            *(command, "--topic", topic, "--channel", "c", *at(nsqd)),
            *("--metrics-address", address),
        )
    assert (ended.code, ended.stdout) == (2, b"")
    assert ended.stderr == (
        f"nsqtools: --metrics-address: cannot listen on {address}: address already in use; "
        "give another address, or port 0 for a free one\n"
    )
    assert sorted(tmp_path.iterdir()) == before
    channel = nsqd.channel(topic, "c")
    assert (channel["depth"], channel["requeue_count"]) == (1, 0)


def test_a_scraper_that_stays_connected_does_not_keep_a_command_from_ending(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    tail = Measured(nsqtools_cli, tmp_path, "tail", "--topic", topic, *at(nsqd))
    port = int(tail.url.split(":")[2].partition("/")[0])
    with (
        socket.create_connection(("127.0.0.1", port)) as idle,
        socket.create_connection(("127.0.0.1", port)) as slow,
    ):
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        tail.all()
        began = time.monotonic()
        assert tail.end() == 0
        assert time.monotonic() - began < 10
        assert idle.recv(1) == b""


def test_many_scrapes_lose_no_message(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic, "c")
    count = 50_000
    nsqd.publish(topic, (b"%d" % number for number in range(count)))
    with (tmp_path / "stdout").open("wb") as stdout, (tmp_path / "stderr").open("wb") as stderr:
        process = nsqtools_cli.start(
            *("tail", "--topic", topic, "--channel", "c", *at(nsqd)),
            *("-v", "--metrics-address", ":0"),
            stdout=stdout,
            stderr=stderr,
        )
        url = eventually(lambda: _url((tmp_path / "stderr").read_text()))
        key = "nsqtools_messages_finished_total", "c", topic
        seen: list[float] = []
        while not seen or seen[-1] < count:
            seen.append(scrape(url).get(key, 0.0))
        process.terminate()
        assert process.wait(20) == 0
    assert seen == sorted(seen)
    assert drained(nsqd, topic, "c")
    assert len((tmp_path / "stdout").read_bytes().splitlines()) == count
