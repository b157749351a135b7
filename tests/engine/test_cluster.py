"""A cluster is asked as a whole; what is silent hides nothing else and is told of once."""

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from nsqtools.engine.cluster import Cluster
from nsqtools.errors import HTTPError, UnreachableError
from nsqtools.net.http import daemons
from nsqtools.net.http.daemons import NsqdHTTP
from tests.support.staging import Fake, Stage, listed


@dataclass(slots=True)
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("nsqtools.engine.cluster.monotonic", lambda: found.now)
    return found


async def test_a_given_nsqd_is_asked_where_it_was_given_and_counts_once(stage: Stage) -> None:
    nsqd, other = await stage.nsqd("t"), await stage.nsqd("t")
    nsqd.answers["/info"] |= {
        "http_port": 1,  # where nothing listens
        "broadcast_address": "[::1]",
    }
    cluster = stage.cluster(await stage.lookupd(nsqd, other), nsqds=(nsqd,))
    snapshot = await cluster.poll()
    assert list(snapshot.nodes) == list(snapshot.stats) == [nsqd.name, other.name]
    assert snapshot.silent == {}
    assert snapshot.nodes[nsqd.name].topics == {"t": False}
    await cluster.poll()
    assert nsqd.count("/info") == 1


async def test_an_nsqd_that_is_given_in_two_spellings_counts_once(stage: Stage) -> None:
    nsqd = await stage.nsqd("t")
    names = [nsqd.name, f"localhost:{nsqd.port}"]
    cluster = Cluster([], names, connect_timeout=60, request_timeout=60)
    stage.stack.push_async_callback(cluster.close)
    assert list((await cluster.poll()).nodes) == [nsqd.name]
    assert list((await cluster.poll()).nodes) == [nsqd.name]


async def test_nsqds_that_report_only_their_version_count_each(stage: Stage) -> None:
    old = [await stage.nsqd("t") for _ in range(2)]
    for nsqd in old:
        nsqd.answers["/info"] = {"version": "0.3.8"}
    assert len((await stage.cluster(nsqds=tuple(old)).poll()).nodes) == 2


async def test_an_nsqd_has_its_broadcast_address_for_a_name_unless_two_claim_it(
    stage: Stage,
) -> None:
    one, two, other, silent = [await stage.nsqd("t") for _ in range(4)]
    for each, host in ((one, "one"), (two, "two")):
        each.answers["/info"] |= {"tcp_port": 4150, "hostname": host}
    cluster = stage.cluster(await stage.lookupd(other, silent), nsqds=(one, two))
    await silent.stop()
    sample = (await cluster.poll()).cluster_sample(0.0)
    ports = [each.answers["/info"]["tcp_port"] for each in (other, silent)]
    assert sample.nsqds.keys() == {one.name, two.name, f"127.0.0.1:{ports[0]}"}
    ((name, topics),) = sample.silent.items()
    assert (name, set(topics or ())) == (f"127.0.0.1:{ports[1]}", {"t"})


async def test_what_several_nsqds_with_one_broadcast_address_have_is_told(stage: Stage) -> None:
    nsqd = await stage.nsqd("t")
    lookupd = await stage.lookupd(nsqd)
    name = f"127.0.0.1:{nsqd.answers['/info']['tcp_port']}"
    for hostname, shared in (("host", {}), ("other", {name: {"t", "u"}})):
        other = {**listed(nsqd), "hostname": hostname, "topics": ["u"], "tombstones": [False]}
        lookupd.answers["/nodes"]["producers"] = [listed(nsqd), other]
        assert (await stage.cluster(lookupd).poll()).cluster_sample(0.0).shared == shared


async def test_of_those_listed_only_who_has_the_topic_is_asked(stage: Stage) -> None:
    having, given, other = await stage.nsqd("t"), await stage.nsqd(), await stage.nsqd("u")
    cluster = stage.cluster(await stage.lookupd(having, other), nsqds=(given,))
    snapshot = await cluster.poll("t", "c", include_clients=True)
    assert set(snapshot.nodes) == set(snapshot.stats) == {having.name, given.name}
    assert other.asked == []
    assert "include_clients=true" in having.asked[-1]
    assert "topic=t&channel=c" in having.asked[-1]


async def test_a_topic_of_a_snapshot_is_asked_for_where_it_was_and_silent_nsqds_are_left_alone(
    stage: Stage,
) -> None:
    having, other, dead = await stage.nsqd("t"), await stage.nsqd("u"), await stage.nsqd("t")
    lookupd = await stage.lookupd(having, other, dead)
    cluster = stage.cluster(lookupd)
    await dead.stop()
    whole = await cluster.look()
    asked = [len(each.asked) for each in (lookupd, other)]
    found = await cluster.again(whole, "t")
    assert [len(each.asked) for each in (lookupd, other)] == asked
    assert "include_clients=true&include_mem=false&topic=t" in having.asked[-1]
    assert (set(found.stats), set(found.silent)) == ({having.name}, {dead.name})
    assert found.silent[dead.name] is whole.silent[dead.name]
    assert await cluster.unheld(whole) == []
    lookupd.answers["/topics"] = {"topics": ["t", "ghost"]}
    assert await cluster.unheld(whole) == ["ghost"]


async def test_waiting_for_room_takes_nothing_from_the_timeout_of_a_request(
    stage: Stage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqtools.engine.cluster._MAX_ASKED", 1)
    monkeypatch.setattr("nsqtools.net.http.api.monotonic", lambda: clock.now)
    nsqds = [await stage.nsqd("t") for _ in range(3)]
    names = [each.name for each in nsqds]
    cluster = Cluster([], names, timeout=60, connect_timeout=60, request_timeout=60)
    stage.stack.push_async_callback(cluster.close)
    whole = await cluster.look()
    report = NsqdHTTP.report

    async def slow(*args: Any, **values: Any) -> Any:
        found = await report(*args, **values)
        clock.now += 50
        return found

    monkeypatch.setattr(NsqdHTTP, "report", slow)
    assert (await cluster.again(whole, "t")).silent == {}


@pytest.mark.parametrize("kind", ["nsqd", "nsqlookupd"])
async def test_a_dead_server_is_a_failure_and_a_warning_once_until_it_answers(
    kind: str, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "nsqtools")
    well, nsqd = await stage.nsqd("t"), await stage.nsqd("t")
    lookupd = await stage.lookupd(well, nsqd)
    cluster = stage.cluster(lookupd)
    await cluster.poll()
    dead = nsqd if kind == "nsqd" else lookupd
    for _ in range(2):
        await dead.stop()
        for _ in range(2):
            snapshot = await cluster.poll()
            errors = snapshot.silent if kind == "nsqd" else snapshot.lookupds
            assert isinstance(errors[dead.name], HTTPError)
            assert set(snapshot.stats) == {well.name, nsqd.name} - {dead.name}
            assert (snapshot.samples()[nsqd.name] is None) == (kind == "nsqd")
        (told,) = caplog.messages
        assert dead.name in told
        caplog.clear()
        await dead.start()
        snapshot = await cluster.poll()
        assert set(snapshot.stats) == {well.name, nsqd.name}
        assert snapshot.lookupds == {lookupd.name: None}


async def test_who_vanishes_from_nsqlookupd_is_asked_for_a_while(
    stage: Stage, clock: Clock
) -> None:
    nsqd = await stage.nsqd("t")
    lookupd = await stage.lookupd(nsqd)
    cluster = stage.cluster(lookupd)
    await cluster.poll("t")
    await lookupd.stop()
    clock.now += 1000.0  # while no nsqlookupd answers nobody is forgotten
    assert set((await cluster.poll("t")).stats) == {nsqd.name}
    lookupd.answers["/nodes"] = {"producers": []}  # nobody has registered again yet
    await lookupd.start()
    clock.now += 299.0
    assert set((await cluster.poll("t")).stats) == {nsqd.name}
    await nsqd.stop()
    assert set((await cluster.look("t")).silent) == {nsqd.name}
    clock.now += 2.0
    assert (await cluster.poll("t")).nodes == {}


async def test_connections_to_who_is_forgotten_are_closed(
    stage: Stage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = daemons.NsqdHTTP.close

    async def closing(self: NsqdHTTP) -> None:
        await close(self)
        closed.append(str(self.address))

    monkeypatch.setattr(daemons.NsqdHTTP, "close", closing)
    given, lookupd = await stage.nsqd("t"), await stage.lookupd()
    cluster = stage.cluster(lookupd, nsqds=(given,))
    passing = [await stage.nsqd("t") for _ in range(4)]
    for number, each in enumerate(passing):
        lookupd.answers["/nodes"] = {"producers": [listed(each)]}
        assert set((await cluster.poll()).stats) == {given.name, each.name}
        assert closed == [gone.name for gone in passing[:number]]
        clock.now += 1000.0
    await cluster.close()
    assert sorted(closed) == sorted(each.name for each in [given, *passing])


@pytest.mark.parametrize("host", ["256.1.1.1", "xn--ls8h"])
async def test_an_address_that_can_be_nowhere_is_a_failure_of_that_nsqd_alone(
    stage: Stage, host: str
) -> None:
    well, badly = await stage.nsqd("t"), await stage.nsqd("t")
    badly.answers["/info"]["broadcast_address"] = host
    cluster = stage.cluster(await stage.lookupd(badly, well))
    for _ in range(2):
        snapshot = await cluster.poll("t")
        assert set(snapshot.stats) == {well.name}
        (failure,) = snapshot.silent.values()
        assert isinstance(failure, HTTPError)
        assert str(failure).startswith(f"{host}:{badly.port}: cannot ")
        assert len((await cluster.look()).nodes) == 2


async def test_an_answer_has_the_time_between_its_request_and_its_reply(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(100.0)
    monkeypatch.setattr("nsqtools.net.http.api.monotonic", lambda: clock.now)

    class Late(dict[str, Any]):
        def __getitem__(self, path: str) -> Any:
            clock.now += 4.0
            return super().__getitem__(path)

    nsqd = await stage.nsqd("t")
    nsqd.answers = Late(nsqd.answers)
    cluster = stage.cluster(nsqds=(nsqd,))
    for _ in range(2):
        snapshot = await cluster.poll()
        sample = snapshot.samples()[nsqd.name]
        assert sample
        assert sample.at == snapshot.time(nsqd.name) == clock.now - 2.0


async def test_nobody_at_all_is_unreachable(stage: Stage) -> None:
    nsqd, lookupd = await stage.nsqd(), await stage.lookupd()
    await nsqd.stop()
    assert (await stage.cluster(lookupd).poll()).nodes == {}
    with pytest.raises(UnreachableError, match=nsqd.name):
        await stage.cluster(lookupd, nsqds=(nsqd, Fake({}))).poll()
    await lookupd.stop()
    with pytest.raises(UnreachableError, match=lookupd.name):
        await stage.cluster(lookupd).poll()
    snapshot = await stage.cluster(nsqds=(nsqd,)).look()
    assert (snapshot.stats, set(snapshot.silent)) == ({}, {nsqd.name})


async def test_of_many_dead_nsqds_the_rest_is_a_number(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqtools.engine.cluster._MAX_LOGGED", 2)
    nsqds = [await stage.nsqd("t") for _ in range(4)]
    cluster = stage.cluster(await stage.lookupd(*nsqds))
    for nsqd in nsqds[1:]:
        await nsqd.stop()
    await cluster.poll()
    assert len(caplog.messages) == 3
    assert caplog.messages[-1] == "no answer from 1 more nsqd"
