"""Lives of commands that end by themselves, when nothing is left or after a number of messages."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from tests.simulation.consumers import TailLife, archived
from tests.simulation.lives import CHANNEL, MAX_MSG_TIMEOUT, PATIENCE, TOPIC
from tests.simulation.plans import ACTIVE_TIME, Fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulation.servers import Server
    from tests.simulation.world import Command


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
        yield from archived(self.world, self.archive)


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

    async def fault_server_dies(self, fault: Fault) -> None:
        server: Server = self.pick(fault, self.servers)
        if (start := self.restart(server, fault)) is not None:
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
