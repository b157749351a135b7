"""Who lives in the simulation: each command in a life of its own, and a program of the library."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import signal
from typing import TYPE_CHECKING, Any

from nsqtools import Consumer, ConsumerConfig, Subscription
from nsqtools.engine.handler import Handler
from nsqtools.errors import NSQError
from nsqtools.names import Address
from nsqtools.records.compression import load_zstd
from tests.simulation.lives import CHANNEL, MAX_MSG_TIMEOUT, PATIENCE, TOPIC, Life
from tests.simulation.outputs import Endpoint
from tests.simulation.plans import ACTIVE_TIME, Fault, Plan
from tests.simulation.redriving import DirectoryRedriveLife, TopicRedriveLife
from tests.simulation.world import Command, Server, World
from tests.support.processes import Process

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from nsqtools.engine.handler import Batch
    from nsqtools.proto.messages import Message


def live(plan: Plan, folder: Path, *, talk: bool = False) -> World:
    """Live a plan; returns the world, with what was ``wrong`` in it. Raises ViolationError."""
    world = World(str(plan.seed), folder, limit=ACTIVE_TIME + 20 * PATIENCE, talk=talk)
    for line in str(plan).splitlines():
        world.log(line)
    world.run(_kind(plan)(world, plan).run())
    return world


def _kind(plan: Plan) -> type[Life]:
    if plan.kind == "staging":
        from tests.simulation.staging import StagingLife  # needs pyspark

        return StagingLife
    return CrowdLife if plan.style == "beside others" else _KINDS[plan.kind]


class TailLife(Life):
    """``tail`` into a pipe whose reader pauses."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.all: list[Command] = []

    def argv(self, number: int) -> list[str]:
        return ["tail"]

    def start(self, number: int) -> Command:
        command = super().start(number)
        self.all.append(command)
        return command

    def arrived(self) -> Iterable[bytes]:
        return [line for command in self.all for line in command.output.lines]

    def fault_reader(self, fault: Fault) -> None:
        if self.commands:
            self.pick(fault, list(self.commands.values())).output.pauses.append(fault.lasts)


class HttpLife(Life):
    """``to-http`` to one endpoint, and what that refuses to a directory of dead letters."""

    async def begin(self) -> None:
        self.folder = os.path.join(self.world.disk.make("host-0"), "dead")
        self.endpoint = Endpoint(self.world, "hook")
        self.endpoint.is_picky = self.plan.style == "dead letters"
        await self.endpoint.start()
        await super().begin()

    def host(self, number: int) -> str:
        return "host-0"

    def argv(self, number: int) -> list[str]:
        argv = ["to-http", "--post", "http://hook/"]
        if self.plan.style == "dead letters":
            argv += ["--drop-on", "400", "--dead-letter-dir", self.folder]
        return argv

    def arrived(self) -> Iterable[bytes]:
        yield from self.endpoint.accepted
        path = os.path.join(self.folder, "t.dead.jsonl")
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            for line in file:
                yield json.loads(line)["body"].encode()

    def fault_endpoint(self, fault: Fault) -> Any:
        """It is slow, or moody where that is not to be calm."""
        if fault.how < 0.5:
            self.endpoint.delay = 0.02 + fault.how * 4
            return lambda: setattr(self.endpoint, "delay", 0.0)
        self.endpoint.mood = "moody"
        return lambda: setattr(self.endpoint, "mood", "good")

    @property
    def is_once(self) -> bool:
        """Whether the endpoint has taken nothing without saying so, too."""
        is_late = any(f.kind == "endpoint" and f.how >= 0.5 for f in self.plan.faults)
        return super().is_once and not is_late

    def fault_endpoint_stops(self, fault: Fault) -> Any:
        return self.hang(self.endpoint)


class RelayLife(Life):
    """``relay`` to another nsqd."""

    async def begin(self) -> None:
        self.goal = self.world.server("goal")
        await self.goal.start()
        self.goal.make("copy", "all")
        await super().begin()

    def argv(self, number: int) -> list[str]:
        return [
            "relay",
            "--destination-nsqd-tcp-address",
            self.goal.tcp,
            "--destination-topic",
            "copy",
        ]

    def arrived(self) -> Iterable[bytes]:
        return [
            message.body for message in self.goal.nsqd.broker.topics["copy"].channels["all"].waiting
        ]

    def fault_destination_stops(self, fault: Fault) -> Any:
        return self.hang(self.goal)

    def fault_destination_restarts(self, fault: Fault) -> Any:
        return self.restart(self.goal)


class CrowdLife(RelayLife, HttpLife, TailLife):
    """``relay``, ``to-http`` and ``tail`` on one channel, which ``channel trim`` trims meanwhile.

    ``node drain`` watches the first nsqd.
    """

    async def begin(self) -> None:
        self.archive = os.path.join(self.world.disk.make("host-0"), "archive")
        await super().begin()
        for server in self.servers:
            self.publish_to(server, self.plan.messages)
        others = self.trim(), self.drain(self.servers[0])
        self.others = [asyncio.ensure_future(each) for each in others]
        await asyncio.sleep(self.random.random() * ACTIVE_TIME)  # so that something becomes old

    def argv(self, number: int) -> list[str]:
        return [RelayLife, HttpLife, TailLife][number % 3].argv(self, number)

    def arrived(self) -> Iterable[bytes]:
        yield from RelayLife.arrived(self)
        yield from HttpLife.arrived(self)
        yield from TailLife.arrived(self)
        for folder, _, names in os.walk(self.archive):
            for name in names:
                if name.endswith(".json.gz"):
                    with gzip.open(os.path.join(folder, name), "rt") as file:
                        yield from (json.loads(line)["body"].encode() for line in file)

    async def errand(self, number: int, *argv: str) -> Command:
        """Run another command to its end."""
        where = [w for each in self.servers for w in ("--nsqd-http-address", each.http)]
        where = where if argv[0] == "channel" else []
        command = self.world.command(f"{argv[1]}-{number}", "host-0", [*argv, *where])
        await command.wait(PATIENCE)
        if command.process.alive:
            self.world.violated(f"{command.process}: still there after {PATIENCE:g} s")
        return command

    async def trim(self) -> None:
        for number in range(3):
            await asyncio.sleep(self.random.random() * ACTIVE_TIME / 3)
            argv = ["channel", "trim", TOPIC, self.channel, "--yes", "--archive", self.archive]
            age = f"{1 + int(self.random.random() * 30)}s"
            await self.errand(number, *argv, "--older-than", age)

    async def drain(self, server: Server) -> None:
        """Exit 0 means that nothing was left when nothing was published for two seconds."""
        for number in range(3):
            await asyncio.sleep(self.random.random() * ACTIVE_TIME / 3)
            published = len(self.published)
            command = await self.errand(number, "node", "drain", server.http, "--timeout", "1m")
            left = server.left(TOPIC, self.channel)
            if command.code == 0 and left and published == len(self.published):
                self.world.violated(f"node drain: exit 0, and {left} messages are left")

    async def connect(self) -> None:
        await asyncio.gather(*self.others)
        await super().connect()


class FileLife(Life):
    """``to-file`` with what follows a file: a hook that moves it, or an upload."""

    async def begin(self) -> None:
        for number in range(self.plan.copies):
            self.world.disk.make(self.host(number))
        self.nas = self.world.disk.make("nas")
        await super().begin()

    def host(self, number: int) -> str:
        return "host-0"

    def argv(self, number: int) -> list[str]:
        style = self.plan.style
        own = "" if style == "one directory" else f"-{number}"
        home = os.path.join(self.world.disk.root, self.host(number), f"out{own}")
        rev = "<REV>" if "--rotate-interval" in self.plan.options else ""
        argv = [
            "to-file",
            "--output-dir",
            home,
            "--filename-format",
            f"<TOPIC>.{number}.<DATETIME>{rev}.log",
        ]
        argv += ["--datetime-format", "%Y-%m-%d_%H"]
        if "hook" in style:
            argv += ["--on-rotate", f"archive 2 {self.nas} {{}}"]
        if style == "upload":
            argv += ["--upload", f"{self.nas}/{number}", "--delete-uploaded"]
        return argv

    def arrived(self) -> Iterable[bytes]:
        return _archived(self.world, self.world.disk.root)

    def fault_hup(self, fault: Fault) -> None:
        self.pick(fault, list(self.commands.values())).signal(signal.SIGHUP)

    async def finish(self) -> None:
        for number in self.commands:
            await self.end(number)
        for number in self.commands:  # what the last one could not do the next one does
            self.start(number)
        await asyncio.sleep(30)
        await super().finish()


def _archived(world: World, root: str) -> Iterable[bytes]:
    """The lines of the files that to-file has completed; there are no others."""
    for folder, _, names in os.walk(root):
        if ".nsqtools" in folder:
            continue
        for name in sorted(names):
            if name.startswith("."):
                world.violated(f"{folder}/{name}: hidden and left")
            elif name.endswith(".part"):
                world.violated(f"{folder}/{name}: not completed")
            else:
                yield from _content(os.path.join(folder, name)).splitlines()


def _content(path: str) -> bytes:
    """What is in an archive file, which readers of the compression's own library must take."""
    with open(path, "rb") as file:
        content = file.read()
    if ".gz" in path:
        return gzip.decompress(content)
    return load_zstd().decompress(content) if ".zst" in path else content


class EndingLife(TailLife):
    """``tail`` or ``to-file`` with a condition that stops it."""

    async def begin(self) -> None:
        self.archive = os.path.join(self.world.disk.make("host-0"), "out")
        await super().begin()

    def ended(self, command: Command) -> None:
        """What its exit code means is checked at the end."""

    def argv(self, number: int) -> list[str]:
        if self.plan.style != "to-file":
            return ["tail"]
        names = ["--filename-format", "<TOPIC>.<DATETIME><REV>.log"]
        return ["to-file", "--output-dir", self.archive, *names]

    def arrived(self) -> Iterable[bytes]:
        yield from super().arrived()
        yield from _archived(self.world, self.archive)


class UntilEmptyLife(EndingLife):
    """``--until-empty``: exit 0 means that nothing is left, anywhere."""

    def argv(self, number: int) -> list[str]:
        return [*super().argv(number), "--until-empty"]

    def ended(self, command: Command) -> None:
        if command.code == 0 and (left := self.left()):
            self.world.violated(f"--until-empty: exit 0, and {left} messages are left")

    def left(self) -> int:
        """Messages that nsqds have which are listed, if an nsqlookupd lists them."""
        listed = {name for each in self.lookupds for name in each.listed(TOPIC)}
        known = [each for each in self.servers if not self.lookupds or each.name in listed]
        return sum(server.left(TOPIC, self.channel) for server in known)

    async def run(self) -> None:
        await self.begin()
        for server in self.servers:
            self.publish_to(server, self.plan.messages)
        faults = [asyncio.ensure_future(self.suffer(each)) for each in self.plan.faults]
        await asyncio.sleep(self.random.random() * ACTIVE_TIME)
        while self.commands.get(0) is None or self.commands[0].code != 0:
            command = self.start(0)
            await command.wait(PATIENCE)
            if self.plan.is_calm and command.code:
                self.world.violated(f"until-empty calm: exit {command.code}")
            if command.process.alive:
                self.world.violated(f"--until-empty: still there after {PATIENCE:g} s")
                break
            await asyncio.sleep(5)
            if self.world.now > 20 * PATIENCE:
                self.world.violated("--until-empty: never exits with 0")
                break
        self.over = True
        await asyncio.gather(*faults)
        if not self.lookupds:  # which may have forgotten an nsqd
            self.compare()

    is_once = False

    async def fault_server_dies(self, fault: Fault) -> None:
        server: Server = self.pick(fault, self.servers)
        if (start := self.restart(server)) is not None:
            await asyncio.sleep(60 + fault.lasts)
            await start()


class CountLife(EndingLife):
    """``-n``: exit 0 means that nsqd has finished so many, and that they have arrived."""

    def argv(self, number: int) -> list[str]:
        return [*super().argv(number), "-n", str(self.wanted)]

    async def run(self) -> None:
        self.wanted = max(1, self.plan.messages // 2)
        await self.begin()
        for server in self.servers:
            self.publish_to(server, self.plan.messages)
        command = self.start(0)
        for fault in self.plan.faults:
            if fault.kind == "reader":
                command.output.pauses.append(fault.lasts)
        faults = [asyncio.ensure_future(self.suffer(each)) for each in self.plan.faults]
        await command.wait(ACTIVE_TIME + PATIENCE)
        await asyncio.gather(*faults)
        await asyncio.sleep(PATIENCE + MAX_MSG_TIMEOUT)
        if command.process.alive:
            self.world.violated("-n: never ends")
            return
        finished = sum(len(server.finishes.get((TOPIC, CHANNEL), ())) for server in self.servers)
        if command.code == 0 and finished != self.wanted:
            self.world.violated(f"-n {self.wanted}: exit 0, and nsqd has finished {finished}")
        if command.code == 0 and (arrived := len(set(self.arrived()))) < self.wanted:
            self.world.violated(f"-n {self.wanted}: exit 0, and {arrived} have arrived")
        if self.plan.is_calm and command.code:
            self.world.violated(f"-n: exit {command.code} without a fault")


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
        held = []
        for server in self.servers:
            channel = server.nsqd.broker.topics[TOPIC].channels[CHANNEL]
            held.append({message.body for message in channel.waiting})
        for body in bodies:
            copies = sum(body in each for each in held)
            is_short = mode == "all" and copies < len(held) and not self.lookupds
            if not copies or is_short:
                self.world.violated(f"pub --mode {mode}: exit 0, and {copies} nsqds have {body!r}")

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
