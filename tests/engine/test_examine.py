"""What is asked of servers for a diagnosis, where a scripted one shows more than a live one."""

from __future__ import annotations

import json
import time
from email.utils import formatdate

import pytest

from nsqtools.config.connection import ConsumerConfig
from nsqtools.engine.doctor.examine import Question, examine
from nsqtools.names import Address
from tests.support.scripted_http import reply, serving
from tests.support.servers import free_port


@pytest.mark.parametrize("off", [3600, -3600, None])
async def test_the_clock_of_nsqd_is_that_of_its_http_replies(off: int | None) -> None:
    tcp = Address("127.0.0.1", free_port())
    at = {"broadcast_address": tcp.host, "tcp_port": tcp.port, "http_port": 4151}
    said = json.dumps({"version": "1.3.0", "topics": [], **at})
    date = formatdate(time.time() + off, usegmt=True) if off else "yesterday"
    async with serving(reply(said, headers=f"Date: {date}\r\n")) as server:
        urls = (str(server.address),)
        question = Question(topic="t", channel="", nsqds=(), lookupds=(), urls=urls, timeout=60)
        facts = await examine(question, ConsumerConfig())
    (nsqd,) = facts.nsqds
    assert nsqd.skew == pytest.approx(off or 0, abs=60 if off else 0)
    assert (nsqd.tcp, nsqd.given) == (tcp, True)
    assert nsqd.tcp_error


async def test_an_nsqd_whose_tcp_port_nobody_knows_is_asked_over_http() -> None:
    async with serving(reply('{"version": "1.3.0", "topics": []}')) as server:
        urls = (str(server.address),)
        question = Question(topic="t", channel="", nsqds=(), lookupds=(), urls=urls, timeout=60)
        (nsqd,) = (await examine(question, ConsumerConfig())).nsqds
    assert (nsqd.tcp, nsqd.version, nsqd.topic, nsqd.http_error) == (None, "1.3.0", None, None)
