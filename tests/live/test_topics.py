"""Topics that come and go, against real servers, and what systemd hears of it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from nsqtools.cli.service import consume
from nsqtools.config import ConsumerConfig, SourceOptions, StopOptions
from nsqtools.engine.handler import Handler
from nsqtools.errors import OutputError
from nsqtools.policy import topics as policy
from tests.support.eventually import eventually, eventually_async
from tests.support.gathering import exit_code
from tests.support.servers import at

if TYPE_CHECKING:
    from pathlib import Path

    from nsqtools.engine.handler import Batch
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd, Nsqlookupd


class Sink(Handler):
    """Finishes everything, and fails to drain the topics that are ``stuck``."""

    def __init__(self, *stuck: str) -> None:
        self.failed: asyncio.Future[None]
        self.bodies: dict[str, list[bytes]] = {}
        self.drained: list[str] = []
        self.stuck = stuck

    async def open(self) -> None:
        self.failed = asyncio.get_running_loop().create_future()

    async def handle(self, batch: Batch) -> None:
        self.bodies.setdefault(batch.topic, []).extend(message.body for message in batch)

    async def drain(self, topic: str) -> None:
        self.drained.append(topic)
        if topic in self.stuck:
            raise OutputError(f"{topic}.log: no space")


def archive(sink: Sink, pattern: str, lookupd: Nsqlookupd) -> asyncio.Task[int]:
    source = SourceOptions(topic=("unused",), lookupd_http_address=(str(lookupd.http),))
    config = ConsumerConfig(max_in_flight=100)
    topics = re.compile(pattern)
    run = consume(source, "archive", config, StopOptions(), sink, topics=topics, refresh=0.1)
    return asyncio.create_task(exit_code(run))


async def connected(nsqd: Nsqd, topic: str) -> None:
    def clients() -> bool:
        return bool(nsqd.channel(topic, "archive")["client_count"])

    await asyncio.to_thread(eventually, clients)


async def test_a_topic_that_vanishes_unsettled_makes_status_1_and_one_that_appears_is_taken(
    make_nsqd: MakeNsqd,
    make_nsqlookupd: MakeNsqlookupd,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(policy, "MIN_GRACE", 0.3)
    lookupd = make_nsqlookupd()
    nsqd = make_nsqd(lookupds=[lookupd])
    gone, other = f"{topic}.1", f"{topic}.2"
    nsqd.create(gone, "archive")
    sink = Sink(gone)
    run = archive(sink, topic.replace(".", "\\."), lookupd)
    await connected(nsqd, gone)
    nsqd.delete(gone)
    lookupd.request("POST", "/topic/delete", topic=gone)
    await eventually_async(lambda: f"topic {gone}: {gone}.log: no space" in caplog.text)
    nsqd.create(other, "archive")
    nsqd.publish(other, [b"x"])
    await eventually_async(lambda: sink.bodies == {other: [b"x"]})
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run == 1
    errors = [each.message for each in caplog.records if each.levelno == logging.ERROR]
    assert errors == [f"topic {gone}: {gone}.log: no space", f"not completely written: {gone}"]


async def test_an_outage_of_all_nsqlookupds_changes_nothing(
    make_nsqd: MakeNsqd,
    make_nsqlookupd: MakeNsqlookupd,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(policy, "MIN_GRACE", 0.3)
    lookupd = make_nsqlookupd()
    nsqd = make_nsqd(lookupds=[lookupd])
    nsqd.create(topic)
    sink = Sink()
    run = archive(sink, topic.replace(".", "\\."), lookupd)
    await connected(nsqd, topic)
    lookupd.stop()
    await eventually_async(lambda: "no nsqlookupd answers" in caplog.text)
    nsqd.publish(topic, [b"meanwhile"])
    await eventually_async(lambda: sink.bodies == {topic: [b"meanwhile"]})
    assert sink.drained == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run == 0
    assert caplog.text.count("no nsqlookupd answers") == 1


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
        listener.setblocking(False)

        def hears(text: str) -> bool:
            while not any(text in each for each in told):
                told.append(listener.recv(4096).decode())
            return True

        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        where = at(nsqd) if words[0] == "tail" else ("--nsqd-http-address", str(nsqd.http))
        process = nsqtools_cli.start(*words, *where, env=environment)
        eventually(lambda: hears("READY=1"))
        eventually(lambda: hears(f"WATCHDOG=1\nSTATUS={status}"))
        process.send_signal(signal.SIGTERM)
        eventually(lambda: hears("STOPPING=1"))
        assert process.wait(100) == 0
    assert told.count("READY=1") == 1
