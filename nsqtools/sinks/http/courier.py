"""Couriers: delivery of messages to one endpoint or to all."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from nsqtools.errors import OutputError
from nsqtools.policy.endpoints import Endpoints
from nsqtools.policy.verdicts import Verdict
from nsqtools.sinks.http.post import DONE, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from random import Random

    from nsqtools.metrics import Metric
    from nsqtools.sinks.http.post import Parcel, Post

log = logging.getLogger(__name__)

_REMEMBERED = 100_000
"""Maximum messages for which ``all`` remembers the accepting endpoints."""
_CHECK_INTERVAL = 1.0
"""Seconds between checks whether nsqd has taken back waiting messages."""
_AT_EASE = (Verdict.DONE, Verdict.DROP)

_BY_WEIGHT = (Verdict.RETRY, Verdict.GONE, Verdict.DROP, Verdict.DONE)

_Key = tuple[str, bytes, int]


UNFIT = Outcome(
    Verdict.RETRY,
    reason="the body cannot be sent in this form of request",
    blames_messages=True,
    may_blame_one=True,
)
NOT_TRIED = Outcome(Verdict.RETRY, reason="no endpoint is available now", arrived=False)


class Courier(ABC):
    """Delivers parcels with requests of ``post``, and closes it."""

    def __init__(self, post: Post) -> None:
        self._post = post

    @abstractmethod
    async def deliver(self, parcel: Parcel, patient: Callable[[], bool]) -> Outcome:
        """Try once. While no endpoint is available, ``patient`` decides whether to wait.

        Returns NOT_TRIED if it did not wait, or nsqd took messages back meanwhile. Raises
        OutputError if no endpoint is left.
        """

    @abstractmethod
    def look(self) -> None:
        """Evaluate ``patient`` again in all waiting deliveries."""

    @abstractmethod
    def states(self) -> Mapping[str, str]:
        """Return the state of each endpoint by its name: up, down or gone."""

    def metrics(self) -> Iterable[Metric]:
        """Return counts, latencies and states of the endpoints, for Prometheus."""
        return self._post.metrics(self.states())

    async def close(self) -> None:
        """Close the connections."""
        await self._post.close()


class _AllGoneError(OutputError):
    """No endpoint is left."""

    def __init__(self) -> None:
        super().__init__(
            "every endpoint is gone (status 410): --retry-on 410 tries again, --drop-on 410 gives "
            "up the message instead"
        )


class OneOf(Courier):
    """Delivers to the endpoint chosen by the policy, or to the next if it is unreachable."""

    def __init__(self, post: Post, choice: Endpoints, *, rng: Random) -> None:
        super().__init__(post)
        self._choice = choice
        self._rng = rng
        self._failing: set[str] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def deliver(self, parcel: Parcel, patient: Callable[[], bool]) -> Outcome:
        """Try the endpoint chosen by the policy, and others while they are unreachable."""
        if not self._post.fits(parcel):
            return UNFIT
        outcome = NOT_TRIED
        tried: set[str] = set()
        while True:
            if tried:  # an unavailable endpoint is chosen only for a probe, to be sent in any case
                states = self.states()
                tried = {name for name in tried if states[name] != "down"}
            names = self._choice.choose(now=self._loop.time(), rng=self._rng)
            for name in names:
                if name not in tried:
                    break
            else:
                name = ""
            if name:
                result = await self._try(name, parcel)
                if result.verdict is Verdict.GONE:
                    continue
                outcome = result
                if outcome.arrived:
                    return outcome
                tried.add(name)
            elif outcome is not NOT_TRIED:
                return outcome
            elif patient():
                await self._wait(min(self._due(), self._loop.time() + _CHECK_INTERVAL))
            else:
                return NOT_TRIED
            if any(batch.is_lost() for batch, _ in parcel):
                return NOT_TRIED

    def look(self) -> None:
        """Wake all deliveries waiting for an endpoint."""
        self._changed.set()
        self._changed = asyncio.Event()

    def states(self) -> Mapping[str, str]:
        """Return the state of each endpoint, as Endpoints.states does."""
        return self._choice.states(self._loop.time())

    async def _try(self, name: str, parcel: Parcel) -> Outcome:
        ok, took = False, 0.0
        try:
            outcome, took = await self._post.send(name, parcel)
            ok = outcome.verdict in _AT_EASE or outcome.blames_messages
        finally:
            self._choice.report(name, ok=ok, took=took, now=self._loop.time())
            if not ok or name in self._failing:  # it may be down now, or up again
                self._failing.discard(name) if ok else self._failing.add(name)
                self.look()
        if outcome.verdict is Verdict.GONE and self.states()[name] != "gone":
            self._choice.remove(name)
            log.error("%s: gone (status 410), no more messages are sent to it", name)
        return outcome

    async def _wait(self, until: float) -> None:
        """Wait until an endpoint may have changed, or until this time of the loop."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()

    def _due(self) -> float:
        due = self._choice.due(self._loop.time())
        if due == math.inf:
            raise _AllGoneError
        return due


class EachOf(Courier):
    """Delivers to all endpoints at the same time.

    Final results are remembered until all endpoints have one, so that a retry skips those
    endpoints.
    """

    def __init__(self, post: Post, *, rng: Random) -> None:
        super().__init__(post)
        self._ways = {name: OneOf(post, Endpoints([name]), rng=rng) for name in post.endpoints}
        self._reports: OrderedDict[_Key, dict[str, Outcome]] = OrderedDict()

    async def deliver(self, parcel: Parcel, patient: Callable[[], bool]) -> Outcome:
        """Try all endpoints at once; RETRY of any outweighs DROP, and DROP outweighs DONE."""
        keys = [(batch.topic, message.id, message.timestamp) for batch, message in parcel]
        reports = [self._reports.setdefault(key, {}) for key in keys]
        while len(self._reports) > _REMEMBERED:
            self._reports.popitem(last=False)
        results = await asyncio.gather(
            *[self._put(name, parcel, reports, patient) for name in self._ways],
            return_exceptions=True,
        )
        outcomes = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            outcomes.append(result)
        if not self._ways:
            raise _AllGoneError
        worst = _worst(outcomes)
        if _is_final(worst, parcel):
            for key in keys:
                self._reports.pop(key, None)
        return worst

    async def _put(
        self,
        name: str,
        parcel: Parcel,
        reports: Sequence[dict[str, Outcome]],
        patient: Callable[[], bool],
    ) -> Outcome:
        way = self._ways.get(name)
        outcomes = [known[name] for known in reports if name in known]
        todo = [item for item, known in zip(parcel, reports, strict=True) if name not in known]
        if way and todo:
            try:
                outcome = await way.deliver(todo, patient)
            except _AllGoneError:
                self._ways.pop(name, None)
                outcome = DONE
            if _is_final(outcome, parcel):
                for known in reports:
                    known.setdefault(name, outcome)
            outcomes.append(outcome)
        return _worst(outcomes)

    def look(self) -> None:
        """Wake all deliveries waiting for any endpoint."""
        for way in self._ways.values():
            way.look()

    def states(self) -> Mapping[str, str]:
        """Return the state of each endpoint; removed ones are gone."""
        known = dict.fromkeys(self._post.endpoints, "gone")
        for way in self._ways.values():
            known.update(way.states())
        return known


def _is_final(outcome: Outcome, parcel: Parcel) -> bool:
    """Whether a result is final; messages dropped together are first tried one by one."""
    return outcome is DONE or (outcome.verdict is Verdict.DROP and len(parcel) == 1)


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    def lightness(outcome: Outcome) -> tuple[int, bool]:
        return _BY_WEIGHT.index(outcome.verdict), outcome is NOT_TRIED

    return min(outcomes, key=lightness, default=DONE)
