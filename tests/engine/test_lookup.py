"""What consumers take of an nsqlookupd."""

from __future__ import annotations

import pytest

from nsqtools import ConsumerConfig, Subscription
from nsqtools.engine.lookup import find_producers
from nsqtools.engine.membership import Silence
from nsqtools.errors import UnreachableError
from tests.support.scripted_http import NODE, serving, v1

MOST = 2000


@pytest.mark.parametrize("listed", [MOST, MOST + 1])
async def test_a_list_of_more_nsqds_than_can_be_consumed_is_refused(listed: int) -> None:
    """Each is connected to at once; a part of them would leave messages without a consumer."""
    producers = [{**NODE, "broadcast_address": f"nsqd-{number}"} for number in range(listed)]
    async with serving(v1({"channels": [], "producers": producers})) as server:
        at = Subscription(topic="t", channel="c", lookupds=(str(server.address),))
        if listed <= MOST:
            found, failed = await find_producers(at, ConsumerConfig(), Silence())
            assert (len(found), failed) == (listed, [])
            return
        with pytest.raises(UnreachableError) as raised:
            await find_producers(at, ConsumerConfig(), Silence())
    for part in (str(server.address), "2,001 nsqds for topic t", "--nsqd-tcp-address"):
        assert part in str(raised.value)
