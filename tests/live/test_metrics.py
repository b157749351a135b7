"""Metrics of commands that run on real servers."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.metrics import Serving
from tests.support.servers import at

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.process import Cli
    from tests.support.servers import Nsqd, Nsqlookupd

    Measure = Callable[..., Serving]


MONITORING = Path(__file__).parents[2] / ".github" / "monitoring"


@pytest.fixture
def measure(nsqtools_cli: Cli, tmp_path: Path, nsqd: Nsqd, topic: str) -> Measure:
    """Starts a command that consumes the topic; ``options`` are Popen's."""

    def start(command: str, *args: str, **options: int) -> Serving:
        nsqd.create(topic, "c")
        words = (command, "--topic", topic, "--channel", "c", *at(nsqd), *args)
        return Serving(nsqtools_cli, tmp_path, *words, "--metrics-address", ":0", **options)

    return start


def test_counters_are_those_of_the_topic(measure: Measure, nsqd: Nsqd, topic: str) -> None:
    tail = measure("tail")
    nsqd.publish(topic, [b"12345"] * 10)
    names = ("messages_received", "received_bytes", "messages_finished", "connections_opened")

    def counted() -> list[float]:
        found = tail.all()
        return [found[f"nsqtools_{name}_total", "c", topic] for name in names]

    eventually(lambda: counted() == [10, 50, 10, 1])
    assert tail.end() == 0


def test_metrics_are_there_until_the_last_message_is_safe(
    measure: Measure, nsqd: Nsqd, topic: str
) -> None:
    """A pipe that nobody reads keeps the messages in flight while it drains."""
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x" * 10_000] * 1000)

    def late_messages_wait() -> bool:
        nsqd.publish(topic, [b"late"])
        return bool(nsqd.channel(topic, "c")["depth"])

    def in_flight() -> float:
        return tail.all()["nsqtools_messages_in_flight", "c", topic]

    read, write = socket.socketpair()
    with read, write:
        tail = measure("tail", "--drain-timeout", "60s", stdout=write.fileno())
        write.close()
        eventually(lambda: in_flight() > 100)
        tail.process.terminate()
        eventually(late_messages_wait)
        assert in_flight() > 100
        while read.recv(1 << 20):
            pass
        assert tail.process.wait(100) == 0
    with pytest.raises(ConnectionError):
        tail.all()


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_are_served(
    measure: Measure, nsqtools_cli: Cli, nsqd: Nsqd, nsqlookupd: Nsqlookupd, tmp_path: Path
) -> None:
    tail = measure("tail")
    servers = (
        "--nsqd-http-address",
        str(nsqd.http),
        "--lookupd-http-address",
        str(nsqlookupd.http),
    )
    (tmp_path / "exporter").mkdir()
    exporter = Serving(nsqtools_cli, tmp_path / "exporter", "stats", "--serve", ":0", *servers)
    served = {name for serving in (tail, exporter) for name, *_ in serving.all()}
    for file in ("alerts.yml", "dashboard.json"):
        text = (MONITORING / file).read_text(encoding="utf-8")
        asked = set(re.findall(r"\b(nsq(?:tools)?_\w+)\b(?!\*)", text)) - {"nsq_", "nsqtools_"}
        assert asked
        assert asked - served == set()
    assert (tail.end(), exporter.end()) == (0, 0)
