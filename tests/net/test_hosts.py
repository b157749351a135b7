"""Lookups of names: shared while they are under way, and waited for by nobody who has to go."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from nsqtools.net import hosts
from nsqtools.net.hosts import addresses_of
from tests.support.clock import real_loops
from tests.support.eventually import eventually

V4, V6 = socket.AF_INET, socket.AF_INET6
NO_SUCH = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


class NameServer:
    """Answers ``NAME.test`` once its gate is open; ``asked`` has the names in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, list[tuple[int, str]] | Exception] = {}
        self.gates: dict[str, threading.Event] = {}

    def close(self, *names: str) -> None:
        """Hold the lookups of these names."""
        self.gates.update({name: threading.Event() for name in names})

    def open(self, name: str) -> None:
        self.gates[name].set()

    def getaddrinfo(self, name: str, *_: object, **__: object) -> list[Any]:
        self.asked.append(name)
        if name in self.gates:
            assert self.gates[name].wait(60)
        answer = self.answers.get(name, [(V4, "192.0.2.1")])
        if isinstance(answer, Exception):
            raise answer
        return [(family, socket.SOCK_STREAM, 6, "", (host, 0)) for family, host in answer]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    names = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    yield names
    for gate in names.gates.values():
        gate.set()
    eventually(lambda: not lookups())


def lookups() -> list[threading.Thread]:
    """The threads of lookups under way."""
    return [each for each in threading.enumerate() if each.name == "lookup"]


async def given_up(name: str) -> None:
    """Ask, and stop waiting a moment later."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            await addresses_of(name)
        raise AssertionError("the name server is not to answer")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%lo", "::ffff:192.0.2.1"])
async def test_an_address_is_not_looked_up(names: NameServer, host: str) -> None:
    assert await addresses_of(host) == [host]
    assert names.asked == []


async def test_the_families_take_turns(names: NameServer) -> None:
    names.answers["a.test"] = [(V6, "::1"), (V6, "::2"), (V4, "1.1.1.1"), (V6, "::3")]
    assert await addresses_of("a.test") == ["::1", "1.1.1.1", "::2", "::3"]


@pytest.mark.parametrize("error", [NO_SUCH, UnicodeError("label empty or too long")])
async def test_who_shares_a_lookup_gets_its_error_or_addresses(
    names: NameServer, error: Exception
) -> None:
    names.close("a.test", "b.test")
    names.answers["b.test"] = error
    calls = [asyncio.ensure_future(addresses_of(name)) for name in ("a.test", "b.test") * 3]
    await asyncio.sleep(0)
    assert sorted(names.asked) == ["a.test", "b.test"]
    names.open("a.test")
    assert await asyncio.gather(*calls[::2]) == [["192.0.2.1"]] * 3
    names.open("b.test")
    errors = await asyncio.gather(*calls[1::2], return_exceptions=True)
    assert [(type(each), str(each)) for each in errors] == [(type(error), str(error))] * 3
    assert len(set(map(id, errors))) == 3


async def test_a_dead_name_has_one_thread_however_often_it_is_tried_and_delays_no_other(
    names: NameServer,
) -> None:
    dead = [f"dead{number}.test" for number in range(40)]
    names.close(*dead)
    for _ in range(3):
        await asyncio.gather(*map(given_up, dead))
    assert sorted(names.asked) == sorted(dead)
    assert len(lookups()) == len(dead)
    async with asyncio.timeout(60):
        assert await addresses_of("alive.test") == ["192.0.2.1"]
    names.open(dead[0])
    eventually(lambda: len(lookups()) == len(dead) - 1)
    assert await addresses_of(dead[0]) == ["192.0.2.1"]  # a lookup of its own


@pytest.mark.parametrize("new_loop", real_loops())
def test_a_loop_ends_before_its_lookups_and_another_one_joins_them(
    names: NameServer, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    names.close("a.test")
    for _ in range(2):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(given_up("a.test"))

    async def joined() -> Sequence[str]:
        abandoned.close()
        asyncio.get_running_loop().call_soon(names.open, "a.test")  # when this has joined
        return await addresses_of("a.test")

    async def begin() -> None:
        left.send(None)

    abandoned, left = new_loop(), addresses_of("a.test")  # no task, which would complain
    abandoned.run_until_complete(begin())
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(joined()) == ["192.0.2.1"]
    left.close()
    assert names.asked == ["a.test"]


async def test_a_thread_that_cannot_begin_is_an_error_of_this_lookup_only(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(OSError, match="thread"):
            await addresses_of("a.test")
    assert await addresses_of("a.test") == ["192.0.2.1"]
    assert names.asked == ["a.test"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_waits_for_no_thread_of_its_parent(names: NameServer) -> None:
    with hosts._lock:  # as if held by the thread of a lookup
        child = os.fork()
        if not child:
            signal.alarm(60)
            found: Sequence[str] = ()
            with contextlib.suppress(BaseException):  # nothing of pytest may go on here
                found = asyncio.run(addresses_of("a.test"))
            os._exit(found != ["192.0.2.1"])
    assert os.waitpid(child, 0)[1] == 0
