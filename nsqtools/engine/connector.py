"""Keeps a consumer connected to its nsqds, fixed or listed by nsqlookupds."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nsqtools.config.consuming import ServerOptions
from nsqtools.engine.outages import OutageLog
from nsqtools.errors import (
    AuthError,
    ConfigError,
    HTTPError,
    NSQError,
    RefusedError,
    UnreachableError,
)
from nsqtools.names import Address, check_list, check_name
from nsqtools.policy.discovery import LookupSchedule, ReconnectDelays

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from random import Random

    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.net.connection import Connection
    from nsqtools.tasks import Tasks

log = logging.getLogger(__name__)

MAX_REQUESTS = 32
"""Maximum requests to one server at a time, to save descriptors in a run of many topics."""
_LOOKUPD = ServerOptions.declared()["lookupd_http_address"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A topic and channel, and the servers: either fixed nsqds or nsqlookupds.

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
    """Raise ConfigError unless ``urls`` is a list of HTTP addresses."""
    check_list("lookupds", urls, str)
    for url in urls:
        _LOOKUPD.check(url)


class NsqdFinder:
    """Asks nsqlookupds for the nsqds of topics. The consumers of a run share one finder.

    Each nsqlookupd has at most MAX_REQUESTS requests at once.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self.outages = OutageLog()
        """Logs failing servers."""
        self._config = config
        self._slots = defaultdict[str, asyncio.Semaphore](partial(asyncio.Semaphore, MAX_REQUESTS))

    async def find(self, lookupd: str, topic: str) -> Iterable[Address]:
        """Return the nsqds listed for a topic by the nsqlookupd at this URL.

        Raises UnreachableError if the nsqlookupd does not answer, and ConfigError for too many
        nsqds.
        """
        from nsqtools.engine.lookup import producers_at  # loads net.http

        async with self._slots[lookupd]:
            return await producers_at(lookupd, topic, self._config, self.outages)


class Connector:
    """Keeps a consumer connected. Each server has its own task, so none waits for another.

    ``connect`` opens a connection. Closing ``tasks`` ends the connecting. With ``patient``,
    ``start`` waits for unreachable servers.
    """

    def __init__(
        self,
        subscription: Subscription,
        config: ConsumerConfig,
        connect: Callable[[Address], Awaitable[Connection]],
        *,
        rng: Random,
        finder: NsqdFinder,
        tasks: Tasks,
        patient: bool = False,
    ) -> None:
        self._config = config
        self._connect = connect
        self._rng = rng
        self._finder = finder
        self._outages = finder.outages
        self._topic = subscription.topic
        self._patient = patient
        self._tasks = tasks
        self._nsqds = tuple(dict.fromkeys(subscription.nsqds))
        self._delays = ReconnectDelays(config.reconnect_delay, config.max_reconnect_delay)
        self._listed: set[Address] = set()
        """The nsqds found through nsqlookupds that have a task, dialling or connected."""
        self._lookups = {url: asyncio.Event() for url in dict.fromkeys(subscription.lookupds)}
        """The nsqlookupds, each with an event; set it to ask the nsqlookupd again soon."""
        self._restarting: set[str] = set()
        """The nsqlookupds to ask soon because a working connection was lost."""
        self._silent: dict[str, UnreachableError] = {}
        """The nsqlookupds without an answer in their last round, with the error."""
        self._may_exist = set(self._lookups)
        """The nsqlookupds that have not yet answered without an nsqd."""
        self._awaited: set[Address | str] = {*self._nsqds, *self._lookups}
        """Servers neither reached nor failed since the start."""
        self._failures: dict[Address | str, NSQError] = {}
        """The servers' errors before the first server was reached."""

    async def start(self) -> None:
        """Begin to connect; return once an nsqd is connected, or an nsqlookupd lists no nsqd.

        Raises the first error if no server is reached. With ``patient``, ``start`` returns if a
        server may be reached later, and raises only permanent errors, such as a refused secret.
        """
        self._loop = asyncio.get_running_loop()
        self._contact: asyncio.Future[None] = self._loop.create_future()
        for address in self._nsqds:
            self._tasks.begin(self._keep(address))
        for url in self._lookups:
            self._tasks.begin(self._poll(url))
        await self._contact

    async def _keep(self, address: Address) -> None:
        """Keep a fixed nsqd connected, with growing delays.

        The rule is Reconnection in building_client_libraries.
        """
        while True:
            await self._stay(address)
            now = self._loop.time()
            due = self._delays.failed(address, now, self._rng)
            log.info("%s: next retry in %.1f s", address, due - now)
            await asyncio.sleep(due - now)

    async def _join(self, address: Address) -> None:
        """Connect to a listed nsqd; after the connection's end, only a later round reconnects."""
        try:
            was_connected = await self._stay(address)
        finally:
            self._listed.discard(address)
        if was_connected:
            for ask_soon in self._lookups.values():
                ask_soon.set()

    async def _stay(self, address: Address) -> bool:
        """Connect, and return true once the connection is lost; false if connecting failed."""
        try:
            connection = await self._connect(address)
        except NSQError as error:
            self._missed(address, error)
            return False
        self._outages.nsqd_connected(address)
        self._reached()
        since = self._loop.time()
        await connection.wait_lost()
        if self._delays.ended(address, self._loop.time() - since):
            self._restarting.update(self._lookups)
        return True

    async def _poll(self, url: str) -> None:
        """Ask an nsqlookupd in rounds. A lost nsqd is reconnected only if a round lists it."""
        config, ask_soon = self._config, self._lookups[url]
        schedule = LookupSchedule(config.lookupd_poll_interval, config.lookupd_poll_jitter)
        while True:
            await self._ask(url)
            is_due = False
            while not is_due:
                restart = url in self._restarting
                self._restarting.discard(url)
                urgent = ask_soon.is_set() or not self._listed
                ask_soon.clear()
                now = self._loop.time()
                delay = schedule.next(now, urgent=urgent, restart=restart, rng=self._rng) - now
                try:
                    async with asyncio.timeout(delay):
                        await ask_soon.wait()
                except TimeoutError:
                    is_due = True

    async def _ask(self, url: str) -> None:
        """Ask an nsqlookupd, and begin to connect to its listed nsqds."""
        try:
            found = dict.fromkeys(await self._finder.find(url, self._topic))
        except UnreachableError as error:
            self._silent[url] = error
            self._missed(url, error)
            return
        except ConfigError as error:
            self._silent.pop(url, None)
            self._missed(url, error)
            return
        self._silent.pop(url, None)
        missing = [address for address in found if address not in self._listed]
        if not self._contact.done():  # this nsqlookupd may have failed before
            self._failures.pop(url, None)
            self._awaited.update(found)
            self._awaited.discard(url)
        if not found:
            self._reached()
            self._lists_none(url)
        for address in missing:
            self._listed.add(address)
            self._tasks.begin(self._join(address))

    def _lists_none(self, url: str) -> None:
        """Warn once if no nsqlookupd lists an nsqd: the topic may be misspelled."""
        if self._may_exist:
            self._may_exist.discard(url)
            if not self._may_exist and not self._listed:
                log.warning("topic %s: nsqlookupd lists no nsqd yet: waiting", self._topic)

    def _reached(self) -> None:
        """Note a reached server; after the first, log the earlier failures."""
        if not self._contact.done():
            self._contact.set_result(None)
            for server, error in self._failures.items():
                self._log(server, error)

    def _missed(self, server: Address | str, error: NSQError) -> None:
        """Note a failed server. After the last failure at the start, end the start or wait."""
        if self._contact.done():
            self._log(server, error)
            return
        self._failures[server] = error
        self._awaited.discard(server)
        if self._awaited:
            return
        if self._patient and any(map(_may_pass, self._failures.values())):
            self._reached()
            self._outages.waiting()
        else:
            self._contact.set_exception(self._first_failure())

    def _first_failure(self) -> NSQError:
        """The error of the first nsqd; without any nsqd, the error of the nsqlookupds."""
        failures = self._failures
        of_nsqds = [failures[each] for each in self._nsqds] or [
            error for server, error in failures.items() if isinstance(server, Address)
        ]
        others = [error for error in failures.values() if not isinstance(error, UnreachableError)]
        return (of_nsqds or others or [self._no_lookupd()])[0]

    def _log(self, server: Address | str, error: NSQError) -> None:
        if isinstance(server, Address):
            self._outages.nsqd_failed(server, error)
        elif not isinstance(error, UnreachableError):
            log.warning("%s", error)
        elif len(self._silent) < len(self._lookups):
            self._outages.lookupd_failed(error)
        else:
            self._outages.all_lookupds_failed(self._no_lookupd())

    def _no_lookupd(self) -> UnreachableError:
        from nsqtools.engine.lookup import no_answer  # loads net.http

        return no_answer("nsqlookupd", [self._silent[url] for url in self._lookups])


def _may_pass(error: NSQError) -> bool:
    """Whether the server may be reached later: it is not started yet, or not ready."""
    if isinstance(error, HTTPError):
        return not 300 <= error.status < 500
    return isinstance(error, UnreachableError) and not isinstance(error, RefusedError | AuthError)
