"""The lives of tail, to-http, relay and to-file, which consume until they are told to end."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import signal
from typing import TYPE_CHECKING, Any

from nsqtools.records.compression import load_zstd
from tests.simulation.lives import PATIENCE, TOPIC, Life
from tests.simulation.outputs import Endpoint
from tests.simulation.plans import ACTIVE_TIME, OF_DISKS, Fault, Plan
from tests.simulation.threads import SimulatedHook

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulation.servers import Server
    from tests.simulation.world import Command, World


_REQUEST_TIMEOUT = 20.0
"""Seconds after which to-http tries a request again, by default."""


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
    def unanswered(self) -> int:
        """Requests that the endpoint took without saying so."""
        options, concurrency = self.plan.options, 100
        if "--concurrency" in options:
            concurrency = int(options[options.index("--concurrency") + 1])
        under_way = min(self.in_flight, concurrency) * self.plan.copies
        silent = [
            fault
            for fault in self.plan.faults
            if fault.kind in ("endpoint stops", "latency")
            or (fault.kind == "endpoint" and fault.how >= 0.5)
        ]
        return under_way * sum(1 + int(fault.lasts / _REQUEST_TIMEOUT) for fault in silent)

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
        return [body for _, body in self.goal.received.get("copy", ())]

    @property
    def unanswered(self) -> int:
        """Messages that the destination took without an answer."""
        faults = {"destination stops", "destination restarts", "latency"}
        return self.in_flight * self.plan.copies * self.times(faults)

    def fault_destination_stops(self, fault: Fault) -> Any:
        return self.hang(self.goal)

    def fault_destination_restarts(self, fault: Fault) -> Any:
        return self.restart(self.goal, fault)


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
        yield from self._trimmed()

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
            age, before = 1 + int(self.random.random() * 30), set(self._trimmed())
            await self.errand(number, *argv, "--older-than", f"{age}s")
            self._check_trimmed(set(self._trimmed()) - before, self.world.now - age)

    def _trimmed(self) -> Iterable[bytes]:
        for folder, _, names in os.walk(self.archive):
            for name in names:
                if name.endswith(".json.gz"):
                    with gzip.open(os.path.join(folder, name), "rt") as file:
                        yield from (json.loads(line)["body"].encode() for line in file)

    def _check_trimmed(self, bodies: set[bytes], until: float) -> None:
        """What is younger stays, whatever the clocks show, unless that of an nsqd has jumped."""
        born = {body: at for server in self.servers for at, body in server.received[TOPIC]}
        young = [body for body in bodies if born[body] > until]
        if young and not any(fault.kind == "clock" for fault in self.plan.faults):
            self.world.violated(f"trim: {len(young)} messages are younger than the limit")

    async def drain(self, server: Server) -> None:
        """Exit 0 means that nothing was left when nothing was published for two seconds."""
        for number in range(3):
            await asyncio.sleep(self.random.random() * ACTIVE_TIME / 3)
            published = len(self.published)
            command = await self.errand(number, "node", "drain", server.http, "--timeout", "1m")
            left = server.left(TOPIC, self.channel)
            if command.code == 0 and left and published == len(self.published):
                self.world.violated(f"node drain: exit 0, and {left} messages are left")

    @property
    def unanswered(self) -> int:
        return super().unanswered + super(RelayLife, self).unanswered

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
        """The lines; once where the hook's ``rm`` was undone by a power failure."""
        return archived(self.world, self.world.disk.root, copies=self.nas)

    @property
    def unanswered(self) -> int:
        """What a command that has not ended well may have left in its file.

        It could neither write a sync as a whole nor cut it off.
        """
        if not any(fault.kind in OF_DISKS for fault in self.plan.faults):
            return 0
        return self.in_flight * sum(command.code != 0 for command in self.world.commands)

    def fault_hup(self, fault: Fault) -> None:
        self.pick(fault, list(self.commands.values())).signal(signal.SIGHUP)

    async def finish(self) -> None:
        for number in self.commands:
            await self.end(number)
        for number in self.commands:  # what the last one could not do the next one does
            self.start(number)
        await asyncio.sleep(30)
        await super().finish()


def archived(world: World, root: str, copies: str = "") -> Iterable[bytes]:
    """The lines of the files that to-file has completed; there are no others.

    Not those of which hooks have made ``copies``. On a disk without hard links that fails, an empty
    file that has reserved a name may be left.
    """

    def is_reserved(path: str) -> bool:
        return bool(world.disk.linkless) and not os.path.getsize(path)

    for folder, _, names in os.walk(root):
        if ".nsqtools" in folder:
            continue
        for name in sorted(names):
            if name.startswith("."):
                world.violated(f"{folder}/{name}: hidden and left")
            elif name.endswith(".part"):
                world.violated(f"{folder}/{name}: not completed")
            elif name.endswith(".damaged"):
                world.violated(f"{folder}/{name}: nothing was damaged")
            elif name.endswith(".torn") or is_reserved(os.path.join(folder, name)):
                continue
            elif not os.path.exists(SimulatedHook.copy_of(os.path.join(folder, name), copies)):
                yield from _content(os.path.join(folder, name)).splitlines()


def _content(path: str) -> bytes:
    """What is in an archive file, which readers of the compression's own library must take."""
    with open(path, "rb") as file:
        content = file.read()
    if ".gz" in path:
        return gzip.decompress(content)
    return load_zstd().decompress(content) if ".zst" in path else content
