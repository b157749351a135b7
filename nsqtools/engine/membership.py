"""Keeps a consumer connected to its nsqds: fixed ones, or those that nsqlookupds list."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.config.consuming import ServerOptions
from nsqtools.errors import AuthError, ConfigError, HTTPError, RefusedError, UnreachableError
from nsqtools.names import Address, check_list, check_name
from nsqtools.policy.discovery import LookupSchedule, ReconnectDelays
from nsqtools.tasks import Tasks

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
    """Logs each silent server once, until it answers again; consumers of one run share it."""

    def __init__(self) -> None:
        self._silent: set[Address | None] = set()
        self._all = False
        self._waiting = False
        self._unconnected: dict[Address, set[str]] = {}

    def heard(self, answers: Answers[Any]) -> None:
        """Warn of the nsqlookupds that failed, where some answered."""
        self._all = False
        self._silent.difference_update(address for address, _ in answers.answers)
        for _, error in answers.failures:
            self.missed(error)

    def missed(self, error: UnreachableError) -> None:
        """Warn that an nsqlookupd did not answer."""
        known = error.address in self._silent
        log.log(logging.DEBUG if known else logging.WARNING, "nsqlookupd %s", error)
        self._silent.add(error.address)

    def nobody(self, error: UnreachableError) -> None:
        """Warn that no nsqlookupd answered."""
        log.log(logging.DEBUG if self._all else logging.WARNING, "%s", error)
        self._all = True

    def unconnected(self, address: Address, error: NSQError) -> None:
        """Warn that an nsqd cannot be connected to."""
        told = self._unconnected.setdefault(address, set())
        known = str(error) in told
        log.log(logging.INFO if known else logging.WARNING, "cannot connect: %s", error)
        told.add(str(error))

    def connected(self, address: Address) -> None:
        """Note that an nsqd was connected to."""
        self._unconnected.pop(address, None)

    def waiting(self) -> None:
        """Warn that no server can be reached, and that the consumers wait for one."""
        if not self._waiting:
            log.warning("waiting until a server can be reached")
        self._waiting = True


class Membership:
    """Keeps a consumer connected. Each server has a task of its own, and waits for no other.

    ``connect`` opens a connection, and returns its error instead of raising it. ``connected`` has
    the addresses of open connections. ``find`` asks the nsqlookupd at a URL for the addresses of
    all nsqds that have the topic, and raises UnreachableError if it does not answer. ``silence``
    logs the servers that fail. ``on_nobody`` is called when there is no nsqd to connect to yet,
    ``broken`` with the error of a bug, which would otherwise end reconnection silently.

    With ``patient``, servers that cannot be reached at the start are waited for.
    """

    def __init__(
        self,
        subscription: Subscription,
        config: ConsumerConfig,
        connect: Callable[[Address], Awaitable[NSQError | None]],
        connected: Collection[Address],
        *,
        rng: Random,
        find: Callable[[str], Awaitable[Iterable[Address]]],
        silence: Silence,
        on_nobody: Callable[[], object],
        broken: Callable[[BaseException], object],
        patient: bool = False,
    ) -> None:
        self._config = config
        self._connect = connect
        self._connected = connected
        self._rng = rng
        self._find = find
        self._silence = silence
        self._on_nobody = on_nobody
        self._patient = patient
        self._nsqds = tuple(dict.fromkeys(subscription.nsqds))
        self._delays = ReconnectDelays(config.reconnect_delay, config.max_reconnect_delay)
        self._since: dict[Address, float] = {}
        self._dialled: set[Address] = set()
        self._lookups = {url: asyncio.Event() for url in dict.fromkeys(subscription.lookupds)}
        """The nsqlookupds, each with the event that makes it be asked again soon."""
        self._anew: set[str] = set()
        """The nsqlookupds to ask soon, because a connection that worked was lost."""
        self._mute: dict[str, UnreachableError] = {}
        """The nsqlookupds that did not answer when they were last asked."""
        self._awaited: set[Address | str] = {*self._nsqds, *self._lookups}
        """Servers that may still be the first to be reached."""
        self._failures: dict[Address | str, NSQError] = {}
        """Servers that failed before any was reached."""
        self._tasks = Tasks(broken)

    async def start(self) -> None:
        """Begin to connect, and wait until a server is reached.

        Raises the first error if none is. With ``patient`` it raises only what waiting does not
        mend, such as a refused secret, and returns if a server may be reached later.
        """
        self._loop = asyncio.get_running_loop()
        self._contact: asyncio.Future[None] = self._loop.create_future()
        for address in self._nsqds:
            self._tasks.begin(self._keep(address))
        for url in self._lookups:
            self._tasks.begin(self._poll(url))
        await self._contact

    def lost(self, address: Address) -> None:
        """Handle a lost connection: reconnect to a fixed address, or ask nsqlookupds soon."""
        now = self._loop.time()
        if self._delays.ended(address, now - self._since.pop(address, now)):
            self._anew.update(self._lookups)
        if address in self._nsqds:
            self._tasks.begin(self._keep(address, again=True))
        for asked in self._lookups.values():
            asked.set()

    async def close(self) -> None:
        """Stop connecting, and cancel pending connection attempts."""
        await self._tasks.close()

    async def _keep(self, address: Address, *, again: bool = False) -> None:
        """Connect to a fixed nsqd, with growing delays (building_client_libraries, Reconnection).

        With ``again`` the first delay is before the first attempt.
        """
        while again or not await self._reach(address):
            now = self._loop.time()
            due = self._delays.failed(address, now, self._rng)
            log.info("%s: next retry in %.1f s", address, due - now)
            await asyncio.sleep(due - now)
            again = False

    async def _join(self, address: Address) -> None:
        """Connect to a listed nsqd; it is ``_dialled`` until then."""
        try:
            await self._reach(address)
        finally:
            self._dialled.discard(address)

    async def _reach(self, address: Address) -> bool:
        """Connect; returns whether that succeeded."""
        if error := await self._connect(address):
            self._missed(address, error)
            return False
        self._since[address] = self._loop.time()
        self._silence.connected(address)
        self._reached()
        return True

    async def _poll(self, url: str) -> None:
        """Ask an nsqlookupd in rounds. A lost connection is reopened only if a round lists it."""
        config, again = self._config, self._lookups[url]
        schedule = LookupSchedule(config.lookupd_poll_interval, config.lookupd_poll_jitter)
        while True:
            await self._ask(url)
            is_due = False
            while not is_due:
                anew = url in self._anew
                self._anew.discard(url)
                urgent = again.is_set() or not (self._connected or self._dialled)
                again.clear()
                now = self._loop.time()
                delay = schedule.next(now, urgent=urgent, anew=anew, rng=self._rng) - now
                try:
                    async with asyncio.timeout(delay):
                        await again.wait()
                except TimeoutError:
                    is_due = True

    async def _ask(self, url: str) -> None:
        """Ask an nsqlookupd, and begin to connect to the nsqds that it lists."""
        try:
            found = dict.fromkeys(await self._find(url))
        except UnreachableError as error:
            self._mute[url] = error
            self._missed(url, error)
            return
        except ConfigError as error:
            self._missed(url, error)
            return
        self._mute.pop(url, None)
        missing = [address for address in found if address not in self._connected]
        if url in self._awaited:
            self._awaited.update(missing)
            self._awaited.discard(url)
        if not found:
            self._on_nobody()
            self._reached()
        for address in missing:
            if address not in self._dialled:
                self._dialled.add(address)
                self._tasks.begin(self._join(address))

    def _reached(self) -> None:
        """Note that a server was reached; log those that failed before."""
        if not self._contact.done():
            self._contact.set_result(None)
            for server, error in self._failures.items():
                self._tell(server, error)

    def _missed(self, server: Address | str, error: NSQError) -> None:
        """Note that a server failed. If it was the last hope at the start, decide what to do."""
        if self._contact.done():
            self._tell(server, error)
            return
        self._failures[server] = error
        self._awaited.discard(server)
        if self._awaited:
            return
        if self._patient and any(map(_may_pass, self._failures.values())):
            self._reached()
            self._silence.waiting()
            self._on_nobody()
        else:
            self._contact.set_exception(self._first_failure())

    def _first_failure(self) -> NSQError:
        """The error of the first nsqd, or of nsqlookupds if none named an nsqd."""
        failures = self._failures
        of_nsqds = [failures[each] for each in self._nsqds] or [
            error for server, error in failures.items() if isinstance(server, Address)
        ]
        others = [error for error in failures.values() if not isinstance(error, UnreachableError)]
        return (of_nsqds or others or [self._nobody()])[0]

    def _tell(self, server: Address | str, error: NSQError) -> None:
        if isinstance(server, Address):
            self._silence.unconnected(server, error)
        elif not isinstance(error, UnreachableError):
            log.warning("%s", error)
        elif len(self._mute) < len(self._lookups):
            self._silence.missed(error)
        else:
            self._silence.nobody(self._nobody())

    def _nobody(self) -> UnreachableError:
        from nsqtools.engine.lookup import nobody  # loads net.http

        return nobody("nsqlookupd", [self._mute[url] for url in self._lookups])


def _may_pass(error: NSQError) -> bool:
    """Whether the server may be reached later: it is not there yet, or not ready."""
    if isinstance(error, HTTPError):
        return not 300 <= error.status < 500
    return isinstance(error, UnreachableError) and not isinstance(error, RefusedError | AuthError)
