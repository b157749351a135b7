"""A command's run over scripted nsqds, into a sink that does as a test says."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from nsqtools.cli.consumers import Consumers
from nsqtools.cli.run import consume
from nsqtools.config import ConsumerConfig, SourceOptions, StopOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import pytest

    from nsqtools.engine.handler import Batch, Message
    from nsqtools.errors import NSQError
    from tests.support.scripted import ScriptedNsqd


class Gathering:
    """A sink that settles only when it is told to, and notes what it is told and when.

    ``opening`` and ``draining`` are awaited where the sink does that. Topics that have an error in
    ``unready`` or ``stuck`` cannot be joined or drained. If it ``is_eager`` it settles when nsqd is
    starved, too; its first ``failing_flushes`` give everything back.
    """

    def __init__(self, act: Callable[[], Awaitable[object]] | None = None) -> None:
        self.failed: asyncio.Future[None]
        self.lost = 0
        self.said: list[str] = []
        self.flushed: list[float] = []
        self.bodies: list[bytes] = []
        self.joined: list[str] = []
        self.waiting: set[str] = set()
        self.unready: dict[str, NSQError] = {}
        self.stuck: dict[str, NSQError] = {}
        self.opening: Callable[[], Awaitable[object]] | None = None
        self.draining: Callable[[], Awaitable[object]] | None = None
        self.is_eager = False
        self.failing_flushes = 0
        self._held: dict[str, list[Batch]] = {}
        self._act = act

    async def open(self) -> None:
        self.said.append("open")
        if self.opening:
            await self.opening()
        self.failed = asyncio.get_running_loop().create_future()

    async def join(self, topic: str) -> None:
        self.joined.append(topic)
        if topic in self.waiting:
            await asyncio.Event().wait()
        if error := self.unready.get(topic):
            raise error

    async def handle(self, batch: Batch) -> None:
        if self._act:
            await self._act()
        batch.hold()
        self.bodies += [message.body for message in batch]
        self._held.setdefault(batch.topic, []).append(batch)
        if batch.starved and self.is_eager:
            self.flush()

    async def gave_up(self, messages: Sequence[Message]) -> None:
        self.said.append(f"gave up {len(messages)}")

    async def drain(self, topic: str) -> None:
        self.said.append(f"drain {topic}")
        if self.draining:
            await self.draining()
        if error := self.stuck.get(topic):
            raise error
        for batch in self._held.pop(topic, ()):
            batch.finish()

    def flush(self) -> None:
        self.flushed.append(asyncio.get_running_loop().time())
        self.failing_flushes -= 1
        for topic, batches in self._held.items():
            self._held[topic] = []
            for batch in batches:
                if self.failing_flushes >= 0:
                    batch.requeue(delay=0)
                else:
                    batch.finish()

    async def close(self, *, at_once: bool = False) -> None:
        self.said.append("close at once" if at_once else "close")


def start(
    sink: Gathering, *nsqds: ScriptedNsqd, topics: Sequence[str] = ("t",), **stop: Any
) -> asyncio.Task[int]:
    source = SourceOptions(
        topic=tuple(topics), nsqd_tcp_address=tuple(str(nsqd.address) for nsqd in nsqds)
    )
    config = ConsumerConfig(max_in_flight=stop.pop("max_in_flight", 100))
    hangup = stop.pop("hangup", None)
    return asyncio.create_task(
        consume(source, "c", config, StopOptions(**stop), sink, hangup=hangup)
    )


def consumers(sink: Gathering, config: ConsumerConfig, **limits: Any) -> Consumers:
    """What adds, drops and counts topics of a run that tries again every minute."""
    return Consumers(
        sink,
        config,
        count=0,
        retry=60.0,
        all_fail=False,
        **limits,
        on_reached=bool,
        silence=None,
    )


def refusing(*topics: str) -> Callable[[str], str | None]:
    """What an nsqd answers that refuses these topics."""

    def answer(command: str) -> str | None:
        refused = any(command.startswith(f"SUB {topic} ") for topic in topics)
        return "E_BAD_TOPIC refused" if refused else None

    return answer


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as an error or worse."""
    return [record.message for record in caplog.records if record.levelno >= logging.ERROR]


def time() -> float:
    return asyncio.get_running_loop().time()
