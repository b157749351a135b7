"""A command as a service: signals, systemd, and the exit code of a run; in virtual time."""

import asyncio
import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from nsqtools.cli.commands.to_file import choose_topics
from nsqtools.cli.service import consume
from nsqtools.config.connection import ConsumerConfig
from nsqtools.config.consuming import SourceOptions, StopOptions
from nsqtools.config.files import ArchiveSourceOptions
from nsqtools.engine import lookup
from nsqtools.errors import ConfigError, OutputError
from nsqtools.names import Address
from nsqtools.net.http.daemons import Answers
from tests.support.clock import elapse, virtual
from tests.support.gathering import Gathering, errors, exit_code, refusing, time
from tests.support.scripted import Network, ScriptedNsqd, undisturbed


def serve(
    sink: Gathering,
    nsqd: ScriptedNsqd,
    *,
    topics: Sequence[str] = ("t",),
    hangup: Any = None,
    **stop: Any,
) -> asyncio.Task[int]:
    """The exit code of a command."""
    source = SourceOptions(topic=tuple(topics), nsqd_tcp_address=(str(nsqd.address),))
    config = ConsumerConfig(max_in_flight=100)
    run = consume(source, "c", config, StopOptions(**stop), sink, hangup=hangup)
    return asyncio.create_task(exit_code(run))


def kill(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("ignored", [False, True])
@virtual
async def test_a_hangup_is_passed_on_once_the_handler_is_open_if_it_was_not_ignored_at_the_start(
    ignored: bool,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.opening = partial(elapse, 10)
    hangups: list[float] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        run = serve(sink, nsqd, hangup=lambda: hangups.append(time()), max_duration=10.0)
        for _ in range(2):
            await elapse(8)
            kill(signal.SIGHUP)
            await elapse(0)
        assert await run == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert hangups == ([] if ignored else [pytest.approx(16)])


@pytest.mark.parametrize(
    ("held", "signals", "code", "said"),
    [
        ("opening", [(5, signal.SIGTERM)], 0, ["open", "close"]),
        ("opening", [(5, signal.SIGHUP)], 0, ["open", "close"]),
        ("opening", [(5, signal.SIGINT)], 130, ["open", "close"]),
        ("draining", [(1, signal.SIGTERM)] * 2, 1, ["open", "drain t", "close at once"]),
        ("draining", [(1, signal.SIGINT)] * 2, 130, ["open", "drain t", "close at once"]),
        # As timeout(1) does, which signals the process, and its group.
        (
            "draining",
            [(1, signal.SIGTERM), (0.05, signal.SIGTERM)],
            0,
            ["open", "drain t", "close"],
        ),
    ],
)
@virtual
async def test_a_signal_ends_an_opening_or_drains_and_a_second_one_drops_what_the_handler_holds(
    monkeypatch: pytest.MonkeyPatch,
    held: str,
    signals: list[tuple[float, int]],
    code: int,
    said: list[str],
) -> None:
    monkeypatch.setattr(os, "_exit", lambda _: pytest.fail("it did not end by itself"))
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"x")
    setattr(sink, held, partial(elapse, 10))
    async with undisturbed():
        run = serve(sink, nsqd)
        for delay, number in signals:
            await elapse(delay)
            kill(number)
        last = time()
        assert await run == code
    assert sink.said == said
    assert (nsqd.dials == []) == (held == "opening")
    at_once = said[-1] == "close at once"
    assert (nsqd.commands[-2:] == ["CLS", "abort"]) == at_once
    assert time() < last + 0.1 or not at_once


@virtual
async def test_a_second_signal_leaves_what_cannot_be_interrupted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    left: list[tuple[float, int]] = []
    monkeypatch.setattr(os, "_exit", lambda code: left.append((time(), code)))

    async def recover() -> None:
        try:
            await elapse(1000)
        except asyncio.CancelledError:
            await elapse(60)

    nsqd, sink = Network().nsqd(), Gathering()
    sink.opening = recover
    run = serve(sink, nsqd)
    for _ in range(2):
        await elapse(1)
        kill()
    await elapse(2)
    ((when, code),) = left
    assert (round(when, 1), code) == (2.5, 1)
    assert "\x1b" not in capfd.readouterr().err  # which is no terminal here
    assert await run == 1
    assert sink.said == ["open", "close at once"]
    assert nsqd.dials == []


@virtual
async def test_systemd_is_asked_for_more_time_until_a_topic_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    nsqd, sink = Network().nsqd(), Gathering()
    sink.opening = partial(elapse, 25)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        assert await serve(sink, nsqd, max_duration=10.0) == 0
        told: list[str] = []
        while len(told) < 6:
            told.append(listener.recv(4096).decode())
    more = "EXTEND_TIMEOUT_USEC=30000000\nSTATUS="
    assert [text[: len(more)] for text in told[:3]] == [more] * 3
    assert told[3] == "READY=1"
    assert told[4].startswith("STATUS=")
    assert told[5] == "STOPPING=1"


@virtual
async def test_topics_that_match_come_and_go_as_nsqlookupd_lists_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.stuck = {"t.gone": OutputError("t.gone.log: no space")}
    listed = ["t.gone", "other"]

    async def ask(urls: object, call: Callable[[Any], Awaitable[Any]], **_: object) -> Answers[Any]:
        asked = await call(SimpleNamespace(topics=AsyncMock(return_value=listed)))
        return Answers([(Address("lookupd", 4161), asked)], [])

    monkeypatch.setattr(lookup, "ask_lookupds", ask)
    monkeypatch.setattr(lookup, "producers_at", AsyncMock(return_value=[nsqd.address]))
    source = SourceOptions(topic=("unused",), lookupd_http_address=("lookupd:4161",))
    finding: dict[str, Any] = {"topics": re.compile(r"t\."), "refresh": 1.0}
    config = ConsumerConfig(max_in_flight=100)
    run = consume(source, "c", config, StopOptions(max_duration=200.0), sink, **finding)
    running = asyncio.create_task(exit_code(run))
    await elapse(5)
    listed = ["t.new"]
    assert await running == 1
    assert sink.joined == ["t.gone", "t.new"]
    assert sink.said == ["open", "drain t.gone", "drain t.new", "close"]
    assert errors(caplog) == [
        "topic t.gone: t.gone.log: no space",
        "not completely written: t.gone",
    ]


@virtual
async def test_topics_that_were_never_consumed_are_named_and_make_status_1(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.refuses = refusing("bad")
    sink.unready = {"worse": OutputError("worse.log: Permission denied")}
    assert await serve(sink, nsqd, topics=["bad", "good", "worse"], max_duration=5.0) == 1
    assert errors(caplog)[-1].endswith(": bad worse")


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [("draining", partial(elapse, 1000), 1), ("lost", 1, 4), ("left_behind", 1, 4)],
)
@virtual
async def test_what_is_not_drained_in_time_makes_status_1_and_what_was_lost_or_left_behind_4(
    name: str, value: object, code: int
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"x")
    setattr(sink, name, value)
    assert await serve(sink, nsqd, max_duration=5.0) == code


def test_named_topics_that_do_not_match_a_pattern_are_left_out() -> None:
    source = ArchiveSourceOptions(
        topic=("orders", "other", "reorder"),
        topic_pattern="order",
        nsqd_tcp_address=("127.0.0.1:4150",),
    )
    assert choose_topics(source) == ["orders", "reorder"]
    with pytest.raises(ConfigError, match="--topic-pattern"):
        choose_topics(source.with_values(topic_pattern="^x"))
    with pytest.raises(ConfigError, match="--topic-pattern needs --lookupd-http-address"):
        source.with_values(topic=()).check_complete()
