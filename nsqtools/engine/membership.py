"""Keeps a consumer connected to its nsqds: fixed ones, or those that nsqlookupds list."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.config.consuming import ServerOptions
from nsqtools.errors import ConfigError, UnreachableError
from nsqtools.names import Address, check_list, check_name
from nsqtools.policy.discovery import LookupSchedule, ReconnectDelays
from nsqtools.tasks import Tasks, call_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
    from random import Random
    from typing import Any

    from nsqtools.config import ConsumerConfig
    from nsqtools.errors import NSQError
    from nsqtools.net.http.daemons import Answers

log = logging.getLogger(__name__)

_LOOKUPD = ServerOptions.declared()["lookupd_http_address"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A topic and channel, and its servers: fixed nsqds, or nsqlookupds, not both.

    ``lookupds`` are URLs or host:port texts. Raises ConfigError::

        nsqds = (Address("127.0.0.1", 4150),)
        fixed = Subscription(topic="events", channel="archive", nsqds=nsqds)
        lookupds = ("http://127.0.0.1:4161", "127.0.0.1:4163")
        found = Subscription(topic="events", channel="archive", lookupds=lookupds)
    """

    topic: str
    channel: str
    nsqds: tuple[Address, ...] = ()
    lookupds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name("topic", self.topic)
        check_name("channel", self.channel)
        check_list("nsqds", self.nsqds, Address)
        check_lookupds(self.lookupds)
        if bool(self.nsqds) == bool(self.lookupds):
            raise ConfigError("expected either nsqd addresses or nsqlookupd addresses")


def check_lookupds(urls: Sequence[str]) -> None:
    """Raise ConfigError unless this is a list of HTTP addresses."""
    check_list("lookupds", urls, str)
    for url in urls:
        _LOOKUPD.check(url)


class Silence:
    """Logs each silent nsqlookupd once, until it answers again."""

    def __init__(self) -> None:
        self._silent: set[Address] = set()
        self._all = False

    def heard(self, answers: Answers[Any]) -> None:
        """Warn of the nsqlookupds that failed, where some answered."""
        self._all = False
        self._silent.difference_update(address for address, _ in answers.answers)
        for address, error in answers.failures:
            known = address in self._silent
            log.log(logging.DEBUG if known else logging.WARNING, "nsqlookupd %s", error)
            self._silent.add(address)

    def nobody(self, error: UnreachableError) -> None:
        """Warn that no nsqlookupd answered."""
        log.log(logging.DEBUG if self._all else logging.WARNING, "%s", error)
        self._all = True


class Membership:
    """Keeps a consumer connected.

    ``connect`` opens a connection, and returns its error instead of raising it. ``connected`` has
    the addresses of open connections. ``find`` returns the addresses of all nsqds that have the
    topic, and raises UnreachableError if no server answered; after the start ``silence`` logs that
    error. ``on_nobody`` is called when ``find`` returns no address, ``broken`` with the error of a
    bug, which would otherwise end reconnection silently.
    """

    def __init__(
        self,
        subscription: Subscription,
        config: ConsumerConfig,
        connect: Callable[[Address], Awaitable[NSQError | None]],
        connected: Collection[Address],
        *,
        rng: Random,
        find: Callable[[], Awaitable[Iterable[Address]]],
        silence: Silence,
        on_nobody: Callable[[], object],
        broken: Callable[[BaseException], object],
    ) -> None:
        self._subscription = subscription
        self._config = config
        self._connect = connect
        self._connected = connected
        self._rng = rng
        self._find = find
        self._silence = silence
        self._on_nobody = on_nobody
        self._delays = ReconnectDelays(config.reconnect_delay, config.max_reconnect_delay)
        self._lookup_again = asyncio.Event()
        self._tasks = Tasks(broken)

    async def start(self) -> None:
        """Connect for the first time; raises UnreachableError if every connection failed."""
        if fixed := self._subscription.nsqds:
            for address in await self._connect_all(fixed):
                self._tasks.begin(self._reconnect(address))
        else:
            await self._connect_all(await self._lookup())
            self._tasks.begin(self._discover())

    def lost(self, address: Address) -> None:
        """Handle a lost connection: reconnect to a fixed address, or ask nsqlookupds soon."""
        if self._subscription.nsqds:
            self._tasks.begin(self._reconnect(address))
        else:
            self._lookup_again.set()

    async def close(self) -> None:
        """Stop connecting, and cancel pending connection attempts."""
        await self._tasks.close()

    async def _connect_all(self, addresses: Iterable[Address]) -> Collection[Address]:
        """Connect to all; returns the failed addresses. Raises the first error if all failed."""
        wanted = list(dict.fromkeys(addresses))
        results = await call_each(wanted, self._connect)
        errors = {a: error for a, error in zip(wanted, results, strict=True) if error}
        if errors and len(errors) == len(wanted):
            raise errors[wanted[0]]
        for error in errors.values():
            log.warning("cannot connect: %s", error)
        return errors

    async def _reconnect(self, address: Address) -> None:
        """Reconnect, with growing delays (building_client_libraries, Reconnection)."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            due = self._delays.failed(address, now)
            log.info("%s: next retry in %.0f s", address, due - now)
            await asyncio.sleep(due - now)
            if (error := await self._connect(address)) is None:
                self._delays.connected(address)
                return
            log.warning("cannot connect: %s", error)

    async def _discover(self) -> None:
        """Ask nsqlookupds in rounds. A lost connection is reopened only if a round lists it."""
        config = self._config
        schedule = LookupSchedule(config.lookupd_poll_interval, config.lookupd_poll_jitter)
        loop = asyncio.get_running_loop()
        while True:
            urgent = self._lookup_again.is_set() or not self._connected
            self._lookup_again.clear()
            now = loop.time()
            delay = schedule.next(now, urgent=urgent, rng=self._rng) - now
            try:
                async with asyncio.timeout(delay):
                    await self._lookup_again.wait()
                continue
            except TimeoutError:
                pass
            try:
                found = await self._lookup()
            except UnreachableError as error:
                self._silence.nobody(error)
                continue
            except ConfigError as error:
                log.warning("%s", error)
                continue
            missing = [address for address in found if address not in self._connected]
            for failure in await call_each(missing, self._connect):
                if failure:
                    log.warning("cannot connect: %s", failure)

    async def _lookup(self) -> list[Address]:
        found = list(dict.fromkeys(await self._find()))
        if not found:
            self._on_nobody()
        return found
