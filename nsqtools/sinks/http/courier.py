"""Puts messages to endpoints, over the one that is chosen or over all of them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Protocol

from nsqtools.errors import OutputError
from nsqtools.policy.endpoints import RoundRobin
from nsqtools.policy.verdicts import Verdict
from nsqtools.sinks.http.post import DONE, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random

    from nsqtools.metrics import Metric
    from nsqtools.policy.endpoints import Endpoints
    from nsqtools.sinks.http.post import Parcel, Post

log = logging.getLogger(__name__)

_REMEMBERED = 100_000
"""Messages of which ``all`` knows who took them."""
_AT_EASE = (Verdict.DONE, Verdict.DROP)

_Key = tuple[str, bytes, int]


NOT_TRIED = Outcome(Verdict.RETRY, reason="no endpoint can be tried now", arrived=False)


class Courier(Protocol):
    """Delivers parcels; ``patient`` says, while no endpoint may be tried, whether to wait."""

    async def deliver(self, parcel: Parcel, patient: Callable[[], bool]) -> Outcome:
        """Try once; NOT_TRIED if it was not patient. Raises OutputError if no endpoint is left."""

    def look(self) -> None:
        """Ask ``patient`` again."""

    async def close(self) -> None:
        """Hang up."""

    def metrics(self) -> Iterable[Metric]:
        """As Measured."""


class OneOf:
    """To the endpoint that the policy chooses; the next one at once where none was reached.

    ``most`` is how many requests one endpoint gets at a time.
    """

    def __init__(self, post: Post, choice: Endpoints, *, most: int, rng: Random) -> None:
        self._post = post
        self._choice = choice
        self._most = most
        self._rng = rng
        self._busy: Counter[str] = Counter()
        self._news = News()
        self._loop = asyncio.get_running_loop()

    async def deliver(self, parcel: Parcel, patient: Callable[[], bool]) -> Outcome:
        """As Courier."""
        outcome = NOT_TRIED
        tried: set[str] = set()
        while True:
            if tried:  # one that is down is only chosen for a probe, which has to be sent
                states = self.states()
                tried = {name for name in tried if states[name] != "down"}
            names = self._choice.choose(now=self._loop.time(), rng=self._rng)
            open_ = [name for name in names if name not in tried]
            if name := next((name for name in open_ if self._busy[name] < self._most), ""):
                result = await self._try(name, parcel)
                if result.verdict is Verdict.GONE:
                    continue
                outcome = result
                if outcome.arrived:
                    return outcome
                tried.add(name)
            elif open_:
                await self._news.wait(math.inf)
            elif outcome is not NOT_TRIED:
                return outcome
            elif patient():
                await self._news.wait(self._due())
            else:
                return NOT_TRIED

    def look(self) -> None:
        """As Courier."""
        self._news.tell()

    async def close(self) -> None:
        """As Courier."""
        await self._post.close()

    def metrics(self) -> Iterable[Metric]:
        """As Courier."""
        return self._post.metrics(self.states())

    def states(self) -> Mapping[str, str]:
        """Every endpoint's state, as Endpoints."""
        return self._choice.states(self._loop.time())

    async def _try(self, name: str, parcel: Parcel) -> Outcome:
        self._busy[name] += 1
        ok, took = False, 0.0
        try:
            outcome, took = await self._post.send(name, parcel)
            ok = outcome.verdict in _AT_EASE or outcome.blames_messages
        finally:
            self._busy[name] -= 1
            self._choice.report(name, ok=ok, took=took, now=self._loop.time())
            self._news.tell()
        if outcome.verdict is Verdict.GONE:
            self._choice.remove(name)
            log.error("%s: gone (status 410), it gets no more messages", name)
        return outcome

    def _due(self) -> float:
        due = self._choice.due(self._loop.time())
        if due == math.inf:
            raise OutputError("every endpoint is gone (status 410)")
        return due


class EachOf:
    """To every endpoint. Who took a message is remembered until all have; a retry spares them."""

    def __init__(self, post: Post, *, most: int, rng: Random) -> None:
        self._post = post
        self._ways = {
            name: OneOf(post, RoundRobin([name]), most=most, rng=rng) for name in post.endpoints
        }
        self._taken: OrderedDict[_Key, set[str]] = OrderedDict()

    async def deliver(self, parcel: Parcel, patient: Callable[[], bool]) -> Outcome:
        """As Courier: the first outcome that is not a success, if there is one."""
        keys = [(batch.topic, message.id, message.timestamp) for batch, message in parcel]
        taken = [self._taken.setdefault(key, set()) for key in keys]
        while len(self._taken) > _REMEMBERED:
            self._taken.popitem(last=False)
        worst = DONE
        for name, way in list(self._ways.items()):
            todo = [item for item, names in zip(parcel, taken, strict=True) if name not in names]
            if not todo:
                continue
            try:
                outcome = await way.deliver(todo, patient)
            except OutputError:
                self._ways.pop(name, None)
                if not self._ways:
                    raise
                continue
            if outcome.verdict in _AT_EASE:
                for names in taken:
                    names.add(name)
            if worst is DONE or worst.verdict is Verdict.DROP:
                worst = worst if outcome is DONE else outcome
        if worst.verdict in _AT_EASE:
            for key in keys:
                self._taken.pop(key, None)
        return worst

    def look(self) -> None:
        """As Courier."""
        for way in self._ways.values():
            way.look()

    async def close(self) -> None:
        """As Courier."""
        await self._post.close()

    def metrics(self) -> Iterable[Metric]:
        """As Courier."""
        known = dict.fromkeys(self._post.endpoints, "gone")
        for way in self._ways.values():
            known.update(way.states())
        return self._post.metrics(known)


class News:
    """Lets tasks wait until something has changed."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}  # first come, first served

    def tell(self) -> None:
        """Wake all."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def wait(self, until: float) -> None:
        """Wait for the next change, or until this time of the loop."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiting[waiter] = None
        try:
            async with asyncio.timeout_at(None if until == math.inf else until):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(waiter, None)
