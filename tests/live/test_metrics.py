"""What monitoring is told by commands that run on real servers: metrics, and systemd."""

import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.metrics import Serving
from tests.support.process import Cli
from tests.support.servers import Nsqd, Nsqlookupd, at, http, lookup

Measure = Callable[..., Serving]

MONITORING = Path(__file__).parents[2] / ".github" / "monitoring"


@pytest.fixture
def measure(nsqtools_cli: Cli, tmp_path: Path, nsqd: Nsqd, topic: str) -> Measure:
    """Starts ``tail`` of the topic; ``options`` are Popen's."""

    def start(*args: str, **options: int) -> Serving:
        nsqd.create(topic, "c")
        words = ("tail", "--topic", topic, "--channel", "c", *at(nsqd), *args)
        return Serving(nsqtools_cli, tmp_path, *words, "--metrics-address", ":0", **options)

    return start


def test_counters_are_those_of_the_topic_and_alerts_ask_for_what_is_served(
    measure: Measure,
    nsqtools_cli: Cli,
    nsqd: Nsqd,
    nsqlookupd: Nsqlookupd,
    topic: str,
    tmp_path: Path,
) -> None:
    tail = measure()
    nsqd.publish(topic, [b"12345"] * 10)
    names = ("messages_received", "received_bytes", "messages_finished", "connections_opened")

    def counted() -> list[float]:
        found = tail.all()
        return [found[f"nsqtools_{name}_total", "c", topic] for name in names]

    eventually(lambda: counted() == [10, 50, 10, 1])
    (tmp_path / "exporter").mkdir()
    where = (*http([nsqd]), *lookup([nsqlookupd]))
    exporter = Serving(nsqtools_cli, tmp_path / "exporter", "stats", "--serve", ":0", *where)
    served = {name for serving in (tail, exporter) for name, *_ in serving.all()}
    for file in ("alerts.yml", "dashboard.json"):
        text = (MONITORING / file).read_text(encoding="utf-8")
        asked = set(re.findall(r"\b(nsq(?:tools)?_\w+)\b(?!\*)", text)) - {"nsq_", "nsqtools_"}
        assert asked
        assert asked - served == set()
    assert (tail.end(), exporter.end()) == (0, 0)


def test_metrics_are_there_until_the_last_message_is_safe(
    measure: Measure, nsqd: Nsqd, topic: str
) -> None:
    """A pipe that nobody reads keeps the messages in flight while it drains."""
    tail = measure("--drain-timeout", "60s", stdout=subprocess.PIPE)
    nsqd.publish(topic, [b"x" * 10_000] * 1000)

    def in_flight() -> float:
        return tail.all()["nsqtools_messages_in_flight", "c", topic]

    def late_messages_wait() -> bool:
        nsqd.publish(topic, [b"late"])
        return bool(nsqd.channel(topic, "c")["depth"])

    eventually(lambda: in_flight() > 100)
    tail.process.terminate()
    eventually(late_messages_wait)
    assert in_flight() > 100
    tail.process.communicate(timeout=100)
    assert tail.process.returncode == 0
    with pytest.raises(ConnectionError):
        tail.all()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("tail", "--topic", "t"), "1 topic, 1 connection, "),
        (("stats", "--serve", ":0"), "not scraped yet"),
    ],
    ids=["tail", "stats"],
)
def test_systemd_hears_that_it_is_ready_how_it_is_and_that_it_stops(
    nsqtools_cli: Cli, nsqd: Nsqd, tmp_path: Path, words: tuple[str, ...], status: str
) -> None:
    told: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)

        def hear(text: str) -> None:
            while not any(text in each for each in told):
                told.append(listener.recv(4096).decode())

        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        where = at(nsqd) if words[0] == "tail" else http([nsqd])
        process = nsqtools_cli.start(*words, *where, env=environment)
        hear("READY=1")
        hear(f"WATCHDOG=1\nSTATUS={status}")
        process.send_signal(signal.SIGTERM)
        hear("STOPPING=1")
        assert process.wait(100) == 0
    assert told.count("READY=1") == 1
