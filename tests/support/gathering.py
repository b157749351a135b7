"""Runs over scripted nsqds, into a handler that does as a test says."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.cli.exits import Ended
from nsqtools.config.connection import ConsumerConfig
from nsqtools.config.consuming import StopOptions
from nsqtools.engine.handler import Batch, Handler
from nsqtools.engine.runner import Runner, RunOutcome
from tests.support.scripted import ScriptedNsqd

if TYPE_CHECKING:
    from nsqtools.errors import NSQError


async def exit_code(run: Awaitable[None]) -> int:
    """The exit code of what a command awaits."""
    try:
        await run
    except Ended as ended:
        return ended.exit_code
    return 0


class Gathering(Handler):
    """A handler that settles only when it is told to, and notes what it is told and when.

    ``opening`` and ``draining`` are awaited where it does that. Topics that have an error in
    ``unready`` or ``stuck`` cannot be joined or drained. If it ``is_eager`` it settles when nsqd is
    starved, too; its first ``failing_flushes`` give everything back.
    """

    def __init__(self, act: Callable[[], Awaitable[object]] | None = None) -> None:
        self.ended: asyncio.Future[None]
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
        self.ended = asyncio.get_running_loop().create_future()

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


def make_runner(
    handler: Handler, *nsqds: ScriptedNsqd, topics: Sequence[str] = ("t",), **options: Any
) -> Runner:
    """A runner of channel c; ``options`` are of StopOptions, Runner, or else of ConsumerConfig."""
    stop = {name: options.pop(name) for name in StopOptions.declared() if name in options}
    own = ("refresh", "patient", "on_ready")
    running = {name: options.pop(name) for name in own if name in options}
    return Runner(
        topics,
        "c",
        handler,
        ConsumerConfig(**{"max_in_flight": 100, **options}),
        nsqds=[nsqd.address for nsqd in nsqds],
        stop=StopOptions(**stop),
        **running,
    )


def start(handler: Handler, *nsqds: ScriptedNsqd, **options: Any) -> asyncio.Task[RunOutcome]:
    """Such a runner, which runs."""
    return asyncio.create_task(make_runner(handler, *nsqds, **options).run())


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
