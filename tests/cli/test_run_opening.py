"""A sink that takes long to open: signals end that, and systemd is asked for patience."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from functools import partial
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import LockedError
from tests.support.clock import elapse, virtual
from tests.support.gathering import Gathering, start, time
from tests.support.scripted import Network, undisturbed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)]
)
@virtual
async def test_a_signal_ends_it_and_nothing_is_consumed(number: int, code: int) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.opening = asyncio.Event().wait
    async with undisturbed():
        run = start(sink, nsqd)
        await elapse(100)
        os.kill(os.getpid(), number)
        assert await run == code
    assert sink.said == ["open", "close"]
    assert nsqd.dials == []
    assert time() < 101


@virtual
async def test_a_signal_at_the_very_start_is_heard() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.opening = partial(asyncio.sleep, 0)
    run = start(sink, nsqd)
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run == 0
    assert sink.said[0] == "open"
    assert sink.said[-1] == "close"
    assert nsqd.in_flight == 0


@virtual
async def test_a_hangup_is_passed_on_only_once_it_is_open() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.opening = partial(elapse, 10)
    hangups: list[float] = []
    run = start(sink, nsqd, hangup=lambda: hangups.append(time()), max_duration=10.0)
    for _ in range(2):
        await elapse(8)
        os.kill(os.getpid(), signal.SIGHUP)
        await elapse(0)
    assert await run == 0
    assert hangups == [pytest.approx(16)]


@virtual
async def test_a_second_signal_leaves_what_cannot_be_interrupted(
    monkeypatch: pytest.MonkeyPatch,
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
    run = start(sink, nsqd)
    for _ in range(2):
        await elapse(1)
        os.kill(os.getpid(), signal.SIGTERM)
    await elapse(2)
    ((when, code),) = left
    assert (round(when, 1), code) == (2.5, 1)
    assert await run == 1
    assert sink.said == ["open", "close at once"]
    assert nsqd.dials == []


@virtual
async def test_what_fails_is_closed_and_its_error_raised() -> None:
    async def refuse() -> None:
        raise LockedError("x.lock is locked")

    nsqd, sink = Network().nsqd(), Gathering()
    sink.opening = refuse
    with pytest.raises(LockedError, match=r"x\.lock is locked"):
        await start(sink, nsqd)
    assert sink.said == ["open", "close"]


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
        assert await start(sink, nsqd, max_duration=10.0) == 0
        told: list[str] = []
        while len(told) < 6:
            told.append(listener.recv(4096).decode())
    more = "EXTEND_TIMEOUT_USEC=30000000\nSTATUS="
    assert [text[: len(more)] for text in told[:3]] == [more] * 3
    assert told[3] == "READY=1"
    assert told[4].startswith("STATUS=")
    assert told[5] == "STOPPING=1"
