"""What is asked of servers for a diagnosis, where a scripted one shows more than a live one."""

from __future__ import annotations

import asyncio
import json
import time
from email.utils import formatdate
from typing import Any

import pytest

from nsqtools.config import ConsumerConfig
from nsqtools.engine.doctor.examine import Question, examine
from nsqtools.names import Address
from tests.support.scripted_http import reply, serving, v1
from tests.support.servers import free_port


def question(**values: Any) -> Question:
    nobody: dict[str, Any] = dict.fromkeys(("nsqds", "lookupds", "urls"), ())
    timeouts = {"connect_timeout": 60.0, "request_timeout": 60.0}
    return Question(topic="events", channel="", **{**nobody, **timeouts, **values})


def nsqd_that_says(tcp: Address, date: str) -> bytes:
    body = {
        "version": "1.3.0",
        "broadcast_address": tcp.host,
        "tcp_port": tcp.port,
        "http_port": 4151,
        "topics": [],
    }
    return reply(json.dumps(body), headers=f"Date: {date}\r\n" if date else "")


@pytest.mark.parametrize("off", [3600, -3600, None])
async def test_the_clock_of_nsqd_is_that_of_its_http_replies(off: int | None) -> None:
    tcp = Address("127.0.0.1", free_port())
    date = formatdate(time.time() + off, usegmt=True) if off else "yesterday"
    async with serving(nsqd_that_says(tcp, date)) as server:
        facts = await examine(question(urls=(str(server.address),)), ConsumerConfig())
    (nsqd,) = facts.nsqds
    assert nsqd.skew == pytest.approx(off or 0, abs=60 if off else 0)
    assert (nsqd.tcp, nsqd.given) == (tcp, True)
    assert nsqd.tcp_error


async def test_the_api_of_a_fixed_nsqd_is_at_the_next_port_unless_one_is_given() -> None:
    tcp = Address("127.0.0.1", free_port())
    here = await examine(question(nsqds=(tcp,)), ConsumerConfig())
    assert here.nsqds[0].url == f"127.0.0.1:{tcp.port + 1}"
    says, hello = nsqd_that_says(tcp, ""), reply("hello")
    async with serving(says) as server, serving(hello, plain=True) as other:
        urls = str(other.address), str(server.address)
        given = await examine(question(nsqds=(tcp,), urls=urls), ConsumerConfig())
    assert [(each.tcp, each.url) for each in given.nsqds] == [(tcp, urls[1]), (None, urls[0])]


async def test_a_listed_nsqd_is_asked_over_tcp_while_http_does_not_answer() -> None:
    greeted = asyncio.Event()

    async def hang_up() -> bytes:
        greeted.set()
        return b""

    async with serving(hang_up, plain=True) as peer:

        async def answer() -> bytes:
            await greeted.wait()
            return nsqd_that_says(peer.address, "")

        async with serving(answer) as server:
            listed = {
                "hostname": "a",
                "broadcast_address": "127.0.0.1",
                "remote_address": "127.0.0.1:33000",
                "tcp_port": peer.address.port,
                "http_port": server.address.port,
                "version": "1.3.0",
                "topics": ["events"],
                "tombstones": [False],
            }
            said = {"topics": ["events"], "channels": [], "producers": [listed]}
            async with serving(v1(said)) as lookupd:
                facts = await examine(question(lookupds=(str(lookupd.address),)), ConsumerConfig())
    (nsqd,) = facts.nsqds
    assert nsqd.http_error is None
    assert nsqd.tcp_error is not None


async def test_who_gives_no_answer_is_asked_once() -> None:
    async with serving(None) as server:
        facts = await examine(
            question(urls=(str(server.address),), request_timeout=2.0), ConsumerConfig()
        )
    assert len(server.heads) == 1
    (nsqd,) = facts.nsqds
    assert nsqd.http_error is not None
    assert nsqd.http_error.reason == "silence"
