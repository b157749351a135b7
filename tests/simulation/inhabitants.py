"""Who lives in the simulation: each command in a life of its own, and a program of the library."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from nsqtools import Consumer, ConsumerConfig, Subscription
from nsqtools.engine.handler import Handler
from nsqtools.errors import NSQError
from nsqtools.names import Address
from tests.simulation.consumers import CrowdLife, FileLife, HttpLife, RelayLife, TailLife
from tests.simulation.endings import CountLife, UntilEmptyLife
from tests.simulation.lives import CHANNEL, PATIENCE, TOPIC, Life
from tests.simulation.plans import ACTIVE_TIME, Fault, Plan
from tests.simulation.redriving import DirectoryRedriveLife, TopicRedriveLife
from tests.simulation.world import World
from tests.support.processes import Process

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from nsqtools.engine.handler import Batch
    from nsqtools.proto.messages import Message


def live(plan: Plan, folder: Path, *, talk: bool = False) -> World:
    """Live a plan; returns the world, with what was ``wrong`` in it. Raises ViolationError."""
    limit = ACTIVE_TIME + 20 * PATIENCE
    world = World(str(plan.seed), folder, limit=limit, ahead=plan.ahead, talk=talk)
    for line in str(plan).splitlines():
        world.log(line)
    world.run(_kind(plan)(world, plan).run())
    return world


def _kind(plan: Plan) -> type[Life]:
    if plan.kind == "staging":
        from tests.simulation.staging import StagingLife  # needs pyspark

        return StagingLife
    return CrowdLife if plan.style == "beside others" else _KINDS[plan.kind]


class Recorder(Handler):
    """A handler of the library that tells when it is called."""

    def __init__(self, life: LibraryLife) -> None:
        self.life = life
        self.opened = self.closed = 0

    async def open(self) -> None:
        self.opened += 1

    async def handle(self, batch: Batch) -> None:
        if not self.opened or self.closed:
            self.life.world.violated("the handler is not open")
        if pause := self.life.pause:
            await asyncio.sleep(pause * len(batch))
        random = self.life.random
        if random.random() < self.life.fails:
            raise ValueError("as told")
        again = [m for m in batch if m.attempts == 1 and random.random() < self.life.requeues]
        batch.requeue(again, delay=random.random() * 5, backoff=False)
        rest = [message for message in batch if message not in again]
        if random.random() < self.life.holds:
            batch.hold()
            loop = asyncio.get_running_loop()
            loop.call_later(random.random() * 20, self._settle, batch, rest)
        else:
            self._settle(batch, rest)

    def _settle(self, batch: Batch, messages: list[Message]) -> None:
        batch.finish(messages)
        self.life.handled += [message.body for message in messages]

    async def close(self, *, at_once: bool = False) -> None:
        self.closed += 1


class LibraryLife(Life):
    """A Consumer of the library, started and stopped in a program."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.handled: list[bytes] = []
        self.pause = self.random.choice((0.0, 0.0, 0.02))
        self.fails = 0.0
        self.requeues = self.random.choice((0.0, 0.0, 0.1))
        self.holds = self.random.choice((0.0, 0.0, 0.3)) if self.in_flight > 5 else 0.0
        self.process = Process("program", "host-0")
        self.handlers: list[Recorder] = []
        self._consumer: Consumer | None = None
        self._task: asyncio.Task[Any] | None = None

    def start(self, number: int) -> Any:
        handler = Recorder(self)
        self.handlers.append(handler)
        options = self.plan.options
        timeout = float(options[options.index("--msg-timeout") + 1].rstrip("s"))
        config = ConsumerConfig(max_in_flight=self.in_flight, msg_timeout=timeout)
        servers: dict[str, Any] = {"nsqds": tuple(Address(s.name, 4150) for s in self.servers)}
        if self.lookupds:
            servers = {"lookupds": tuple(f"{each.name}:4161" for each in self.lookupds)}
        subscription = Subscription(topic=TOPIC, channel=CHANNEL, **servers)

        async def work() -> None:
            self._consumer = Consumer(subscription, handler, config)
            try:
                await self._consumer.run()
            except Exception as error:
                self.world.log(f"program: {error!r}")
                if not isinstance(error, NSQError):
                    self.world.violated(f"program: {error!r}")
            finally:
                self._consumer = None

        self.world.max_in_flight[self.process] = self.in_flight
        context = self.process.context.copy()
        self._task = context.run(self.world.loop.create_task, work())
        return None

    def arrived(self) -> Iterable[bytes]:
        return self.handled

    def again(self, number: int) -> None:
        """It runs all the time, unless nobody answered at the start or it was ended."""
        if self._task and self._task.done() and not self.over:
            self.start(number)

    async def fault_term(self, fault: Fault) -> None:
        """The program stops its Consumer, or cancels it; then it makes another one."""
        if self._consumer and fault.how < 0.5:
            self._consumer.stop()
        elif self._task:
            self._task.cancel()
        await self._ended()

    async def _ended(self) -> None:
        if self._task:
            await asyncio.wait([self._task], timeout=600)
            if not self._task.done():
                self.world.violated("Consumer.run: still there after 600 s")

    async def watch(self) -> None:
        """Its start is not patient."""
        while True:
            await asyncio.sleep(5)
            self.again(0)

    @property
    def unanswered(self) -> int:
        """What the program held when it stopped its Consumer, and settles all the same."""
        return self.in_flight * self.times({"term"}) if self.holds else 0

    def fault_max_in_flight(self, fault: Fault) -> Any:
        if not (consumer := self._consumer):
            return None

        def limit(most: int) -> None:
            known = self.world.max_in_flight
            known[self.process] = max(most, known[self.process])
            consumer.set_max_in_flight(most)
            known[self.process] = most

        limit(int(fault.how * 4))
        return lambda: limit(self.in_flight)

    def fault_handler(self, fault: Fault) -> Any:
        self.fails = fault.how / 2
        return lambda: setattr(self, "fails", 0.0)

    async def finish(self) -> None:
        if self._consumer:
            self._consumer.stop()
        await self._ended()
        if left := self.world.tasks_of(self.process):
            self.world.violated(f"left tasks: {left}")
        if ends := self.world.network.ends_of(self.process):
            self.world.violated(f"left ends: {ends}")
        for handler in self.handlers:
            if (handler.opened, handler.closed) != (1, 1):
                self.world.violated(f"handler: opened {handler.opened}, closed {handler.closed}")
        self.compare()


class PubLife(Life):
    """``pub`` several times: exit 0 means that an nsqd has each message."""

    async def run(self) -> None:
        await self.begin()
        faults = [asyncio.ensure_future(self.suffer(each)) for each in self.plan.faults]
        for number in range(6):
            await asyncio.sleep(self.random.random() * ACTIVE_TIME / 6)
            words = [f"p{number}-{n}" for n in range(1 + self.plan.messages // 20)]
            mode = self.random.choice(("hostpool", "round-robin", "all"))
            argv = ["pub", "--topic", TOPIC, "--mode", mode, *self.where, *words]
            before = self._health()
            command = self.world.command(f"pub-{number}", "host-0", argv)
            await command.wait(PATIENCE)
            took = self.world.now - command.began
            if (
                mode != "all"
                and any(before)
                and before == self._health()
                and took > (40 if self.lookupds else 10)
            ):
                self.world.violated(f"pub: {took:.0f} s beside a healthy nsqd")
            if command.process.alive:
                self.world.violated(f"pub: still there after {PATIENCE:g} s")
            elif command.code == 0:
                self._check(mode, [word.encode() for word in words])
            elif not self.plan.faults:
                self.world.violated(f"pub: exit {command.code} without a fault")
        await asyncio.gather(*faults)

    def _health(self) -> list[bool]:
        """Which nsqds answer."""
        if any(self.world.network.cuts.values()) or self.world.network.latency > 0.01:
            return []
        return [each.process.alive and not each.process.stopped for each in self.servers]

    def _check(self, mode: str, bodies: list[bytes]) -> None:
        """All are there; again only once for each fault."""
        held = [
            Counter(body for _, body in server.received.get(TOPIC, ())) for server in self.servers
        ]
        wanted = len(held) if mode == "all" else 1
        for body in bodies:
            copies = sum(body in each for each in held)
            is_short = mode == "all" and copies < len(held) and not self.lookupds
            if not copies or is_short:
                self.world.violated(f"pub --mode {mode}: exit 0, and {copies} nsqds have {body!r}")
            if sum(each[body] for each in held) > wanted + len(self.plan.faults):
                self.world.violated(f"pub --mode {mode}: {body!r} came again and again")

    def start(self, number: int) -> Any:
        return None


_KINDS: dict[str, type[Life]] = {
    "tail": TailLife,
    "to-http": HttpLife,
    "relay": RelayLife,
    "to-file": FileLife,
    "library": LibraryLife,
    "until-empty": UntilEmptyLife,
    "count": CountLife,
    "pub": PubLife,
    "redrive": TopicRedriveLife,
    "redrive-dir": DirectoryRedriveLife,
}
