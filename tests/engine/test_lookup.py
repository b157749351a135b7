"""What consumers take of an nsqlookupd."""

import re
from contextlib import AsyncExitStack
from email.utils import formatdate
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from nsqtools import ConsumerConfig, Subscription
from nsqtools.engine.lookup import Backlog, TopicFinder, find_producers
from nsqtools.engine.outages import OutageLog
from nsqtools.errors import UnreachableError
from nsqtools.names import Address
from nsqtools.policy import topics
from tests.support.scripted_http import NODE, reply, serving, v1
from tests.support.staging import Stage

if TYPE_CHECKING:
    from nsqtools.policy.topics import Change

MOST = 2000


@pytest.mark.parametrize("listed", [MOST, MOST + 1])
async def test_a_list_of_more_nsqds_than_can_be_consumed_is_refused(listed: int) -> None:
    """Each is connected to at once; a part of them would leave messages without a consumer."""
    producers = [{**NODE, "broadcast_address": f"nsqd-{number}"} for number in range(listed)]
    async with serving(v1({"channels": [], "producers": producers})) as server:
        at = Subscription(topic="t", channel="c", lookupds=(str(server.address),))
        if listed <= MOST:
            found, failed = await find_producers(at, ConsumerConfig(), OutageLog())
            assert (len(found), failed) == (listed, [])
            return
        with pytest.raises(UnreachableError) as raised:
            await find_producers(at, ConsumerConfig(), OutageLog())
    for part in (str(server.address), "2,001 nsqds for topic t", "--nsqd-tcp-address"):
        assert part in str(raised.value)


async def test_a_topic_is_not_gone_while_an_nsqlookupd_does_not_answer_which_is_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MIN_GRACE", 0.0)
    one, two = await stage.lookupd(), await stage.lookupd()
    one.answers["/topics"], two.answers["/topics"] = {"topics": ["a"]}, {"topics": ["b"]}
    names = (one.name, two.name)
    changes: list[Change] = []
    finder = TopicFinder(
        names, re.compile(".*"), ConsumerConfig(), refresh=0.0, timeouts=(60.0, 60.0)
    )
    assert all(name in said for name, said in zip(names, finder.unknown, strict=True))
    await finder.look(changes.append)
    assert list(finder.unknown) == []
    answer = two.answers.pop("/topics")
    for _ in range(3):
        await finder.look(changes.append)
    (unknown,) = finder.unknown
    assert two.name in unknown
    two.answers["/topics"] = answer | {"topics": []}
    assert sorted(name for each in changes for name in each.appeared) == ["a", "b"]
    assert not any(each.disappeared for each in changes)
    for _ in range(2):
        await finder.look(changes.append)
    assert [name for each in changes for name in each.disappeared] == ["b"]
    assert list(finder.unknown) == []


@pytest.mark.parametrize(
    ("leads", "given", "known"),
    [
        ((0, 3600), 0, [0, 3600]),  # each at the port after its TCP port
        ((0, None), 0, [0]),
        ((3600,), 1, [3600]),
        ((None,), 1, []),
        ((3600, 3601), 2, [3600, 3600]),  # whose address is whose is unknown, and does not matter
        ((0, 3600), 2, []),
        ((0, None), 2, []),
        ((0, 0), 1, []),
    ],
)
async def test_the_clock_of_each_nsqd_is_that_of_its_responses(
    leads: tuple[int | None, ...], given: int, known: list[int]
) -> None:
    at = 1_800_000_000
    async with AsyncExitStack() as stack:
        servers = []
        for lead in leads:
            date = "" if lead is None else f"Date: {formatdate(at + lead, usegmt=True)}\r\n"
            answer = reply('{"topics": []}', headers=date)
            servers.append((await stack.enter_async_context(serving(answer))).address)
        nsqds = tuple(Address(host, port - 1) for host, port in servers)
        subscription = Subscription(topic="t", channel="c", nsqds=nsqds)
        backlog = Backlog(subscription, ConsumerConfig(), [*map(str, servers)][:given])
        begun = monotonic()
        await backlog.left()
        ended = monotonic()
    clocks = [backlog.clocks[nsqd] for nsqd in nsqds if nsqd in backlog.clocks]
    for clock, lead in zip(clocks, known, strict=True):
        assert clock.earliest(begun) <= (at + lead) * 10**9
        assert clock.latest(ended) >= (at + lead + 1) * 10**9
        assert clock.uncertainty < 10
