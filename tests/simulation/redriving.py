"""``redrive`` again and again, until the dead letters of a topic or a directory have arrived.

Invariants, besides those of other lives. A dead letter has arrived at its topic, or is still where
it was. None is finished, or noted as published, that has not arrived. Exit 0 means that all have
arrived which were there at the start and fulfil the condition; the others stay. ``--limit`` and
``--rate`` hold. A message arrives twice only as the help of redrive says.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING

from nsqtools.errors import NSQError
from nsqtools.redrive.letterfile import letter_files
from nsqtools.redrive.publishedlines import PublishedLines, covers
from nsqtools.redrive.redriver import LARGEST_LOT
from nsqtools.sinks.deadletters import ToDirectory
from nsqtools.sinks.files.disk import append_lines
from tests.simulation.letters import Letter, compress, plain
from tests.simulation.lives import CHANNEL, PATIENCE, TOPIC, Life
from tests.simulation.plans import ACTIVE_TIME, OF_SERVERS, REDRIVEN_WELL
from tests.support.archiving import batch
from tests.support.processes import Process

if TYPE_CHECKING:
    from tests.simulation.plans import Fault, Plan
    from tests.simulation.servers import Server
    from tests.simulation.world import Command, World

_DEAD = f"{TOPIC}.dead"
_SOURCE = "redrive"
_OTHER = "u"
"""Another topic to which dead letters of a directory go."""
_REASONS = "answered 500", "too many attempts"
_OF_NSQD = (*OF_SERVERS, "garbage")
_OF_NETWORK = (*_OF_NSQD, "lookupd stops", "lookupd restarts")
_IN_RUNS = (*_OF_NSQD, "kill", "term", "lie", "power", "stop at")
"""Faults that begin in a run."""
_RECOVERY = 60.0
"""Seconds after a fault until redrive must do what it promises."""
_AFTERMATH = 5.0
"""Seconds after a fault of an nsqd in which a new run may still meet it."""
_UNCERTAIN = 7.0  # seconds: dates have whole ones, and a response may take so many
_MOST = 6000
"""Maximum size of a message that nsqds take in a life with a directory."""


@dataclass(slots=True, eq=False)
class Trouble:
    """A fault while it lasts, in virtual seconds."""

    kind: str
    began: float
    ended: float = inf


class RedriveLife(Life, ABC):
    """What both sources share. Copy 0 is redrive, which runs again and again."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.letters: dict[bytes, Letter] = {}
        self.is_choosing = self.random.random() < 0.6
        """Whether runs have a condition."""
        self.is_known = not (self.lookupds and plan.faults)
        """Whether each run knows all nsqds: after a fault, nsqlookupds list too few for a while."""
        self.limits: dict[str, str] = {}
        """Options of the next run."""
        self.has_second = False
        """Whether another run begins with the next one."""
        self.deaths = 0
        """Runs that were killed or have failed."""
        self.doubles = 0
        """Maximum number of messages that may have arrived twice."""
        self.troubles: list[Trouble] = []
        self.began = asyncio.Event()
        """Set at the start of the next run, and then replaced."""
        self.changed_at = -1.0
        """When another program last changed what redrive reads."""

    async def run(self) -> None:
        await self.begin()
        others = [self.publish(), *map(self.suffer, self.plan.faults)]
        events = asyncio.gather(*others)
        while not events.done():
            self.limits = self._some_limits()
            await self.redrive()
            await asyncio.sleep(2 + self.random.random() * 20)
        await events
        self.world.disk.on_call.clear()
        self.world.log("the last fault is over")
        self.is_choosing, self.limits = False, {}
        await asyncio.sleep(_RECOVERY)  # until nsqlookupds list all nsqds again
        self.is_known = True
        for _ in range(5):
            if (await self.redrive()).code == self.best:
                break
            await asyncio.sleep(20)
        else:
            self.world.violated(f"redrive: never exits with {self.best}")
        before = len(self.arrivals())
        await self.redrive()
        if len(self.arrivals()) != before and self.is_known:
            self.world.violated("redrive: publishes messages although all were published")
        self.compare()

    def _some_limits(self) -> dict[str, str]:
        chosen = {
            "--limit": self.random.choice(("", "", "1", "7", "250")),
            "--rate": self.random.choice(("", "", "5", "50", "1000")),
            "--max-duration": self.random.choice(("", "", "", "3s", "20s")),
        }
        return {name: value for name, value in chosen.items() if value}

    # What differs

    best = 0
    """The exit code of a run that has done all it could."""

    def condition(self) -> list[str]:
        """The flags that choose, in some lives until the last fault is over."""
        return ["--where", ".m % 3 > 0"]

    def is_chosen(self, letter: Letter) -> bool:
        """Whether they choose it."""
        return letter.body.startswith(b"{") and letter.number % 3 > 0

    @abstractmethod
    def there(self) -> set[bytes]:
        """The letters that a run which begins now has to publish, if they are chosen."""

    @abstractmethod
    def check_source(self, arrived: set[bytes]) -> None:
        """Each letter is still there, or has arrived."""

    # Runs

    def letter(self, topic: str, reason: str = "", *, is_big: bool = False) -> Letter:
        """One that is new."""
        number = len(self.letters)
        pad = "x" * (_MOST if is_big else self.plan.size)
        body = b'{"m":%d,"pad":"%s"}' % (number, pad.encode())
        if number % 17 == 5:
            body = b"no JSON %d" % number
        self.letters[body] = Letter(number, body, topic, reason, self.world.now)
        return self.letters[body]

    def start(self, number: int) -> Command:
        argv = ["redrive", *self.argv(number), *self.where, *self.plan.options]
        argv += self.condition() if self.is_choosing else []
        for name, value in self.limits.items():
            argv += [name, value]
        return self.world.command(self.plan.kind, self.host(number), argv)

    def again(self, number: int) -> None:
        """The next run comes by itself."""

    async def redrive(self) -> Command:
        """One run, and what must hold after it."""
        while self.world.network.down[self.host(0)]:
            await asyncio.sleep(1)
        there, command = self.there(), self.start(0)
        self.commands[0] = command
        self.began.set()
        self.began = asyncio.Event()
        is_alone, self.has_second = not self.has_second, False
        others = [] if is_alone else [self.start(0)]
        for each in (command, *others):
            await each.wait(PATIENCE)
            if each.process.alive:
                self.world.violated(f"{each.process}: still there after {PATIENCE:g} s")
                self.world.kill(each.process)
            self._check_code(each, is_alone=is_alone)
        arrivals = self.arrivals()
        moments = [at for at, _ in arrivals if at > command.began]
        for each in (command, *others):
            self._excuse(each, len(moments))
        self._check_messages(command, arrivals)
        if command.code is not None and is_alone:
            self._check_limits(command, moments)
            limit = int(self.limits.get("--limit", 0))
            if not (limit and len(moments) >= limit):
                self._check_complete(command, there, {letter.body for _, letter in arrivals})
        return command

    async def suffer(self, fault: Fault) -> None:
        """Runs are short: most faults begin in the next one."""
        await asyncio.sleep(max(0.0, fault.at - self.world.now))
        if fault.kind in _IN_RUNS:
            await self.began.wait()
            await asyncio.sleep(0.001 * 5000**fault.how)
        trouble = Trouble(fault.kind, self.world.now)
        self.troubles.append(trouble)
        await super().suffer(fault)
        trouble.ended = self.world.now

    def troubles_of(self, command: Command) -> list[str]:
        """The kinds of the faults that excuse what a run has not done."""
        return [
            each.kind
            for each in self.troubles
            if each.kind not in REDRIVEN_WELL and each.ended + _RECOVERY > command.began
        ]

    def has_jumped(self, command: Command) -> bool:
        """Whether a clock jumped during a run that is over."""
        return any(each.kind == "clock" and each.began > command.began for each in self.troubles)

    def _excuse(self, command: Command, published: int) -> None:
        """Add the messages that may arrive twice because of this run, of so many ``published``.

        For each fault of an nsqd: it may have published a lot without an answer, and another nsqd
        in its place. A run that ends early does not see the messages that nsqd delivers again
        because their FINs were lost. A run that is killed or fails may leave a published lot
        unfinished, or not noted.
        """
        troubles = [
            each
            for each in self.troubles
            if each.kind in _OF_NSQD and each.ended + _AFTERMATH > command.began
        ]
        lot = min(LARGEST_LOT, self.in_flight or LARGEST_LOT)
        if rate := int(self.limits.get("--rate", 0)):
            lot = min(lot, max(1, rate // 10))
        if limit := int(self.limits.get("--limit", 0)):
            lot = min(lot, limit)
        is_whole = command.code == 0 and not command.is_ending and not limit
        unseen = 0 if is_whole else min(published, self.in_flight)
        self.doubles += len(troubles) * (lot + unseen)
        if command.code not in (0, 4, 75):
            self.deaths += 1
            self.doubles += lot

    def _check_messages(self, command: Command, arrivals: list[tuple[float, Letter]]) -> None:
        self.check_source({letter.body for _, letter in arrivals})
        if self.is_choosing and (wrong := [e for _, e in arrivals if not self.is_chosen(e)]):
            self.world.violated(f"not chosen, and published: {wrong[0].body[:20]!r}")

    def _check_code(self, command: Command, *, is_alone: bool) -> None:
        codes = {None, self.best, 0}
        if not is_alone:
            codes.add(75)
        if self.troubles_of(command):
            codes |= {1, 3, 4}
        if command.is_ending:
            codes |= {1, 130}
        if "--max-duration" in self.limits or self.has_jumped(command):
            codes.add(4)
        if command.code not in codes:
            self.world.violated(f"{command.process}: exit {command.code}, expected one of {codes}")

    def _check_limits(self, command: Command, moments: list[float]) -> None:
        """``moments`` are those of messages published meanwhile."""
        if self.troubles_of(command):
            return
        limit = int(self.limits.get("--limit", 0))
        if limit and len(moments) > limit:
            self.world.violated(f"--limit {limit}: {len(moments)} messages")
        rate = int(self.limits.get("--rate", 0))
        for count, at in enumerate(sorted(moments), 1):
            if rate and count > rate * (at - command.began) + max(1, rate / 10) + 1:
                self.world.violated(f"--rate {rate}: {count} in {at - command.began:.1f} s")
                break
        longest = float(self.limits.get("--max-duration", "0s").rstrip("s"))
        if longest and self.world.now - command.began > longest + _RECOVERY:
            self.world.violated(f"--max-duration {longest:g}s: ended at {self.world.now:.1f}")

    def _check_complete(self, command: Command, there: set[bytes], arrived: set[bytes]) -> None:
        """Exit 0 means that all is done that was ``there`` at the start."""
        is_best = command.code == 0 or (
            command.code == self.best and "--max-duration" not in self.limits
        )
        if not is_best or command.is_ending or self.changed_at > command.began:
            return
        wanted = there - arrived
        if self.is_choosing:
            wanted = {body for body in wanted if self.is_chosen(self.letters[body])}
        if wanted:
            self.world.violated(f"exit {command.code}: {len(wanted)} have not arrived")

    def arrivals(self) -> list[tuple[float, Letter]]:
        """What has come to the topics of the letters, with the virtual times, in order."""
        found = []
        for topic in (TOPIC, _OTHER):
            for at, body in (each for s in self.servers for each in s.received.get(topic, ())):
                letter = self.letters.get(body)
                if letter and letter.topic == topic:
                    found.append((at, letter))
                else:
                    self.world.violated(f"topic {topic}: nobody wanted {body[:20]!r}")
        return sorted(found, key=lambda each: (each[0], each[1].number))

    def compare(self) -> None:
        """All letters have arrived; not more often than a fault excuses."""
        counts = Counter(letter.body for _, letter in self.arrivals())
        if missing := [body for body in self.there() if not counts[body]]:
            self.world.violated(f"{len(missing)} messages lost, such as {missing[0][:20]!r}")
        doubles = counts.total() - len(counts)
        if doubles > self.doubles:
            self.world.violated(f"{doubles} messages came again, at most {self.doubles} may")

    async def fault_term(self, fault: Fault) -> None:
        command = self.commands.get(0)
        if command and command.process.alive and not command.is_ending:
            command.is_ending = True
            number = signal.SIGTERM if fault.how < 0.6 else signal.SIGINT
            command.signal(number)
            await asyncio.sleep(fault.how)
            if fault.how > 0.8:
                command.signal(number)


class TopicRedriveLife(RedriveLife):
    """``--from-topic``. Another consumer of the channel takes messages, too."""

    may_be_set_back = False  # or messages from the future stay for long

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.tails: list[Command] = []

    async def begin(self) -> None:
        await super().begin()
        has_channel = self.random.random() < 0.5
        for server in self.servers:
            if has_channel:
                server.make(_DEAD, _SOURCE)
            self.publish_to(server, 1)
        await asyncio.sleep(1)  # until nsqlookupds list them

    def argv(self, number: int) -> list[str]:
        return ["--from-topic", _DEAD]

    def publish_to(self, server: Server, count: int) -> None:
        letters = [self.letter(TOPIC) for _ in range(count)]
        self.world.log(f"{len(letters)} dead letters to {server.name}")
        server.publish(_DEAD, [letter.body for letter in letters])

    def there(self) -> set[bytes]:
        """Empty while a run may not know all nsqds."""
        if not self.is_known:
            return set()
        return {m.body for server in self.servers for m in server.messages(_DEAD, _SOURCE)}

    def _taken(self) -> set[bytes]:
        return {line for tail in self.tails for line in tail.output.lines}

    def check_source(self, arrived: set[bytes]) -> None:
        left = {m.body for server in self.servers for m in server.messages(_DEAD, _SOURCE)}
        left |= {body for server in self.servers for body in server.to_come(_DEAD)}
        left |= self.forgotten(_DEAD, _SOURCE)
        if lost := self.letters.keys() - left - arrived - self._taken():
            self.world.violated(f"{len(lost)} letters lost, such as {min(lost)[:20]!r}")

    def _check_messages(self, command: Command, arrivals: list[tuple[float, Letter]]) -> None:
        super()._check_messages(command, arrivals)
        if self.has_jumped(command):
            return
        for at, letter in arrivals:
            if at > command.began and letter.born > command.began + _UNCERTAIN:
                self.world.violated(f"newer than the run, and published: {letter.body[:20]!r}")

    def _check_complete(self, command: Command, there: set[bytes], arrived: set[bytes]) -> None:
        gone = self._taken() | self.forgotten(_DEAD, _SOURCE)
        super()._check_complete(command, there, arrived | gone)

    async def fault_other_consumer(self, fault: Fault) -> None:
        argv = ["tail", "--topic", _DEAD, "--channel", _SOURCE, *self.where, "-n", "30"]
        tail = self.world.command("tail", "host-1", [*argv, "--max-in-flight", "10"])
        self.tails.append(tail)
        await asyncio.sleep(fault.lasts)
        tail.signal(signal.SIGTERM)
        await tail.wait(PATIENCE)


class DirectoryRedriveLife(RedriveLife):
    """``--from-dir``. Copy 1 writes dead letters there, another renames and compresses files."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.sure: set[bytes] = set()
        """The letters that their writer knows to be on disk."""
        self.refused = self.random.choice((0, 0, 0, 30))
        """Each letter with a multiple of this number is too big for nsqd."""
        self.has_odd = self.random.random() < 0.2
        """Whether a file has a line that is no dead letter."""
        self.best = 4 if self.refused or self.has_odd else 0
        self.noted: set[bytes] = set()
        """Letters noted as published at the last check, without the ``doubtful`` ones."""
        self.doubtful: set[bytes] = set()
        """Letters that were noted while a run was killed or failed: a note may be lost."""
        self.counts = Counter[bytes]()
        """How often each letter had arrived then."""
        self.checked_deaths = 0
        for server in self.servers:
            server.options = server.options.with_values(max_msg_size=_MOST)

    def host(self, number: int) -> str:
        return "host-0"

    @property
    def in_flight(self) -> int:
        """No message: lots are read from files."""
        return 0

    async def begin(self) -> None:
        self.folder = os.path.join(self.world.disk.make("host-0"), "dead")
        await super().begin()
        for server in self.servers:
            server.make(_OTHER, CHANNEL)
        self._process("rotate", 2).end()
        await self.write(TOPIC, 3)
        if self.has_odd:
            process = self._process("editor", 1)
            await self.world.within(process, self._write_odd())
            process.end()

    async def _write_odd(self) -> None:
        path, line = os.path.join(self.folder, "odd.jsonl"), b'{"reason":"no body"}\n'
        write = partial(append_lines, path, line, is_torn=bool)
        await asyncio.get_running_loop().run_in_executor(None, write)

    def argv(self, number: int) -> list[str]:
        return ["--from-dir", self.folder]

    def condition(self) -> list[str]:
        return [*super().condition(), "--reason", "500"]

    def is_chosen(self, letter: Letter) -> bool:
        return super().is_chosen(letter) and "500" in letter.reason

    async def publish(self) -> None:
        bursts = self.random.choice((3, 10, 30))
        moments = sorted(self.random.random() * ACTIVE_TIME for _ in range(bursts))
        for moment in moments:
            await asyncio.sleep(max(0.0, moment - self.world.now))
            if not self.world.network.down["host-0"]:
                topic = self.random.choice((TOPIC, _OTHER))
                await self.write(topic, -(-self.plan.messages // bursts))

    async def write(self, topic: str, count: int) -> None:
        """Append letters as to-http does, in a process that may be killed."""
        process = self._process("writer", 1)
        reason = self.random.choice(_REASONS)
        letters = []
        for _ in range(count):
            is_big = bool(self.refused) and len(self.letters) % self.refused == 0
            letters.append(self.letter(topic, reason, is_big=is_big).body)

        async def work() -> None:
            to = ToDirectory(self.folder)
            await to.open()
            given = batch(*letters, topic=topic)
            try:
                await to.write(given, given, reason)
            finally:
                await to.close()

        done: asyncio.Task[None] = process.context.run(self.world.loop.create_task, work())
        while process.alive and not done.done():
            await asyncio.sleep(0.05)
        process.end()
        if not done.done():
            return
        if error := done.exception():
            self.world.log(f"writer: {error!r}")
            if not isinstance(error, NSQError):
                self.world.violated(f"writer: {error!r}")
        else:
            self.world.log(f"writer: {len(letters)} letters for {topic}, {reason}")
            self.sure.update(letters)

    def _process(self, name: str, number: int) -> Process:
        process = Process(name, "host-0")
        process.on_end.append(lambda: self.world.disk.unlock_all(process))
        self.commands[number] = SimpleNamespace(process=process)  # type: ignore[assignment]
        return process

    def fault_rotate(self, fault: Fault) -> None:
        """A file gets another name or, some time after that, is compressed."""
        if self.world.network.down["host-0"]:
            return
        process = self._process("rotate", 2)
        old = [name for name in sorted(os.listdir(self.folder)) if name.startswith("old")]
        plain = [name for name in old if name.endswith(".jsonl")]
        path = os.path.join(self.folder, "t.dead.jsonl")

        def work() -> None:
            try:
                if plain and fault.how < 0.5:
                    compress(os.path.join(self.folder, plain[0]))
                else:
                    os.rename(path, os.path.join(self.folder, f"old-{fault.at:07.3f}.jsonl"))
            except OSError as error:
                self.world.log(f"rotate: {error!r}")
            self.changed_at = self.world.now
            process.end()

        self.world.loop.outside(0.0, lambda: self.world.loop.baton.start(process, work))

    def fault_second_run(self, fault: Fault) -> None:
        self.has_second = True

    def calls(self, fault: Fault) -> int:
        """A run, or a write, has about so many."""
        return int(fault.how * 12)

    def fault_kill_at(self, fault: Fault) -> None:
        """In the next run or write, however late it comes."""
        self.at_call(fault, self.world.kill)

    def fault_power_at(self, fault: Fault) -> None:
        """A power failure there."""

        def fail(process: Process) -> None:
            self.world.kill(process)
            self.world.loop.outside(0.0, self._fail_for_a_moment, fault)

        self.at_call(fault, fail)

    def _fail_for_a_moment(self, fault: Fault) -> None:
        self.world.loop.outside(3.0, self.fault_power(fault))

    def there(self) -> set[bytes]:
        return {body for body in self.sure if len(body) <= _MOST}

    def check_source(self, arrived: set[bytes]) -> None:
        kept, noted = set(), set()
        journal = PublishedLines(self.folder)
        journal.read()
        for name in letter_files(self.folder):
            content = plain(os.path.join(self.folder, name))
            lines = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
            published = journal.published(hashlib.sha256(lines[0]).hexdigest()) if lines else []
            offset = 0
            for line in lines:
                body = json.loads(line).get("body", "").encode()
                kept.add(body)
                if covers(published, offset):
                    noted.add(body)
                offset += len(line)
        if wrong := noted - arrived:
            self.world.violated(f"noted, and not published: {min(wrong)[:20]!r}")
        if not any(fault.kind in _OF_NETWORK for fault in self.plan.faults):
            self._check_noted(noted, arrived)
        if lost := self.sure - kept:
            self.world.violated(f"{len(lost)} letters lost, such as {min(lost)[:20]!r}")

    def _check_noted(self, noted: set[bytes], arrived: set[bytes]) -> None:
        """What has arrived is noted, but for a lot of each run that was killed."""
        counts = Counter(letter.body for _, letter in self.arrivals())
        again = {body for body in self.noted if counts[body] > self.counts[body]}
        if again:
            self.world.violated(f"noted, and published again: {min(again)[:20]!r}")
        unnoted = arrived - noted - self.counts.keys()
        deaths, self.checked_deaths = self.deaths - self.checked_deaths, self.deaths
        if len(unnoted) > deaths * LARGEST_LOT:
            self.world.violated(f"{len(unnoted)} published and not noted, after {deaths} deaths")
        if deaths:  # before the note was synced, perhaps
            self.doubtful |= noted - self.noted
        self.noted |= noted - self.doubtful
        self.counts = counts
