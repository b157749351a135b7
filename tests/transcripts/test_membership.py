"""Who a consumer is connected to: first contact, loss and return, fixed or by discovery."""

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from unittest.mock import Mock

import pytest

from nsqtools import Consumer, ConsumerConfig, Subscription
from nsqtools.errors import AuthError, NSQError, RefusedError, UnreachableError
from nsqtools.names import Address
from nsqtools.policy.rdy import ByteBudget
from tests.support.clock import elapse
from tests.support.scripted import (
    Network,
    Recorder,
    ScriptedFinder,
    ScriptedNsqd,
    consume,
    running,
)


class Directory:
    """What nsqlookupd knows."""

    def __init__(self, *nsqds: ScriptedNsqd) -> None:
        self.listed = list(nsqds)
        self.failing = False
        self.asked: list[float] = []

    async def find(self, _: str) -> Iterable[Address]:
        self.asked.append(asyncio.get_running_loop().time())
        if self.failing:
            raise UnreachableError("no nsqlookupd answers")
        return [nsqd.address for nsqd in self.listed]


def times(nsqd: ScriptedNsqd) -> list[int]:
    return [round(at) for at in nsqd.dials]


def delays(nsqd: ScriptedNsqd) -> list[float]:
    return [later - earlier for earlier, later in pairwise(nsqd.dials)]


async def test_a_lost_fixed_nsqd_is_dialled_soon_and_then_less_and_less(
    nsqd: ScriptedNsqd,
) -> None:
    recorder = Recorder()
    async with running(consume(recorder, nsqd)):
        nsqd.down = True
        nsqd.break_off()
        await elapse(500)
        for delay, most in zip(delays(nsqd), [1, 2, 4, 8, 16, 32, 64, 120, 120], strict=False):
            assert most / 2 <= delay <= most
        assert len(nsqd.dials) > 9
        nsqd.down = False
        await elapse(120)
        nsqd.publish(b"x")
        await elapse(1)
        assert recorder.seen == [(1, 1)]
        await elapse(120)
        nsqd.break_off()
        await elapse(1)
        assert len(nsqd.clients) == 1


async def test_an_nsqd_that_drops_each_connection_is_dialled_less_and_less(
    nsqd: ScriptedNsqd,
) -> None:
    async with running(consume(Recorder(), nsqd)):
        for _ in range(600):
            nsqd.break_off()
            await elapse(0.2)
    assert len(nsqd.dials) < 10


async def test_an_nsqlookupd_that_hangs_delays_no_other(network: Network) -> None:
    """Neither at the start nor in a later round."""
    first, second = network.nsqd("first"), network.nsqd("second")
    directory = Directory(first)

    async def find(url: str) -> Iterable[Address]:
        if url == "hung:4161":
            await asyncio.Event().wait()
        return await directory.find(url)

    recorder = Recorder()
    lookupds = ("hung:4161", "healthy:4161")
    subscription = Subscription(topic="t", channel="c", lookupds=lookupds)
    config = ConsumerConfig(max_in_flight=4)
    async with running(
        Consumer(subscription, recorder, config, rng=Random(1), finder=ScriptedFinder(find))
    ):
        assert len(first.clients) == 1
        first.break_off()
        directory.listed = [second]
        await elapse(3)
        assert len(second.clients) == 1


async def test_a_listed_nsqd_that_hangs_is_dialled_once_at_a_time(network: Network) -> None:
    healthy, hung = network.nsqd("healthy"), network.nsqd("hung")
    hung.silent = True
    async with running(consume(Recorder(), find=Directory(hung, healthy).find)):
        for _ in range(18):
            await elapse(1)
            healthy.break_off()
        assert times(hung) == [0]


async def test_a_message_over_the_maximum_is_one_error_however_often_it_comes(
    nsqd: ScriptedNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    async with running(consume(recorder, nsqd, max_msg_size=10)):
        nsqd.publish(b"x" * 11)
        await elapse(500)
        assert len(nsqd.dials) > 2
    told = [each for each in caplog.records if "--max-msg-size 10" in each.message]
    assert [each.levelname for each in told if each.levelname != "INFO"] == ["ERROR"]
    assert not recorder.seen


async def test_the_error_of_an_nsqd_comes_before_that_of_an_nsqlookupd(nsqd: ScriptedNsqd) -> None:
    nsqd.hole = True

    async def find(url: str) -> Iterable[Address]:
        if url == "silent:4161":
            raise UnreachableError("silent:4161: connection refused")
        return [nsqd.address]

    at = Subscription(topic="t", channel="c", lookupds=("silent:4161", "healthy:4161"))
    with pytest.raises(UnreachableError, match=r"^nsqd:4150: "):
        await Consumer(at, Recorder(), finder=ScriptedFinder(find)).run()


@pytest.mark.parametrize("discovered", [False, True])
@pytest.mark.parametrize(
    ("fault", "kind", "seconds"),
    [
        ("down", UnreachableError, 0),
        ("hole", UnreachableError, 3),
        ("silent", UnreachableError, 20),
        ("E_AUTH_FAILED no", AuthError, 0),
        ("E_SUB_FAILED channel full", UnreachableError, 0),
        ("HTTP/1.1 400 Bad Request", RefusedError, 0),
    ],
)
async def test_a_start_that_fails_ends_the_run_with_an_error_that_names_the_nsqd(
    fault: str, kind: type[NSQError], seconds: int, discovered: bool
) -> None:
    nsqd = Network().nsqd(auth_required="AUTH" in fault)

    def refuse(text: str) -> str | None:
        if fault.startswith("HTTP"):
            nsqd.send(fault.encode())
        return fault if fault.startswith("E_" + text.partition(" ")[0]) else None

    nsqd.refuses = refuse
    if hasattr(nsqd, fault):
        setattr(nsqd, fault, True)
    find = Directory(nsqd).find if discovered else None
    with pytest.raises(kind, match=r"^nsqd:4150: ") as caught:
        await consume(Recorder(), nsqd, find=find, auth_secret="barley", dial_timeout=3).run()
    assert asyncio.get_running_loop().time() == pytest.approx(seconds, abs=0.01)
    assert "barley" not in str(caught.value)
    assert nsqd.clients == []


async def test_a_lost_nsqd_returns_only_when_it_is_listed_again(network: Network) -> None:
    lost, kept = network.nsqd("lost"), network.nsqd("kept")
    directory = Directory(lost, kept)
    async with running(consume(Recorder(), find=directory.find, max_in_flight=4)):
        assert times(lost) == times(kept) == [0]
        directory.listed.remove(lost)
        lost.break_off()
        await elapse(300)
        assert times(lost) == [0]
        directory.listed.append(lost)
        await elapse(80)
        assert len(lost.clients) == 1
        assert times(kept) == [0]
        assert len(kept.clients) == 1


async def test_a_listed_nsqd_that_is_down_is_dialled_once_a_round(network: Network) -> None:
    healthy, down = network.nsqd("healthy"), network.nsqd("down")
    down.down = True
    directory = Directory(healthy, down)
    async with running(consume(Recorder(), find=directory.find)):
        await elapse(299)
        assert 4 <= len(directory.asked) <= 5
        assert len(down.dials) == len(directory.asked)


async def test_a_failing_find_keeps_the_connections_and_is_asked_again(network: Network) -> None:
    old, new = network.nsqd("old"), network.nsqd("new")
    directory = Directory(old)
    async with running(consume(Recorder(), find=directory.find, max_in_flight=4)):
        directory.failing = True
        await elapse(400)
        assert times(old) == [0]
        assert len(directory.asked) > 4
        directory.failing = False
        directory.listed[:] = [new, new]  # twice, and the old one is listed no more
        await elapse(80)
        assert len(new.clients) == len(old.clients) == 1


async def test_a_topic_that_no_nsqlookupd_lists_is_said_once(
    nsqd: ScriptedNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    directory = Directory()
    async with running(consume(Recorder(), find=directory.find)):
        await elapse(400)
        assert caplog.messages == ["topic t: nsqlookupd lists no nsqd yet: waiting"]
        directory.listed[:] = [nsqd]
        await elapse(80)
        assert len(nsqd.clients) == 1


async def test_a_find_with_a_bug_ends_the_run_not_discovery_alone(nsqd: ScriptedNsqd) -> None:
    directory = Directory(nsqd)

    async def find(url: str) -> Iterable[Address]:
        if directory.asked:
            raise ZeroDivisionError
        return await directory.find(url)

    with pytest.raises(ZeroDivisionError):
        await consume(Recorder(), find=find).run()
    assert nsqd.commands == ["RDY 1", "CLS", "end of stream"]


async def test_a_bug_in_receiving_ends_the_run_and_is_not_taken_for_a_lost_connection(
    nsqd: ScriptedNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ByteBudget, "note", Mock(side_effect=ZeroDivisionError))
    run = asyncio.create_task(consume(Recorder(), nsqd).run())
    await elapse(1)
    nsqd.publish(b"x")
    with pytest.raises(ZeroDivisionError):
        await run


async def test_an_nsqlookupd_that_answers_after_all_may_still_lead_to_the_first_nsqd(
    network: Network,
) -> None:
    nsqd = network.nsqd()
    nsqd.hole = True
    asked: list[str] = []

    async def find(url: str) -> list[Address]:
        asked.append(url)
        if url == "a:4161" and asked.count(url) > 1:
            return [nsqd.address]
        await elapse(0 if url == "a:4161" else 3)
        raise UnreachableError(f"{url}: no answer")

    at = Subscription(topic="t", channel="c", lookupds=("a:4161", "b:4161"))
    with pytest.raises(UnreachableError):
        await Consumer(
            at, Recorder(), ConsumerConfig(dial_timeout=5.0), finder=ScriptedFinder(find)
        ).run()
    assert asked.count("a:4161") > 1
