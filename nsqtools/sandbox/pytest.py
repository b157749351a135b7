"""A pytest plugin with the fixture ``nsq``, an empty sandbox for each test.

Write ``pytest_plugins = ["nsqtools.sandbox.pytest"]`` in the top-level ``conftest.py``. To change
nsqd's options, override the fixture ``nsq_options``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pytest

from nsqtools.config.sandbox import NsqdOptions
from nsqtools.names import check_name
from nsqtools.sandbox import Sandbox
from nsqtools.sandbox.nsqd.nsqd_stats import take_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")

_PATIENCE = 30.0  # timeout in seconds for calls into the sandbox's loop
_PAUSE = 0.005
_CHANNEL = "nsq_fixture"


class LoopThread:
    """An event loop in a thread of its own; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nsq", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result; raises TimeoutError."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_PATIENCE)


class Nsq:
    """A running sandbox, in a thread with its own event loop; a context manager.

    Its methods may be called from any thread, and from tests that are coroutines. Addresses are
    ``host:port``.
    """

    def __init__(self, options: NsqdOptions | None = None) -> None:
        self._sandbox = Sandbox(nsqd=options)
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._call = stack.enter_context(LoopThread()).call
            self._call(self._sandbox.start())
            stack.callback(lambda: self._call(self._sandbox.stop()))
            self._running = stack.pop_all()
        self.nsqd_tcp_address = str(self._sandbox.nsqd.tcp)
        self.nsqd_http_address = str(self._sandbox.nsqd.http)
        self.lookupd_tcp_address = str(self._sandbox.lookupd.tcp)
        self.lookupd_http_address = str(self._sandbox.lookupd.http)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def publish(self, topic: str, *bodies: bytes | str, defer: float = 0.0) -> None:
        """Publish messages, deferred by ``defer`` seconds; on return nsqlookupd knows the topic."""
        raw = [body.encode() if isinstance(body, str) else body for body in bodies]
        self._call(self._sandbox.publish(topic, raw, defer=defer))

    def messages(self, topic: str, count: int = 1, *, timeout: float = 10.0) -> list[bytes]:
        """Return the next ``count`` bodies of a topic; raises AssertionError after ``timeout``
        seconds.

        The first call creates a channel for this. If it is the topic's first channel, it gets all
        messages that the topic holds.
        """
        return self._wait(lambda: self._take(topic, count), timeout)

    def stats(self, topic: str = "", channel: str = "") -> dict[str, Any]:
        """Return ``/stats`` as nsqd's JSON, of one topic or channel if named."""
        return self._call(self._stats(topic, channel))

    def wait_until_empty(self, topic: str, channel: str, *, timeout: float = 10.0) -> None:
        """Return when the channel exists and all messages of the topic are finished.

        Raises AssertionError after ``timeout`` seconds.
        """
        self._wait(lambda: self._check_empty(topic, channel), timeout)

    def _wait(self, look: Callable[[], Coroutine[Any, Any, T]], timeout: float) -> T:
        """Call ``look`` until it raises no AssertionError, and return its result."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._call(look())
            except AssertionError as error:
                if time.monotonic() > deadline:
                    raise AssertionError(f"after {timeout:g} s: {error}") from None
            time.sleep(_PAUSE)

    async def _stats(self, topic: str, channel: str) -> dict[str, Any]:
        return take_stats(self._sandbox.nsqd, topic, channel)

    async def _check_empty(self, topic: str, channel: str) -> None:
        found = self._sandbox.nsqd.broker.topics.get(topic)
        if not found or channel not in found.channels:
            raise AssertionError(f"channel {topic}/{channel} does not exist")
        it = found.channels[channel]
        waiting, in_flight = found.depth + it.depth, len(it.in_flight)
        if waiting or in_flight or it.deferred_count:
            raise AssertionError(
                f"channel {topic}/{channel} has {waiting} waiting messages, {in_flight} in flight "
                f"and {it.deferred_count} deferred"
            )

    async def _take(self, topic: str, count: int) -> list[bytes]:
        broker = self._sandbox.nsqd.broker
        waiting = broker.topic(check_name("topic", topic)).channel(_CHANNEL).waiting
        if len(waiting) < count:
            raise AssertionError(f"topic {topic} has {len(waiting)} of {count} messages")
        return [waiting.popleft().body for _ in range(count)]


@pytest.fixture
def nsq_options() -> NsqdOptions:
    """Options of the sandbox's nsqd, by default nsqd's defaults. Override to change them."""
    return NsqdOptions()


@pytest.fixture
def nsq(nsq_options: NsqdOptions) -> Iterator[Nsq]:
    """An empty sandbox for this test."""
    with Nsq(nsq_options) as running:
        yield running
