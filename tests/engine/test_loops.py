"""Which nsqds are one, by what they say of themselves or by their addresses."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nsqtools.config.connection import ConsumerConfig, ProducerConfig
from nsqtools.engine import loops
from nsqtools.engine.loops import LoopGuard, RelayEnd
from nsqtools.errors import ConfigError
from nsqtools.names import Address
from tests.support.scripted_http import OneReply, reply, serving, v1

NOWHERE, ELSEWHERE = Address("127.0.0.1", 1), Address("127.0.0.1", 3)
"""Nobody answers at the ports after these."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to answer than a command would wait."""
    monkeypatch.setattr(loops, "_CONNECT_TIMEOUT", 60.0)
    monkeypatch.setattr(loops, "_REQUEST_TIMEOUT", 60.0)


def about(tcp_port: int = 4150, start_time: int = 1_700_000_000, **more: Any) -> dict[str, Any]:
    return {
        "version": "1.3.0",
        "hostname": "h",
        "broadcast_address": "nsqd.example",
        "tcp_port": tcp_port,
        "http_port": 4151,
        "start_time": start_time,
        **more,
    }


def saying(**more: Any) -> contextlib.AbstractAsyncContextManager[OneReply]:
    """An nsqd's HTTP API."""
    return serving(v1(about(**more)))


def guard(
    source: Address = NOWHERE,
    destination: Address = ELSEWHERE,
    *,
    source_http: OneReply | None = None,
    destination_http: OneReply | None = None,
    lookupd: OneReply | None = None,
) -> LoopGuard:
    return LoopGuard(
        {"t": "t"},
        RelayEnd(
            ConsumerConfig(),
            (source,),
            (str(lookupd.address),) if lookupd else (),
            (str(source_http.address),) if source_http else (),
        ),
        RelayEnd(
            ProducerConfig(),
            (destination,),
            http=(str(destination_http.address),) if destination_http else (),
        ),
    )


@contextlib.asynccontextmanager
async def refusal() -> AsyncIterator[None]:
    with pytest.raises(ConfigError, match=r"topic t .* t of"):
        yield


async def test_those_of_which_nothing_is_known_are_told_by_their_addresses() -> None:
    await guard().check()
    async with refusal():
        await guard(destination=NOWHERE).check()


async def test_who_says_the_same_of_himself_is_the_same() -> None:
    async with saying() as one, saying() as two, refusal():
        await guard(source_http=one, destination_http=two).check()


@pytest.mark.parametrize(
    "other",
    [
        {"start_time": 1_700_000_001},
        {"http_port": 4161},
        {"hostname": "g"},
        {"broadcast_address": "other.example"},
    ],
)
async def test_who_says_anything_else_is_another(other: dict[str, Any]) -> None:
    async with saying() as one, saying(**other) as two:
        await guard(source_http=one, destination_http=two).check()


async def test_the_port_after_that_of_tcp_counts_if_it_is_of_the_same_nsqd() -> None:
    async with saying() as one:
        beside = one.address._replace(port=one.address.port - 1)
        async with saying() as known:
            await guard(source=beside, destination_http=known).check()
        async with serving(v1(about(beside.port))) as known:
            await guard(source=beside, destination_http=known).check()


async def test_what_is_no_nsqd_is_done_without() -> None:
    for answer in (reply("hello"), v1({"version": "0.3"}), reply("no", 403)):
        async with serving(answer) as one, serving(answer) as two:
            await guard(source_http=one, destination_http=two).check()


@pytest.mark.parametrize(
    ("later", "is_same"),
    [(0, True), (1, False), (None, True)],
    ids=["it started then", "it started later", "it does not say"],
)
async def test_a_node_of_nsqlookupd_is_known_by_what_it_said_there_and_when_it_started(
    later: int | None, is_same: bool
) -> None:
    async def answer() -> bytes:
        if later is None:
            return reply("no", 403)
        return v1({**said, "start_time": said["start_time"] + later})

    async with serving(answer) as source:
        said = about(broadcast_address="127.0.0.1", http_port=source.address.port)
        listed = {"producers": [{**said, "remote_address": "127.0.0.1:9"}]}
        async with serving(v1(said)) as goal, serving(v1(listed)) as lookupd:
            made = guard(lookupd=lookupd, destination_http=goal)
            async with refusal() if is_same else contextlib.nullcontext():
                await made.check()


async def test_an_nsqd_that_joins_later_is_known_by_its_addresses() -> None:
    async with saying() as http:
        made = guard(destination_http=http)
        await made.check()
        for known in (ELSEWHERE, Address("nsqd.example", 4150)):
            assert isinstance(made.error_for("t", known), ConfigError)
            assert made.error_for("another", known) is None
        assert made.error_for("t", NOWHERE) is None
