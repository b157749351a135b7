"""What consumers take of an nsqlookupd."""

import re
from typing import TYPE_CHECKING

import pytest

from nsqtools import ConsumerConfig, Subscription
from nsqtools.engine.lookup import TopicFinder, find_producers
from nsqtools.engine.outages import OutageLog
from nsqtools.errors import UnreachableError
from nsqtools.policy import topics
from tests.support.scripted_http import NODE, serving, v1
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
