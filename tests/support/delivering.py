"""An HttpSink in virtual time, before a transport whose answers are scripted."""

import asyncio
import contextlib
import gzip
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from nsqtools.engine.handler import Batch, Message
from nsqtools.policy.endpoints import make_endpoints as make_choice
from nsqtools.policy.pace import Pace
from nsqtools.policy.verdicts import Statuses
from nsqtools.sinks.deadletters import DeadLetters
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.courier import Courier, EachOf, OneOf
from nsqtools.sinks.http.httpsink import HttpSink
from nsqtools.sinks.http.post import Post
from tests.support.archiving import Settled, batch
from tests.support.clock import elapse

WALL = 1_800_000_000.0
"""Seconds since the epoch at which virtual time begins."""
LONGEST = 900.0
"""The longest delay that an endpoint may ask for, in seconds."""
SOON = 0.001

REFUSED = httpx.ConnectError("connection refused")
RESET = httpx.ReadError("connection reset")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a host does with a request, so many seconds after it came."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    after: float = 0.0
    error: BaseException | None = None


OK = Answer()
REFUSES = Answer(error=REFUSED)
RESETS = Answer(error=RESET)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it came, and what it gets: ``at`` in seconds of virtual time."""

    at: float
    host: str
    body: bytes
    request: httpx.Request
    answer: Answer


class Scripted(httpx.AsyncBaseTransport):
    """Hosts that answer with what ``next`` has for them, and then with what ``ever`` has.

    A body for which ``refuses`` is true gets status 400 wherever it comes.
    """

    def __init__(self) -> None:
        self.next: defaultdict[str, list[Answer]] = defaultdict(list)
        self.ever: dict[str, Answer] = {}
        self.refuses: Callable[[bytes], bool] = lambda _: False
        self.sent: list[Sent] = []
        self.most: Counter[str] = Counter()
        """Requests at once, by host."""
        self.is_closed = False
        self._busy: Counter[str] = Counter()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        body = b"".join(request.stream) if isinstance(request.stream, httpx.ByteStream) else b""
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        answer = self.next[host].pop(0) if self.next[host] else self.ever.get(host, OK)
        if not answer.error and self.refuses(body):
            answer = Answer(400)
        now = asyncio.get_running_loop().time()
        self.sent.append(Sent(now, host, body, request, answer))
        self._busy[host] += 1
        self.most[host] = max(self.most[host], self._busy[host])
        try:
            if answer.after:
                await elapse(answer.after)
        finally:
            self._busy[host] -= 1
        if answer.error:
            raise answer.error
        stream = httpx.ByteStream(answer.body)
        return httpx.Response(
            answer.status, headers=dict(answer.headers), stream=stream, request=request
        )

    async def aclose(self) -> None:
        self.is_closed = True

    def bodies(self, host: str = "") -> list[bytes]:
        """Of the requests so far, to one host or to all."""
        return [sent.body for sent in self.sent if host in ("", sent.host)]

    def hosts(self) -> list[str]:
        return [sent.host for sent in self.sent]

    def times(self) -> list[float]:
        return [sent.at for sent in self.sent]


class Letters(DeadLetters):
    """Dead letters in memory. Each call takes ``takes`` seconds, and ``error`` is raised."""

    def __init__(self) -> None:
        self.is_lossy = False
        self.written: list[tuple[bytes, str]] = []
        self.takes = 0.0
        self.error: BaseException | None = None
        self.said: list[str] = []

    @property
    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.written]

    async def open(self) -> None:
        self.said.append("open")

    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        if self.takes:
            await elapse(self.takes)
        if self.error:
            raise self.error
        assert all(message in batch.unsettled() for message in messages), "settled before it is"
        self.written += [(message.body, reason) for message in messages]

    async def close(self) -> None:
        self.said.append("close")


class Delivering:
    """A sink and all that it talks to; ``settled`` has what became of the messages."""

    def __init__(
        self,
        *,
        hosts: Sequence[str] = ("a",),
        mode: str = "round-robin",
        workers: int = 10,
        size: int = 1,
        wait: float = 0.2,
        rate: float = 0.0,
        share: float = 1.0,
        batch_format: str = "length-prefixed",
        statuses: Statuses | None = None,
    ) -> None:
        self.web = Scripted()
        self.letters = Letters()
        self.settled = Settled()
        loop = asyncio.get_running_loop()
        endpoints = make_endpoints(
            post=[f"http://{host}/" for host in hosts],
            batch_format=batch_format if size > 1 else "",
        )
        self.post = Post(
            endpoints,
            self.web,
            statuses or Statuses(),
            timeout=20.0,
            longest_delay=LONGEST,
            wall=lambda: WALL + loop.time(),
        )
        rng = random.Random(1)
        self.courier: Courier
        if mode == "all":
            self.courier = EachOf(self.post, rng=rng)
        else:
            choice = make_choice(mode, [endpoint.name for endpoint in endpoints])
            self.courier = OneOf(self.post, choice, rng=rng)
        self.sink = HttpSink(
            self.courier,
            self.letters,
            Pace(rate),
            workers=workers,
            size=size,
            wait=wait,
            share=share,
        )

    async def handle(self, *bodies: bytes | Message, **more: Any) -> Batch:
        """Hand it a batch; ``more`` is Batch's."""
        messages = batch(*bodies, settled=self.settled, **more)
        await self.sink.handle(messages)
        return messages

    async def deliver(self, *bodies: bytes | Message, wait: float = SOON, **more: Any) -> Batch:
        """Hand it a batch, and let so many seconds pass."""
        messages = await self.handle(*bodies, **more)
        await elapse(wait)
        return messages

    async def give_up(self, *bodies: bytes, **more: Any) -> Batch:
        messages = batch(*bodies, settled=self.settled, **more)
        await self.sink.gave_up(messages)
        return messages

    @property
    def finished(self) -> list[bytes]:
        return self.settled.finished

    @property
    def requeued(self) -> list[tuple[bytes, float | None, bool]]:
        """Body, delay and backoff."""
        return self.settled.requeued

    def states(self) -> dict[str, float]:
        """1 for an endpoint in use, by host."""
        return {
            httpx.URL(labels["endpoint"]).host: value
            for metric in self.sink.metrics()
            if metric.name == "nsqtools_http_endpoint_up"
            for labels, value in metric.samples
        }


@contextlib.asynccontextmanager
async def delivering(topics: Sequence[str] = ("events",), **more: Any) -> AsyncIterator[Delivering]:
    """An open sink that has joined the topics; ``more`` is that of Delivering."""
    running = Delivering(**more)
    await running.sink.open()
    for topic in topics:
        await running.sink.join(topic)
    try:
        yield running
    finally:
        if not running.web.is_closed:
            await running.sink.close(at_once=True)


async def open_breaker(running: Delivering) -> None:
    """Fail five messages one by one; the breaker is open for a second from now on."""
    running.web.ever["a"] = REFUSES
    for _ in range(5):
        await running.handle(b"lost", starved=True)
        await elapse(SOON)
    assert running.requeued[-5:] == [(b"lost", None, True)] * 5
    running.requeued.clear()
    running.web.sent.clear()
