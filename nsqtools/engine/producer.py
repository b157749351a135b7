"""The Producer: publishes batches to nsqds, and waits for nsqd's OK for each message."""

# size: publishing and reconnecting share the state of the connections

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Self, TypeAlias
from weakref import WeakSet

from nsqtools.config.connection import ProducerConfig
from nsqtools.config.units import format_duration, format_size
from nsqtools.errors import (
    REFUSED_BODY,
    AuthError,
    ConfigError,
    ConnectionLostError,
    NSQError,
    PeerError,
    PublishError,
    ServerError,
    UnreachableError,
)
from nsqtools.names import Address, check_list, check_name, check_seconds, check_type
from nsqtools.net.connection import Connection, Listener
from nsqtools.policy.discovery import ReconnectDelays
from nsqtools.policy.endpoints import make_endpoints
from nsqtools.proto import commands
from nsqtools.tasks import Tasks, call_each, end

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nsqtools.net.connection import Dial
    from nsqtools.policy.endpoints import Endpoints

log = logging.getLogger(__name__)

# Codes for an invalid name, client or DPUB delay; every other nsqd would refuse these, too.
_PERMANENT = REFUSED_BODY | {"E_BAD_TOPIC", "E_UNAUTHORIZED", "E_INVALID"}

_RETRY_DELAY = 0.1

_CLOSE_TIMEOUT = 0.5

_Refusal: TypeAlias = tuple[Sequence[int], NSQError]
"""Positions of bodies not accepted, and the error."""


@dataclass(frozen=True, slots=True)
class _Bodies:
    """The bodies of one command, for ``target`` or for any nsqd, and their ``positions``."""

    topic: str
    positions: Sequence[int]
    bodies: Sequence[bytes]
    defer_ms: int | None
    target: Address | None

    def command(self) -> bytes:
        """Return an MPUB or PUB; deferred bodies need a DPUB each."""
        if self.defer_ms is not None:
            return b"".join(
                [commands.publish(self.topic, b, defer_ms=self.defer_ms) for b in self.bodies]
            )
        if len(self.bodies) > 1:
            return commands.publish_many(self.topic, self.bodies)
        return commands.publish(self.topic, self.bodies[0])

    @property
    def replies(self) -> int:
        return 1 if self.defer_ms is None else len(self.bodies)

    def part(self, start: int, stop: int | None = None) -> _Bodies:
        chosen = slice(start, stop)
        return replace(self, positions=self.positions[chosen], bodies=self.bodies[chosen])


class Producer(Listener):
    """Publishes to one nsqd, chosen by the mode, with failover; in mode ``all`` to every nsqd.

    Use it as an async context manager, or call ``connect`` and ``close``::

        async def main() -> None:
            async with Producer([Address("127.0.0.1", 4150)]) as producer:
                await producer.publish("events", [b"one", b"two"])
                await producer.publish("events", [b"in a minute"], defer=60.0)

        asyncio.run(main())
    """

    def __init__(
        self,
        nsqds: Sequence[Address],
        config: ProducerConfig | None = None,
        *,
        rng: Random | None = None,
        dial: Dial = Connection.open,
    ) -> None:
        config = ProducerConfig() if config is None else config
        check_list("nsqds", nsqds, Address)
        check_type("config", config, ProducerConfig)
        if not nsqds:
            raise ConfigError("expected at least one nsqd address to publish to")
        self._nsqds = tuple(dict.fromkeys(nsqds))
        self._config = config
        self._rng = rng or Random()  # noqa: S311 - spreads load, guards nothing
        self._dial = dial
        self._endpoints: Endpoints | None = None
        if config.mode in ("hostpool", "epsilon-greedy"):
            self._endpoints = make_endpoints(config.mode, list(map(str, self._nsqds)))
        self._blameless: WeakSet[Connection] = WeakSet()  # closed by nsqd for an invalid body
        self._failing: set[Address] = set()  # a new connection does not count as success here
        self._delays = ReconnectDelays(config.reconnect_delay, config.max_reconnect_delay)
        self._connections: dict[Address, Connection] = {}
        self._dials: list[asyncio.Task[NSQError | None]] = []
        self._changed = asyncio.Event()
        self._keepers = Tasks(self._break)
        self._bug: BaseException | None = None
        self._prompt: set[Address] = set()
        self._turn = 0
        self._closed = True

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect to every nsqd, and keep retrying after failures.

        After the first connection, the other nsqds have twice ``dial_timeout`` to follow; slower
        nsqds join later. Raises UnreachableError if no nsqd can be reached or, in mode ``all``, if
        an nsqd cannot be reached in time; all connections are then closed. A second call has no
        effect.
        """
        if not self._closed:
            return
        self._closed, self._bug = False, None
        loop = asyncio.get_running_loop()
        dials = {address: loop.create_task(self._connect(address)) for address in self._nsqds}
        self._dials = list(dials.values())
        try:
            errors = await self._first_errors(dials)
            if errors and (len(errors) == len(self._nsqds) or self._config.mode == "all"):
                raise errors[0]
        except BaseException:
            self._closed = True
            await end(dials.values())
            for connection in list(self._connections.values()):
                connection.abort()
            raise
        for error in errors:
            log.warning("cannot connect: %s", error)
        if self._closed:  # meanwhile
            return
        self._keepers = Tasks(self._break)
        for address, dial in dials.items():
            self._keepers.begin(self._keep(address, dial))

    async def _first_errors(
        self, dials: Mapping[Address, asyncio.Task[NSQError | None]]
    ) -> list[NSQError]:
        """Wait for the first connection, then briefly for the others; return errors in order."""
        left: set[asyncio.Task[NSQError | None]] = set(dials.values())
        connected = False
        while left and not connected:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            connected = any(dial.result() is None for dial in done)
        if left:
            await asyncio.wait(left, timeout=2 * self._config.dial_timeout)
        errors: list[NSQError] = []
        for address, dial in dials.items():
            if not dial.done():
                text = "still no answer to IDENTIFY, although another nsqd answered"
                if self._config.mode == "all":
                    text += f"; {self._config.spelled('dial_timeout')} sets how long to wait"
                errors.append(UnreachableError(text, address, reason="silence"))
            elif error := dial.result():
                errors.append(error)
        return errors

    async def close(self) -> None:
        """Close all connections; pending publishes fail."""
        self._closed = True
        connections = list(self._connections.values())
        self._pulse()
        try:
            await self._keepers.close()
            await end(self._dials)
            # nsqd has read all confirmed messages, and nothing else is worth a wait.
            await call_each(connections, lambda each: each.close(drain=_CLOSE_TIMEOUT))
        finally:
            for connection in connections:
                connection.abort()

    @property
    def is_connected(self) -> bool:
        """Whether a publish can be sent now; in mode ``all``, to every nsqd."""
        live = [each for each in self._connections.values() if not each.closing]
        return len(live) == len(self._nsqds) if self._config.mode == "all" else bool(live)

    async def publish(
        self, topic: str, bodies: Sequence[bytes], *, defer: float | None = None
    ) -> None:
        """Publish all bodies; return when nsqd has answered OK for each.

        ``defer`` is in seconds. If the connection breaks before the OK for a batch, the batch is
        sent to the next nsqd, and may arrive twice.

        Raises PublishError with the positions of the bodies not accepted; its cause is nsqd's
        error, if any. Before ``connect`` it is raised at once. Raises ConfigError for an invalid
        topic, or for bodies of another type than bytes.
        """
        check_name("topic", topic)
        check_list("bodies", bodies, bytes)
        if defer is not None:
            check_seconds("defer", defer)
        deadline = asyncio.get_running_loop().time() + self._config.publish_timeout
        defer_ms = None if defer is None else round(min(defer, commands.MAX_DELAY) * 1000)
        refusals: list[_Refusal] = []
        parts = list(self._split(bodies, refusals))
        targets = self._nsqds if self._config.mode == "all" else (None,)
        batches = [_Bodies(topic, *part, defer_ms, target) for target in targets for part in parts]
        for more in await call_each(batches, lambda batch: self._publish(batch, deadline)):
            refusals += more
        if refusals:
            refused = sorted(set(chain.from_iterable(positions for positions, _ in refusals)))
            errors = [error for _, error in refusals]
            # An invalid body is the cause only if all errors are about bodies.
            causes = sorted((e for e in errors if isinstance(e, PeerError)), key=_blames_a_body)
            permanent = all(map(_is_permanent, errors))
            cause = next(iter(causes), None)
            raise PublishError(str(errors[0]), refused, permanent=permanent) from cause

    def _split(
        self, bodies: Sequence[bytes], refusals: list[_Refusal]
    ) -> Iterator[tuple[Sequence[int], Sequence[bytes]]]:
        """Yield batches within nsqd's limits, with positions; refuse bodies of invalid size."""
        largest, limit = self._config.max_msg_size, self._config.max_body_size
        bound = f"{self._config.spelled('max_msg_size')} {format_size(largest)}"
        sizes = list(map(len, bodies))
        fits = bool(sizes) and min(sizes) > 0 and max(sizes) <= largest
        if fits and commands.publish_many_size(len(sizes), sum(sizes)) <= limit:
            yield range(len(bodies)), bodies
            return
        positions: list[int] = []
        total = 0
        for position, size in enumerate(sizes):
            if not 0 < size <= largest:
                reason = (
                    f"a message of {size} bytes is over {bound}; raise it if nsqd's -max-msg-size "
                    "is higher"
                    if size
                    else "message is empty: nsqd refuses empty messages"
                )
                refusals.append(((position,), ConfigError(reason)))
                continue
            if positions and (commands.publish_many_size(len(positions) + 1, total + size) > limit):
                yield positions, [bodies[p] for p in positions]
                positions, total = [], 0
            positions.append(position)
            total += size
        if positions:
            yield positions, [bodies[p] for p in positions]

    async def _publish(self, batch: _Bodies, deadline: float) -> list[_Refusal]:
        """Publish a batch; return the bodies not accepted."""
        refusals: list[_Refusal] = []
        todo = [batch]
        while todo:
            failure = await self._try(todo.pop(), deadline)
            if failure is None:
                continue
            rest, error = failure
            count = len(rest.bodies)
            if not _blames_a_body(error):
                refusals.append((rest.positions, error))
            elif count == 1 or rest.defer_ms is not None:  # DPUBs are refused one by one
                refusals.append((rest.positions[:1], error))
                todo += [rest.part(1)] if count > 1 else []
            else:  # nsqd accepts all of an MPUB or nothing: halve it to find the invalid body
                todo += [rest.part(count // 2), rest.part(0, count // 2)]
        return refusals

    async def _try(self, batch: _Bodies, deadline: float) -> tuple[_Bodies, NSQError] | None:
        """Send a batch to its target, or to one nsqd after another until the batch is accepted.

        Returns None, or the bodies not accepted and the error.
        """
        reason = "no nsqd is connected"
        failed: set[Connection] = set()
        try:
            async with asyncio.timeout_at(deadline):
                while connection := await self._choose(batch.target, failed):
                    reason = f"{connection.address}: no response"
                    try:
                        await self._send(connection, batch)
                    except PeerError as error:
                        if isinstance(error, ConnectionLostError):
                            batch = batch.part(error.answered)
                        if _is_permanent(error):
                            return batch, error
                        failed.add(connection)
                        reason = str(error)
                    else:
                        return None
        except TimeoutError:
            limit = format_duration(self._config.publish_timeout)
            return batch, NSQError(f"not published within {limit}: {reason}")
        return batch, NSQError("the producer is not connected: call connect first")

    async def _send(self, connection: Connection, batch: _Bodies) -> None:
        """Send one request, and report the result to the mode; raises PeerError."""
        loop = asyncio.get_running_loop()
        began, well = loop.time(), False
        try:
            await connection.request(batch.command(), replies=batch.replies)
            well = True
        except PeerError as error:
            well = _is_permanent(error) or connection in self._blameless
            raise
        finally:
            self._report(connection.address, ok=well, took=loop.time() - began)

    def _report(self, address: Address, *, ok: bool, took: float) -> None:
        if self._endpoints:
            now = asyncio.get_running_loop().time()
            self._endpoints.report(str(address), ok=ok, took=took, now=now)

    async def _choose(self, target: Address | None, failed: set[Connection]) -> Connection | None:
        """Wait for a connection without a failure of this batch; return the connection to use.

        Returns None once the producer is closed. If a bug has ended reconnecting, raises its error.
        """
        while not self._closed:
            if self._bug:
                raise self._bug
            live = [
                connection
                for address, connection in self._connections.items()
                if target in (None, address) and not connection.closing
            ]
            fresh = [connection for connection in live if connection not in failed]
            if fresh and (chosen := self._preferred(fresh)):
                return chosen
            if live:
                failed.clear()
                await asyncio.sleep(_RETRY_DELAY)
            else:
                await self._changed.wait()
        return None

    def _preferred(self, fresh: Sequence[Connection]) -> Connection | None:
        """Return the connection chosen by the mode; None if all endpoints are paused.

        Connections with the fewest unanswered requests come first; otherwise a hanging nsqd would
        collect all batches.
        """
        least = min(each.unanswered for each in fresh)
        idle = [each for each in fresh if each.unanswered == least]
        if not self._endpoints:
            self._turn += 1
            return idle[self._turn % len(idle)]
        now = asyncio.get_running_loop().time()
        fresh_by_name = {str(connection.address): connection for connection in fresh}
        busier = None
        for name in self._endpoints.choose(now=now, rng=self._rng):
            if not (chosen := fresh_by_name.get(name)):
                self._endpoints.report(name, ok=False, took=0.0, now=now)
            elif chosen in idle:
                return chosen
            else:
                busier = busier or chosen
        return busier

    async def _connect(self, address: Address) -> NSQError | None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            connection = await self._dial(
                address, self._config, self, subscription=None, auth_secret=self._config.auth_secret
            )
        except NSQError as error:
            return error
        if self._closed:
            connection.abort()
            return None
        self._delays.connected(address)
        self._connections[address] = connection
        if address in self._failing:
            self._failing.discard(address)
        else:
            self._report(address, ok=True, took=loop.time() - began)
        self._pulse()
        return None

    async def _keep(self, address: Address, dial: asyncio.Task[NSQError | None]) -> None:
        """Wait for the first dial, and reconnect whenever the connection is lost."""
        loop = asyncio.get_running_loop()
        await dial
        while True:
            while address in self._connections:
                await self._changed.wait()
            if address in self._prompt:
                self._prompt.discard(address)
            else:
                now = loop.time()
                await asyncio.sleep(self._delays.failed(address, now) - now)
            if error := await self._connect(address):
                log.info("cannot connect: %s", error)

    def connection_lost(self, connection: Connection, error: PeerError | None) -> None:
        """Reconnect; pending publishes go to another nsqd."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        if error is not None and not self._closed:
            # nsqd closes the connection after an invalid body, but is healthy: reconnect at once.
            refused = _blames_a_body(error)
            if refused:
                self._prompt.add(connection.address)
                self._blameless.add(connection)
            elif isinstance(error, ServerError):
                self._failing.add(connection.address)
            log.log(logging.DEBUG if refused else logging.WARNING, "connection lost: %s", error)
        self._pulse()

    def _break(self, error: BaseException) -> None:
        """Fail all publishes with the error of a bug: lost connections would not come back."""
        log.error("cannot reconnect: %r", error, exc_info=error)
        self._bug = self._bug or error
        self._pulse()

    def _pulse(self) -> None:
        """Wake all tasks waiting for a connection to open or close."""
        self._changed.set()
        self._changed = asyncio.Event()


def _is_permanent(error: NSQError) -> bool:
    """Whether a retry is useless. E_UNAUTHORIZED comes as an AuthError."""
    if isinstance(error, ServerError):
        return error.code in _PERMANENT
    is_forbidden = isinstance(error, AuthError) and "E_UNAUTHORIZED" in error.text
    return is_forbidden or isinstance(error, ConfigError)


def _blames_a_body(error: NSQError) -> bool:
    return isinstance(error, ServerError) and error.code in REFUSED_BODY
