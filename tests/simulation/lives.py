"""One life: servers, commands and faults of a plan, and what must hold all the time and at the end.

Invariants. Everything published arrives, although processes die, disks forget and servers hang; but
for what an nsqd has in memory only when it is killed. It arrives once; after a fault, what was in
flight may arrive again, as the guide ``delivery`` says. After the last fault all is settled within
``PATIENCE`` seconds, and commands end by SIGTERM. An exit code means what it says. A healthy nsqd
is consumed whatever the others do. Handlers that were opened are closed once, no task is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

from nsqtools.names import Address
from tests.simulation.plans import ACTIVE_TIME, AGAIN, OF_DISKS, OF_SERVERS, ONCE, Fault, Plan
from tests.simulation.servers import Lookupd, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from tests.simulation.world import Command, World
    from tests.support.processes import Process

PATIENCE = 900.0
"""Seconds after the last fault in which everything must be settled."""
_UNSERVED = 12.0
"""Seconds that messages of a healthy nsqd may wait although its consumer has room for them."""
MAX_MSG_TIMEOUT = 900.0
TOPIC, CHANNEL = "t", "c"
GARBAGE = (
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    bytes(50),
    b"\xff" * 50,
    b"\x00\x00\x00\x15\x00\x00\x00\x01E_INVALID bad thing",
    b"\x00\x00\x00\x12\x00\x00\x00\x01E_FIN_FAILED x",
    b"\x00\x00\x00\x0a\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00",
)
"""What a hostile server sends: no protocol, sizes that cannot be, errors, a message cut short."""


class Life:
    """What lives of all kinds share: servers, faults, the publisher, and the end."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world, self.plan = world, plan
        self.random = world.random("life")
        options = {"max_msg_timeout": MAX_MSG_TIMEOUT}
        self.servers = [world.server(f"nsqd-{n}", **options) for n in range(plan.servers)]
        self.lookupds = [Lookupd(world, f"lookupd-{n}") for n in range(plan.lookupds)]
        self.published: list[bytes] = []
        self.commands: dict[int, Command] = {}
        """The running command of each copy."""
        self.channel = CHANNEL
        self.over = False
        self._unhealthy: dict[Server, float] = {}
        self._cut_since: dict[frozenset[str], float] = {}

    may_be_set_back = True
    """Whether clocks of nsqds may jump back."""

    async def run(self) -> None:
        """From the first server to the last check."""
        await self.begin()
        for number in range(self.plan.copies):
            self.start(number)
        publishing = asyncio.ensure_future(self.publish())
        watching = asyncio.ensure_future(self.watch())
        faults = [asyncio.ensure_future(self.suffer(each)) for each in self.plan.faults]
        await publishing
        await asyncio.gather(*faults)
        self.world.log("the last fault is over")
        self.revive()
        await self.settle()
        await self.connect()
        self.over = True
        watching.cancel()
        await asyncio.wait([watching])
        if not watching.cancelled():
            watching.result()
        await self.finish()

    async def begin(self) -> None:
        """Start the servers."""
        for lookupd in self.lookupds:
            await lookupd.start()
        for server in self.servers:
            server.lookupds = [Address(each.name, 4160) for each in self.lookupds]
            await server.start()
            server.make(TOPIC, self.channel)
        await asyncio.sleep(1)

    @property
    def where(self) -> list[str]:
        """The flags for the servers."""
        if self.lookupds:
            return [
                w for each in self.lookupds for w in ("--lookupd-http-address", f"{each.name}:4161")
            ]
        return [w for each in self.servers for w in ("--nsqd-tcp-address", each.tcp)]

    def host(self, number: int) -> str:
        """The host of a copy."""
        return f"host-{number}"

    def argv(self, number: int) -> list[str]:
        """The command line of a copy; empty for a kind that has none."""
        return []

    def arrived(self) -> Iterable[bytes]:
        """The bodies that have arrived where they were to go; none if a kind counts otherwise."""
        return ()

    def start(self, number: int) -> Command:
        """Start a copy, also again."""
        argv = [*self.argv(number), "--topic", TOPIC, "--channel", self.channel]
        argv += [*self.where, *self.plan.options]
        name = f"{self.plan.kind}-{number}"
        command = self.world.command(name, self.host(number), argv)
        self.world.max_in_flight[command.process] = self.in_flight
        command.on_exit = self.ended
        self.commands[number] = command
        return command

    def ended(self, command: Command) -> None:
        """A command without an end of its own runs until it is told to end."""
        if command.code and not command.is_ending and not self.is_excused(command):
            self.world.violated(f"{command.process}: exit {command.code} by itself")

    async def publish(self) -> None:
        """Publish the messages in the window, in a few bursts."""
        left, bursts = self.plan.messages, self.random.choice((1, 3, 20, 200))
        moments = sorted(self.random.random() * ACTIVE_TIME for _ in range(bursts))
        for number, moment in enumerate(moments):
            await asyncio.sleep(max(0.0, moment - self.world.now))
            size = left if number == bursts - 1 else min(left, -(-self.plan.messages // bursts))
            left -= size
            for server in self.random.sample(self.servers, len(self.servers)) if size else ():
                self.publish_to(server, size)

    def publish_to(self, server: Server, count: int) -> None:
        """Publish so many messages of their own."""
        first = len(self.published)
        pad = b"x" * (self.plan.size - 14)
        bodies = [
            b"m%08d %s %s" % (first + n, server.name[-1:].encode(), pad) for n in range(count)
        ]
        self.published += bodies
        self.world.log(f"{len(bodies)} messages to {server.name}")
        server.publish(TOPIC, bodies)

    async def suffer(self, fault: Fault) -> None:
        """Let a fault begin and end."""
        await asyncio.sleep(max(0.0, fault.at - self.world.now))
        self.world.log(f"fault: {fault}")
        begin: Callable[[Fault], Any] = getattr(self, f"fault_{fault.kind.replace(' ', '_')}")
        heal = begin(fault)
        if asyncio.iscoroutine(heal):
            await heal
            return
        await asyncio.sleep(fault.lasts)
        if heal:
            result = heal()
            if asyncio.iscoroutine(result):
                await result
        self.world.log(f"over: {fault}")

    def pick(self, fault: Fault, of: list[Any]) -> Any:
        """The victim."""
        return of[fault.which % len(of)]

    def fault_server_stops(self, fault: Fault) -> Any:
        server: Server = self.pick(fault, self.servers)
        return self.hang(server)

    def hang(self, server: Any) -> Any:
        """SIGSTOP until the result is called."""
        process = server.process
        if not process.alive or process.stopped:
            return None
        self.world.log(f"{server.name}: SIGSTOP")
        process.stop()

        def go_on() -> None:
            self.world.log(f"{server.name}: SIGCONT")
            process.go_on()
            if isinstance(server, Server):
                server.catch_up()

        # Outside of the task of the fault: a task cannot run within another.
        return lambda: self.world.loop.outside(0.0, go_on)

    def fault_server_restarts(self, fault: Fault) -> Any:
        return self.restart(self.pick(fault, self.servers), fault)

    def restart(self, server: Any, fault: Fault) -> Any:
        """Stopped or killed until the result is awaited."""
        if not server.process.alive or server.process.stopped:
            return None
        if isinstance(server, Server) and fault.how < 0.5:
            server.stop()
        else:
            server.kill()
        return server.start

    def fault_lookupd_stops(self, fault: Fault) -> Any:
        return self.hang(self.pick(fault, self.lookupds)) if self.lookupds else None

    def fault_lookupd_restarts(self, fault: Fault) -> Any:
        return self.restart(self.pick(fault, self.lookupds), fault) if self.lookupds else None

    def fault_cut(self, fault: Fault) -> Any:
        server: Server = self.pick(fault, self.servers)
        link = frozenset((server.name, self.host(fault.which % self.plan.copies)))
        self.world.network.cuts[link] += 1
        self._cut_since.setdefault(link, self.world.now)

        def mend() -> None:
            self.world.network.cuts[link] -= 1
            if not self.world.network.cuts[link]:
                server.was_down = max(server.was_down, self.world.now - self._cut_since.pop(link))
            self.world.network.retry()

        return mend

    def fault_break(self, fault: Fault) -> None:
        server: Server = self.pick(fault, self.servers)
        for end in self.world.network.ends_between(server.name):
            end.break_off()

    def fault_garbage(self, fault: Fault) -> None:
        """An nsqd sends what no nsqd sends."""
        server: Server = self.pick(fault, self.servers)
        data = self.random.choice(GARBAGE)
        links = [link._transport for link in server.nsqd.links if server.process.alive]
        for transport in sorted(links, key=lambda each: each.get_extra_info("peername")):
            transport.write(data)

    def fault_lie(self, fault: Fault) -> None:
        """An nsqd says once that nothing is left in a channel, or that much is."""
        server: Server = self.pick(fault, self.servers)
        names = "depth", "in_flight_count", "deferred_count"
        server.lie = dict.fromkeys(names, 0 if fault.how < 0.7 else 1000)

    def fault_latency(self, fault: Fault) -> Any:
        network = self.world.network
        network.slowness.append(0.001 + fault.how)
        return lambda: network.slowness.remove(0.001 + fault.how)

    def fault_clock(self, fault: Fault) -> None:
        """The clock of a host or a server jumps."""
        host = self.pick(fault, [self.host(0), *(server.name for server in self.servers)])
        ahead = host != self.host(0) and not self.may_be_set_back
        seconds = self.world.clocks.jump(host, fault, ahead=ahead)
        self.world.log(f"{host}: {seconds:+.1f} s, now {self.world.clocks.text(host)}")

    def fault_kill(self, fault: Fault) -> Any:
        number = fault.which % self.plan.copies
        self.world.kill(self.commands[number].process)
        return lambda: self.again(number)

    def again(self, number: int) -> None:
        """Start a copy if it is not running, and its host is."""
        is_down = self.world.network.down[self.host(number)]
        if not (self.commands[number].process.alive or is_down or self.over):
            self.start(number)

    def revive(self) -> None:
        """Start all copies that are not running, as a supervisor would."""
        for number in self.commands:
            self.again(number)

    async def fault_term(self, fault: Fault) -> None:
        number = fault.which % self.plan.copies
        if self.commands[number].is_ending:
            return
        await self.end(number)
        await asyncio.sleep(fault.lasts)
        self.again(number)

    async def end(self, number: int) -> None:
        """SIGTERM: the command ends in bounded time, with 1 if its last messages failed, or 0."""
        command = self.commands[number]
        if not command.process.alive:
            return
        began, command.is_ending = self.world.now, True
        command.signal(signal.SIGTERM)
        await command.wait(600)
        if command.process.alive:
            self.world.violated(
                f"{command.process}: still there 600 s after SIGTERM at {began:.1f}"
            )
        elif command.code not in (None, int(bool(command.process.failing))) and not (
            self.is_excused(command)
        ):
            self.world.violated(f"{command.process}: exit {command.code} after SIGTERM")

    def is_excused(self, command: Command) -> bool:
        """Whether the disk took no more, or failed, while the command ran."""
        return command.process.host == self.host(0) and any(
            fault.kind in OF_DISKS
            and fault.at <= self.world.now
            and max(fault.at, 1.0) + fault.lasts > command.began  # none before all servers run
            for fault in self.plan.faults
        )

    def fault_power(self, fault: Fault) -> Any:
        number = fault.which % self.plan.copies
        host = self.host(number)
        self.world.log(f"{host}: power failure")
        self.world.clocks.reboot(host)
        self.world.network.down[host] += 1
        for end in self.world.network.ends_between(host):
            end.lose_power()
        for command in self.commands.values():
            if command.process.host == host:
                self.world.kill(command.process)
        if os.path.isdir(os.path.join(self.world.disk.root, host)):
            self.world.disk.lose_power(host, self.random)

        def back() -> None:
            self.world.network.down[host] -= 1
            self.world.network.retry()
            self.revive()

        return back

    def fault_kill_at(self, fault: Fault) -> Any:
        """Kill it between two calls to the disk, some calls from now."""
        forget = self.at_call(fault, self.world.kill)

        def back() -> None:
            forget()
            self.again(fault.which % self.plan.copies)

        return back

    def fault_stop_at(self, fault: Fault) -> Any:
        """SIGSTOP there."""
        stopped: list[Process] = []

        def stop(process: Process) -> None:
            stopped.append(process)
            process.stop()
            self.world.loop.baton.pause(0.0)

        forget = self.at_call(fault, stop)

        def back() -> None:
            forget()
            for process in stopped:
                self.world.log(f"{process}: SIGCONT")
                self.world.loop.outside(0.0, process.go_on)

        return back

    def calls(self, fault: Fault) -> int:
        """The number of calls to the disk before the one at which something happens."""
        return int(fault.how**3 * 200)

    def at_call(self, fault: Fault, do: Callable[[Process], None]) -> Callable[[], None]:
        """Do it to a copy once, before a call to the disk, unless the result is called before."""
        number, left = fault.which % self.plan.copies, self.calls(fault)
        world = self.world

        def call(process: Process, name: str, path: str) -> None:
            nonlocal left
            if process is self.commands[number].process:
                left -= 1
                if left < 0:
                    forget()
                    world.log(f"{process}: {fault.kind} {name} of {os.path.basename(path)}")
                    do(process)

        def forget() -> None:
            if call in world.disk.on_call:
                world.disk.on_call.remove(call)

        world.disk.on_call.append(call)
        return forget

    def fault_disk_full(self, fault: Fault) -> Any:
        host = self.host(0)
        self.world.disk.full[host] += 1
        return lambda: self.world.disk.full.subtract((host,))

    def fault_disk_fails(self, fault: Fault) -> Any:
        host = self.host(0)
        self.world.disk.failing[host].append(fault.how / 2)
        return lambda: self.world.disk.failing[host].remove(fault.how / 2)

    def fault_reply_lost(self, fault: Fault) -> Any:
        """Calls are performed, and report an error."""
        host = self.host(0)
        self.world.disk.unheard[host].append(fault.how / 4)
        return lambda: self.world.disk.unheard[host].remove(fault.how / 4)

    def fault_disk_slow(self, fault: Fault) -> Any:
        slow = self.world.disk.slow[self.host(0)]
        slow.append(fault.how**4 * 2)
        return lambda: slow.remove(fault.how**4 * 2)

    async def watch(self) -> None:
        """A healthy nsqd is consumed, whatever the others do."""
        if not all(fault.kind in (*OF_SERVERS, "clock") for fault in self.plan.faults):
            return
        if self.plan.copies > 1 or self.in_flight < len(self.servers):
            return
        while True:
            await asyncio.sleep(1)
            for server in self.servers:
                if self.is_waiting(server):
                    since = self._unhealthy.setdefault(server, self.world.now)
                    patience = _UNSERVED + 2 * server.was_down + self.detour
                    if self.world.now - since > patience:
                        self.world.violated(f"{server.name}: not consumed since {since:.0f} s")
                        return
                else:
                    self._unhealthy.pop(server, None)

    @property
    def detour(self) -> float:
        """Seconds until a round of a minute, with its jitter, finds an nsqd that was lost."""
        return 80.0 if self.lookupds and self.plan.faults else 0.0

    @property
    def in_flight(self) -> int:
        """--max-in-flight."""
        options = self.plan.options
        return int(options[options.index("--max-in-flight") + 1])

    @property
    def msg_timeout(self) -> float:
        """--msg-timeout in seconds."""
        options = self.plan.options
        return float(options[options.index("--msg-timeout") + 1].rstrip("s"))

    def is_waiting(self, server: Server) -> bool:
        """Whether it has messages to deliver, and a consumer could take them."""
        link = frozenset((server.name, self.host(0)))
        command = self.commands.get(0)
        if self.world.network.latency > 0.01 or self.world.network.cuts[link]:
            return False
        if not (server.process.alive and not server.process.stopped and command):
            return False
        topic = server.nsqd.broker.topics.get(TOPIC)
        channel = topic and topic.channels.get(self.channel)
        return bool(channel and channel.waiting and command.process.alive and not channel.in_flight)

    def left(self) -> int:
        """Messages that nsqds still have."""
        return sum(server.left(TOPIC, self.channel) for server in self.servers)

    async def settle(self) -> None:
        """Wait until nothing is left in the nsqds."""
        patience = PATIENCE + (0 if self.plan.is_calm else MAX_MSG_TIMEOUT)
        end = self.world.now + patience
        while self.world.now < end:
            if not self.left():
                return
            await asyncio.sleep(1)
        where = {server.name: server.left(TOPIC, self.channel) for server in self.servers}
        self.world.violated(f"not settled after {patience:g} s: {where}")

    async def connect(self) -> None:
        """Wait until each copy has one connection to each nsqd."""
        end = self.world.now + 300
        while self.world.now < end:
            counts = {server.name: len(server.nsqd.clients) for server in self.servers}
            if set(counts.values()) == {self.plan.copies}:
                return
            await asyncio.sleep(1)
        self.world.violated(f"{self.plan.copies} consumers have connections {counts}")

    async def finish(self) -> None:
        """End the commands, and compare."""
        for number in self.commands:
            await self.end(number)
        self.compare()

    def compare(self) -> None:
        """All that was published has arrived, but for what killed nsqds had in memory only."""
        arrived, forgotten = Counter(self.arrived()), self.forgotten(TOPIC, self.channel)
        if missing := [b for b in self.published if not (arrived[b] or b in forgotten)]:
            self.world.violated(f"{len(missing)} messages lost, such as {missing[0][:10]!r}")
        if foreign := arrived.keys() - set(self.published):
            self.world.violated(f"nobody has published {sorted(foreign)[:3]}")
        self.check_doubles(arrived)

    def forgotten(self, topic: str, channel: str) -> set[bytes]:
        """What nsqds had in memory only when they were killed."""
        queues = (topic, ""), (topic, channel)
        return {b for s in self.servers for queue in queues for b in s.forgotten.get(queue, ())}

    def check_doubles(self, arrived: Counter[bytes]) -> None:
        """A message arrives again only as the guide ``delivery`` says.

        For each fault, at most what was in flight; and of each message at most once for a delivery
        whose end its nsqd was not told, but for the ``unanswered``.
        """
        doubles = arrived.total() - len(arrived)
        self.world.log(
            f"{len(self.published)} published, {len(arrived)} arrived, {doubles} came again, "
            f"of at most {self.most_doubles}"
        )
        if doubles > self.most_doubles:
            self.world.violated(f"{doubles} messages came again, at most {self.most_doubles} may")
        lapses = Counter[bytes]()
        for server in self.servers:
            lapses.update(server.lapses.get((TOPIC, self.channel), {}))
        excess = {body: n for body, count in arrived.items() if (n := count - 1 - lapses[body]) > 0}
        if sum(excess.values()) > self.unanswered:
            self.world.violated(
                f"{sum(excess.values())} messages came again, such as {min(excess)[:10]!r}, "
                f"at most {self.unanswered} may whose consumer has finished them or given them back"
            )

    @property
    def most_doubles(self) -> int:
        """Maximum number of messages that may arrive again."""
        return self.unanswered + self.in_flight * self.plan.copies * self.times(ONCE, AGAIN)

    @property
    def unanswered(self) -> int:
        """Maximum number of messages that may have arrived although their consumer requeued them.

        None where the consumer knows what has arrived.
        """
        return 0

    def times(self, once: Container[str] = (), again: Container[str] = ()) -> int:
        """How often the faults of the plan, of these kinds, may repeat what was under way.

        What ``again`` hold up may time out more than once.
        """
        return sum(
            1 + int(fault.lasts / self.msg_timeout) * (fault.kind in again)
            for fault in self.plan.faults
            if fault.kind in once or fault.kind in again
        )
