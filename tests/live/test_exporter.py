"""``stats --serve`` on three nsqds and two nsqlookupds, scraped as Prometheus does."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)

from tests.support.eventually import eventually
from tests.support.metrics import kinds, scrape, values
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.metrics import Values
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd, Nsqlookupd, Server

PATIENCE = 20.0

OF_CHANNELS = {
    "nsq_channel_depth": "depth",
    "nsq_channel_backend_depth": "backend_depth",
    "nsq_channel_in_flight": "in_flight_count",
    "nsq_channel_deferred": "deferred_count",
    "nsq_channel_messages_total": "message_count",
    "nsq_channel_requeued_total": "requeue_count",
    "nsq_channel_timed_out_total": "timeout_count",
    "nsq_channel_clients": "client_count",
    "nsq_channel_paused": "paused",
}
OF_TOPICS = {
    "nsq_topic_depth": "depth",
    "nsq_topic_backend_depth": "backend_depth",
    "nsq_topic_messages_total": "message_count",
    "nsq_topic_message_bytes_total": "message_bytes",
    "nsq_topic_paused": "paused",
}


class Exporter:
    """The command as a process, at a free port."""

    def __init__(self, cli: Cli, folder: Path, *args: str, **environment: str) -> None:
        self.log = folder / "stderr"
        with self.log.open("wb") as stderr:
            words = ("stats", "--serve", ":0", "-v", *args)
            self.process = cli.start(*words, stderr=stderr, env=environment)
        found = eventually(lambda: re.search(r"http://127\.\S+/metrics", self.log.read_text()))
        assert found
        self.url = found[0]

    def all(self) -> Values:
        return scrape(self.url)

    def up(self) -> dict[str, float]:
        """By address, nsqds and nsqlookupds alike."""
        found = self.all()
        ups = ("nsq_up", "nsq_nsqlookupd_up")
        return {key[1]: value for key, value in found.items() if key[0] in ups}

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def where(nsqds: Sequence[Nsqd] = (), lookupds: Sequence[Nsqlookupd] = ()) -> list[str]:
    flags = {"--nsqd-http-address": nsqds, "--lookupd-http-address": lookupds}
    servers: list[tuple[str, Server]] = [
        (flag, each) for flag, all_ in flags.items() for each in all_
    ]
    return [word for flag, each in servers for word in (flag, str(each.http))]


@pytest.fixture
def lookupds(make_nsqlookupd: MakeNsqlookupd) -> list[Nsqlookupd]:
    return [make_nsqlookupd(), make_nsqlookupd()]


@pytest.fixture
def nsqds(make_nsqd: MakeNsqd, lookupds: list[Nsqlookupd], topic: str) -> list[Nsqd]:
    made = [make_nsqd(lookupds=lookupds) for _ in range(3)]
    for nsqd in made:
        nsqd.create(topic, "c")
    for lookupd in lookupds:
        eventually(lambda lookupd=lookupd: len(lookupd.lookup(topic)) == 3)  # type: ignore[misc]
    return made


def test_a_scrape_has_what_each_nsqd_says_at_that_moment(
    nsqtools_cli: Cli, tmp_path: Path, nsqds: list[Nsqd], lookupds: list[Nsqlookupd], topic: str
) -> None:
    exporter = Exporter(nsqtools_cli, tmp_path, *where(lookupds=lookupds))
    nsqds[1].create(topic, "d")
    nsqds[1].pause(topic, "d")
    nsqds[2].create("other")
    nsqds[2].publish("other", [b"four"] * 3)
    with Raw(nsqds[0].tcp) as client:
        client.subscribe(topic, ready=2)
        for number, nsqd in enumerate(nsqds, 1):
            nsqd.publish(topic, [b"x" * number] * number * 4)
        for _ in range(2):
            client.send(f"REQ {client.message().id} 60000")
        client.message()
        client.settle()
        found = exporter.all()
        assert (
            sum(value for key, value in found.items() if key[0] == "nsq_channel_requeued_total")
            == 2
        )
        for nsqd in nsqds:
            said = nsqd.stats()
            name = str(nsqd.http)
            assert found["nsq_nsqd_start_time_seconds", name] == said["start_time"]
            assert found["nsq_nsqd_info", name, said["version"]] == 1
            assert found["nsq_nsqd_healthy", name] == 1
            for entry in said["topics"]:
                for metric, field in OF_TOPICS.items():
                    assert found[metric, name, entry["topic_name"]] == entry[field], metric
                for channel in entry["channels"]:
                    labels = (channel["channel_name"], name, entry["topic_name"])
                    for metric, field in OF_CHANNELS.items():
                        assert found[metric, *labels] == channel[field], metric
    told = {key for key in found if key[0] == "nsq_channel_depth"}
    assert len(told) == 4
    assert set(exporter.up()) == {str(each.http) for each in (*nsqds, *lookupds)}
    assert exporter.end() == 0


def test_names_and_types_are_as_prometheus_wants_them(
    nsqtools_cli: Cli, tmp_path: Path, nsqds: list[Nsqd], lookupds: list[Nsqlookupd]
) -> None:
    exporter = Exporter(nsqtools_cli, tmp_path, *where(nsqds, lookupds))
    text = httpx.get(exporter.url, trust_env=False).text
    for name, kind in kinds(text).items():
        assert re.fullmatch("[a-z][a-z0-9_]*", name)
        assert name.endswith("_total") == (kind == "counter"), name
        assert not name.endswith(("_count", "_sum", "_bucket", "_ms", "_milliseconds")), name
    assert all(len(line.split(" ", 3)) == 4 for line in text.splitlines() if line[:6] == "# HELP")
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    reply = httpx.get(exporter.url, headers=accept, trust_env=False)
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    families = {family.name for family in openmetrics_families(reply.text)}  # type: ignore[no-untyped-call]
    assert {"nsq_up", "nsq_channel_messages", "nsq_channel_e2e_latency_seconds"} <= families
    assert exporter.end(signal.SIGINT) == 130


@pytest.mark.nsqd_only("latency percentiles")
def test_latency_percentiles_are_quantiles_in_seconds(
    nsqtools_cli: Cli, tmp_path: Path, make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqd = make_nsqd("-e2e-processing-latency-percentile=0.5,0.99")
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x"] * 3)
    with Raw(nsqd.tcp) as client:
        client.subscribe(topic, ready=3)
        for _ in range(3):
            client.send(f"FIN {client.message().id}")
        client.settle()
    exporter = Exporter(nsqtools_cli, tmp_path, *where([nsqd]))
    text = httpx.get(exporter.url, trust_env=False).text
    assert kinds(text)["nsq_channel_e2e_latency_seconds"] == "summary"
    found = values(text)
    for quantile in ("0.5", "0.99"):
        seconds = found["nsq_channel_e2e_latency_seconds", "c", str(nsqd.http), quantile, topic]
        assert 0 < seconds < 60


def test_who_is_dead_is_down_and_the_rest_is_told(
    nsqtools_cli: Cli, tmp_path: Path, nsqds: list[Nsqd], lookupds: list[Nsqlookupd], topic: str
) -> None:
    exporter = Exporter(nsqtools_cli, tmp_path, *where(lookupds=lookupds))
    everybody = {str(each.http): 1.0 for each in (*nsqds, *lookupds)}
    assert exporter.up() == everybody
    nsqds[0].kill()
    lookupds[0].kill()
    dead = {str(nsqds[0].http): 0.0, str(lookupds[0].http): 0.0}
    # nsqlookupd lists it no more, and it is down all the same.
    eventually(lambda: len(lookupds[1].lookup(topic)) == 2)
    assert exporter.up() == everybody | dead
    told = {key[2] for key in exporter.all() if key[0] == "nsq_channel_depth"}
    assert told == {str(each.http) for each in nsqds[1:]}
    for server in (*nsqds[1:], lookupds[1]):
        server.kill()
    assert set(exporter.up().values()) == {0.0}
    for server in (*lookupds, *nsqds):
        server.start()
    assert eventually(lambda: exporter.up() == everybody)
    assert exporter.end() == 0
    assert "Traceback" not in exporter.log.read_text()


def test_it_serves_before_there_is_anybody(nsqtools_cli: Cli, tmp_path: Path, nsqd: Nsqd) -> None:
    nsqd.kill()
    exporter = Exporter(nsqtools_cli, tmp_path, *where([nsqd]))
    assert exporter.up() == {str(nsqd.http): 0}
    nsqd.start()
    assert exporter.up() == {str(nsqd.http): 1}


def test_one_that_hangs_is_down_in_time_and_scrapes_meanwhile_share_the_poll(
    nsqtools_cli: Cli, tmp_path: Path, nsqds: list[Nsqd], lookupds: list[Nsqlookupd], topic: str
) -> None:
    limits = ("--timeout", "5s", "--http-client-request-timeout", "1m")
    exporter = Exporter(nsqtools_cli, tmp_path, *where(nsqds, lookupds), *limits)
    assert set(exporter.up().values()) == {1.0}
    hanging = (nsqds[0], lookupds[0])
    for server in hanging:
        os.kill(server.pid, signal.SIGSTOP)
    try:
        start = threading.Barrier(8)

        def scraped(_: int) -> Values:
            start.wait()
            return scrape(exporter.url)

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(scraped, range(8)))
    finally:
        for server in hanging:
            os.kill(server.pid, signal.SIGCONT)
    for each in found:
        assert each["nsq_nsqlookupd_up", str(lookupds[0].http)] == 0
        assert each["nsq_up", str(nsqds[0].http)] == 0
        assert each["nsq_up", str(nsqds[1].http)] == 1
        assert each["nsq_channel_depth", "c", str(nsqds[1].http), topic] == 0
    took = {each["nsqtools_poll_duration_seconds",] for each in found}
    assert len(took) == 1, "each scrape had a poll of its own"
    assert took.pop() < 5
    assert exporter.end() == 0


def test_a_topic_and_a_channel_narrow_it_down(
    nsqtools_cli: Cli, tmp_path: Path, nsqds: list[Nsqd], topic: str
) -> None:
    nsqds[0].create(topic, "d")
    nsqds[0].create("other", "c")
    exporter = Exporter(nsqtools_cli, tmp_path, *where(nsqds), "--topic", topic, "--channel", "d")
    told = [key for key in exporter.all() if key[0] == "nsq_channel_depth"]
    assert told == [("nsq_channel_depth", "d", str(nsqds[0].http), topic)]


def test_systemd_is_told(nsqtools_cli: Cli, tmp_path: Path, nsqd: Nsqd) -> None:
    told: list[str] = []
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.setblocking(False)

        def hears(text: str) -> bool:
            while not any(text in each for each in told):
                told.append(listener.recv(4096).decode())
            return True

        exporter = Exporter(
            nsqtools_cli, tmp_path, *where([nsqd]), NOTIFY_SOCKET=path, WATCHDOG_USEC="200000"
        )
        eventually(lambda: hears("READY=1"))
        assert exporter.up() == {str(nsqd.http): 1}
        eventually(lambda: hears("WATCHDOG=1\nSTATUS=1 of 1 nsqds answer, 1 polls"))
        exporter.process.send_signal(signal.SIGTERM)
        eventually(lambda: hears("STOPPING=1"))
        assert exporter.process.wait(PATIENCE) == 0


def test_a_taken_address_is_a_usage_error(nsqtools_cli: Cli, tmp_path: Path, nsqd: Nsqd) -> None:
    exporter = Exporter(nsqtools_cli, tmp_path, *where([nsqd]))
    address = exporter.url.split("/")[2]
    ended = nsqtools_cli("stats", "--serve", address, *where([nsqd]))
    assert ended.code == 2
    assert f"--serve: cannot listen on {address}: address already in use" in ended.stderr


def test_other_paths_are_not_found(nsqtools_cli: Cli, tmp_path: Path, nsqd: Nsqd) -> None:
    exporter = Exporter(nsqtools_cli, tmp_path, *where([nsqd]))
    url = exporter.url.removesuffix("metrics")
    assert httpx.get(f"{url}nothing", trust_env=False).status_code == 404
    assert httpx.post(exporter.url, trust_env=False).status_code == 405
