"""A cluster is asked as a whole; what is silent hides nothing else and is told of once."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.engine import cluster as module
from nsqtools.engine.cluster import Cluster
from nsqtools.errors import ConfigError, HTTPError, UnreachableError
from nsqtools.names import Address
from nsqtools.policy.rates import Counters
from nsqtools.sandbox.http import json_reply, serve
from tests.support.servers import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nsqtools.sandbox.http import Request, Response


@dataclass(slots=True)
class Fake:
    """A server that says what a test wants said, until it is stopped."""

    answers: dict[str, Any]
    port: int = field(default_factory=free_port)
    asked: list[str] = field(default_factory=list)
    server: Any = None

    async def answer(self, request: Request) -> Response:
        self.asked.append(f"{request.path}?{request.query}" if request.query else request.path)
        return json_reply(self.answers[request.path])

    async def start(self) -> None:
        self.server = await serve(self.answer, "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self.server:
            await self.server.stop()
        self.server = None

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, path: str) -> int:
        return sum(each.partition("?")[0] == path for each in self.asked)


class Stage:
    """Fakes, and clusters of them, that end with the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack

    async def nsqd(self, *topics: str, start: int = 5, port: int = 0) -> Fake:
        fake = Fake({}, port or free_port())
        tcp = free_port()
        fake.answers["/info"] = {
            "version": "1.3.0",
            "broadcast_address": "127.0.0.1",
            "hostname": "host",
            "tcp_port": tcp,
            "http_port": fake.port,
            "start_time": start,
        }
        entries = [{"topic_name": name, "depth": 1, "channels": []} for name in topics]
        fake.answers["/stats"] = {"version": "1.3.0", "start_time": start, "topics": entries}
        await self.start(fake)
        return fake

    async def lookupd(self, *nsqds: Fake) -> Fake:
        fake = Fake({"/nodes": {"producers": [listed(each) for each in nsqds]}})
        await self.start(fake)
        return fake

    async def start(self, fake: Fake) -> None:
        await fake.start()
        self.stack.push_async_callback(fake.stop)

    def cluster(
        self, *lookupds: Fake, nsqds: tuple[Fake, ...] = (), quiet: bool = False
    ) -> Cluster:
        made = Cluster(
            [each.name for each in lookupds],
            [each.name for each in nsqds],
            connect_timeout=5,
            request_timeout=5,
            quiet=quiet,
        )
        self.stack.push_async_callback(made.close)
        return made


def listed(nsqd: Fake) -> dict[str, Any]:
    info, stats = nsqd.answers["/info"], nsqd.answers["/stats"]
    topics = [each["topic_name"] for each in stats["topics"]]
    return {**info, "topics": topics, "tombstones": [False] * len(topics)}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack)


async def test_listed_nsqds_are_asked_with_what_is_known_of_them(stage: Stage) -> None:
    nsqd = await stage.nsqd("t")
    cluster = stage.cluster(await stage.lookupd(nsqd))
    (node,) = await cluster.find()
    info = nsqd.answers["/info"]
    assert (node.name, node.http) == (nsqd.name, f"http://{nsqd.name}")
    assert node.tcp == Address("127.0.0.1", info["tcp_port"])
    assert (node.hostname, node.version, node.topics) == ("host", "1.3.0", {"t": False})
    snapshot = await cluster.poll()
    assert [topic.name for topic in snapshot.stats[nsqd.name].topics] == ["t"]
    assert (snapshot.failures, list(snapshot.nodes)) == ({}, [nsqd.name])


async def test_a_given_nsqd_is_asked_where_it_was_given_and_counts_once(stage: Stage) -> None:
    nsqd, other = await stage.nsqd("t"), await stage.nsqd("t")
    nsqd.answers["/info"]["http_port"] = 1  # where nothing listens
    cluster = stage.cluster(await stage.lookupd(nsqd, other), nsqds=(nsqd,))
    snapshot = await cluster.poll()
    assert list(snapshot.stats) == [nsqd.name, other.name]
    assert snapshot.nodes[nsqd.name].topics == {"t": False}
    await cluster.poll()
    assert nsqd.count("/info") == 1


async def test_an_nsqd_given_in_two_spellings_counts_once(stage: Stage) -> None:
    nsqd = await stage.nsqd("t")
    urls = [nsqd.name, f"http://{nsqd.name}/", f"http://localhost:{nsqd.port}"]
    async with Cluster([], urls, connect_timeout=5, request_timeout=5) as cluster:
        assert list((await cluster.poll()).stats) == [nsqd.name]


async def test_the_nsqds_of_all_nsqlookupds_are_united(stage: Stage) -> None:
    one, two, three = [await stage.nsqd("t") for _ in range(3)]
    cluster = stage.cluster(await stage.lookupd(one, two), await stage.lookupd(two, three))
    assert set((await cluster.poll()).stats) == {one.name, two.name, three.name}


async def test_of_those_listed_only_who_has_the_topic_is_asked(stage: Stage) -> None:
    having, given, other = await stage.nsqd("t"), await stage.nsqd(), await stage.nsqd("u")
    cluster = stage.cluster(await stage.lookupd(having, other), nsqds=(given,))
    snapshot = await cluster.poll("t", "c", include_clients=True)
    assert set(snapshot.nodes) == set(snapshot.stats) == {having.name, given.name}
    assert other.asked == []
    assert "include_clients=true" in having.asked[-1]
    assert "topic=t&channel=c" in having.asked[-1]


async def test_a_dead_nsqd_is_a_failure_and_a_warning_once_until_it_answers(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "nsqtools")
    well, dead = await stage.nsqd("t"), await stage.nsqd("t")
    cluster = stage.cluster(await stage.lookupd(well, dead))
    for _ in range(2):
        await dead.stop()
        for _ in range(2):
            snapshot = await cluster.poll()
            assert set(snapshot.stats) == {well.name}
            assert isinstance(snapshot.failures[dead.name], HTTPError)
            assert snapshot.samples()[dead.name] is None
        (told,) = caplog.messages
        assert told.startswith(f"nsqd {dead.name}: ")
        caplog.clear()
        await dead.start()
        assert set((await cluster.poll()).stats) == {well.name, dead.name}


async def test_a_quiet_cluster_leaves_it_to_the_caller_to_tell(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "nsqtools")
    well, dead = await stage.nsqd("t"), await stage.nsqd("t")
    silent = await stage.lookupd()
    await dead.stop()
    await silent.stop()
    cluster = stage.cluster(silent, await stage.lookupd(dead), nsqds=(well,), quiet=True)
    snapshot = await cluster.poll()
    assert (set(snapshot.failures), caplog.messages) == ({dead.name}, [])


async def test_an_nsqd_that_vanishes_from_nsqlookupd_is_asked_for_a_while(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = await stage.nsqd("t")
    lookupd = await stage.lookupd(nsqd)
    cluster = stage.cluster(lookupd)
    await cluster.poll("t")
    lookupd.answers["/nodes"] = {"producers": []}
    assert set((await cluster.poll("t")).stats) == {nsqd.name}
    await nsqd.stop()
    assert set((await cluster.look("t")).failures) == {nsqd.name}
    monkeypatch.setattr(module, "_FORGET", -1.0)
    assert (await cluster.poll("t")).nodes == {}


async def test_without_nsqlookupds_the_known_nsqds_are_still_asked(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "nsqtools")
    nsqd = await stage.nsqd("t")
    lookupd = await stage.lookupd(nsqd)
    cluster = stage.cluster(lookupd)
    assert (await cluster.poll()).lookupds == {lookupd.name: None}
    await lookupd.stop()
    for _ in range(2):
        snapshot = await cluster.poll()
        assert set(snapshot.stats) == {nsqd.name}
        assert isinstance(snapshot.lookupds[lookupd.name], HTTPError)
    (told,) = caplog.messages
    assert told.startswith(f"no nsqlookupd answers: {lookupd.name}: ")


async def test_one_silent_nsqlookupd_is_told_of_and_hides_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "nsqtools")
    nsqd = await stage.nsqd("t")
    silent = await stage.lookupd(nsqd)
    await silent.stop()
    cluster = stage.cluster(silent, await stage.lookupd(nsqd))
    for _ in range(2):
        assert set((await cluster.poll()).stats) == {nsqd.name}
    (told,) = caplog.messages
    assert told.startswith(f"nsqlookupd {silent.name}: ")


async def test_nobody_at_all_is_unreachable(stage: Stage) -> None:
    nsqd, lookupd = await stage.nsqd(), await stage.lookupd()
    await nsqd.stop()
    with pytest.raises(UnreachableError, match="no nsqd answers"):
        await stage.cluster(lookupd, nsqds=(nsqd,)).poll()
    await lookupd.stop()
    with pytest.raises(UnreachableError, match="no nsqlookupd answers"):
        await stage.cluster(lookupd).poll()
    with pytest.raises(UnreachableError, match="no nsqlookupd answers"):
        await stage.cluster(lookupd, nsqds=(nsqd,)).find()
    with pytest.raises(UnreachableError, match=r"no nsqd answers: .* \(nor do 1 others\)"):
        await stage.cluster(nsqds=(nsqd, Fake({}))).poll()
    snapshot = await stage.cluster(nsqds=(nsqd,)).look()
    assert (snapshot.stats, set(snapshot.failures)) == ({}, {nsqd.name})


async def test_an_nsqlookupd_that_knows_no_nsqd_is_an_empty_cluster(stage: Stage) -> None:
    cluster = stage.cluster(await stage.lookupd())
    assert await cluster.find() == []
    assert (await cluster.poll()).nodes == {}


async def test_a_restarted_nsqd_is_asked_anew_who_it_is(stage: Stage) -> None:
    nsqd = await stage.nsqd("t")
    cluster = stage.cluster(nsqds=(nsqd,))
    await cluster.poll()
    nsqd.answers["/stats"]["start_time"] = nsqd.answers["/info"]["start_time"] = 6
    nsqd.answers["/info"]["version"] = "1.4.0"
    await cluster.poll()
    assert (await cluster.poll()).nodes[nsqd.name].version == "1.4.0"
    assert nsqd.count("/info") == 2


async def test_nsqds_are_asked_at_once(stage: Stage) -> None:
    nsqds = [await stage.nsqd("t") for _ in range(3)]
    together = asyncio.Barrier(3)
    for nsqd in nsqds:
        usual = nsqd.answer

        async def answer(request: Request, usual: Any = usual) -> Response:
            await together.wait()
            response: Response = await usual(request)
            return response

        await nsqd.stop()
        nsqd.server = await serve(answer, "127.0.0.1", nsqd.port)
    assert len((await stage.cluster(nsqds=tuple(nsqds)).poll()).stats) == 3


async def test_samples_are_the_counters_of_topics_and_channels(stage: Stage) -> None:
    nsqd = await stage.nsqd()
    channel = {
        "channel_name": "c",
        "depth": 1,
        "backend_depth": 2,
        "in_flight_count": 3,
        "deferred_count": 4,
        "message_count": 5,
        "requeue_count": 6,
        "timeout_count": 7,
        "client_count": 8,
        "paused": True,
    }
    topic = {"topic_name": "t", "depth": 9, "backend_depth": 8, "message_count": 7}
    nsqd.answers["/stats"]["topics"] = [{**topic, "channels": [channel]}]
    sample = (await stage.cluster(nsqds=(nsqd,)).poll()).samples()[nsqd.name]
    assert sample is not None
    start, counters = sample
    assert start == 5
    assert counters["t", "c"] == Counters(5, 6, 7, 1, 2, 3, 4, 8, paused=True)
    assert counters["t", ""] == Counters(messages=7, depth=9, backend_depth=8)


def test_a_malformed_address_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="ftp"):
        Cluster([], ["ftp://h:1"], connect_timeout=1, request_timeout=1)
