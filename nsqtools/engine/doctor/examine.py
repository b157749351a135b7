"""Gathers the facts for a diagnosis, from each server over TCP and HTTP."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqtools.clock import wall
from nsqtools.config.units import format_duration
from nsqtools.engine.doctor.facts import Facts, LookupdFacts, NsqdFacts
from nsqtools.engine.lookup import MAX_NSQDS
from nsqtools.errors import (
    AuthError,
    HTTPError,
    PeerError,
    ProtocolError,
    RefusedError,
    ServerError,
    UnreachableError,
)
from nsqtools.names import Address, is_ephemeral
from nsqtools.net.connection import Connection
from nsqtools.net.http.api import Deadline, limits_within, parse_url
from nsqtools.net.http.daemons import Lookupd, NsqdHTTP, attempt, union_producers, without_repeats
from nsqtools.net.http.replies import Lookup
from nsqtools.net.probe import what_speaks
from nsqtools.net.tls import expiry, http_context, uses_tls
from nsqtools.proto import commands
from nsqtools.tasks import call_each, end, together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.errors import Reason
    from nsqtools.net.http.replies import NsqdInfo, Registration
    from nsqtools.net.probe import Speaks
    from nsqtools.proto.session import Features

log = logging.getLogger(__name__)

MOMENT = 1.0
"""Seconds between two looks: at a whole cluster, or at consumers that seem stuck."""

# After these reasons it is useless to ask for the protocol of the port.
_DEAF: frozenset[Reason] = frozenset({"name", "dial", "silence"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The topic, channel and servers of the consumer in question.

    Without a topic, the whole cluster is examined. ``urls`` are HTTP addresses of nsqds: those in
    ``nsqds``, and others to examine. ``timeout`` is for the whole examination, in seconds;
    nsqlookupds may use half.
    """

    topic: str
    channel: str
    nsqds: tuple[Address, ...]
    lookupds: tuple[str, ...]
    urls: tuple[str, ...]
    timeout: float = math.inf


class _Greeting(NamedTuple):
    """The result of connecting as a consumer does, up to SUB.

    ``certificate`` is nsqd's, in DER; empty without TLS.
    """

    features: Features | None = None
    needs_tls: bool = False
    error: PeerError | None = None
    certificate: bytes = b""


async def examine(question: Question, config: ConsumerConfig) -> Facts:
    """Ask all servers. Raises ConfigError for malformed addresses; servers' errors are facts."""
    examination = _Examination(question, config)
    try:
        return await examination.run()
    finally:
        await end(examination.greetings.values())


class _Examination:
    def __init__(self, question: Question, config: ConsumerConfig) -> None:
        self._question = question
        self._config = config
        self._end, self._deadline = Deadline(question.timeout), Deadline(question.timeout / 2)
        self._limits: dict[str, Any] = {
            **limits_within(question.timeout),
            "tls": http_context(config),
            "deadline": self._deadline,
        }
        self._token = config.auth_secret if config.lookupd_authorization else ""
        self.greetings: dict[Address, asyncio.Future[_Greeting]] = {}
        """The greetings of fixed nsqds, started first; ``examine`` ends them."""
        self._deaf: dict[str, HTTPError] = {}  # HTTP errors of URLs not to ask again

    async def run(self) -> Facts:
        """Ask as much as possible at once: a hanging server uses up a whole time limit."""
        question, config = self._question, self._config
        for tcp in dict.fromkeys(question.nsqds):
            self.greetings[tcp] = asyncio.ensure_future(self._greet(tcp))
        lookupds, infos = await together(
            together(*map(self._ask_lookupd, dict.fromkeys(question.lookupds))),
            together(*map(self._info, question.urls)),
        )
        self._deadline.begin(self._end.left)
        given = without_repeats(dict(zip(question.urls, infos, strict=True)))
        candidates = self._candidates(lookupds, given)
        facts = Facts(
            topic=question.topic,
            channel=question.channel,
            lookupds=tuple(lookupds),
            nsqds=tuple(candidates),
            has_secret=bool(config.auth_secret),
            max_in_flight=config.max_in_flight,
            compression="snappy" if config.snappy else "deflate" if config.deflate else "",
            whole=not question.topic,
            at=wall(),
        )
        asked = await call_each(candidates, lambda each: self._ask(facts, each))
        facts = replace(facts, nsqds=tuple(await self._reexamine(asked)))
        if not facts.whole or facts.maybe is None:
            return facts
        lookupds = await together(*(self._with_stale(facts, each) for each in lookupds))
        return replace(facts, lookupds=tuple(lookupds))

    async def _ask(self, facts: Facts, nsqd: NsqdFacts) -> NsqdFacts:
        """Ask an nsqd over HTTP, and over TCP too if the nsqd was given or concerns the topic."""
        tcp = nsqd.tcp
        try:
            self._deadline.check(tcp or nsqd.http)
        except HTTPError as late:
            return replace(nsqd, http_error=late.bare(), tcp_error=late)
        if tcp is None:
            return await self._ask_http(nsqd)
        if nsqd.given or facts.is_concerned(nsqd):
            greeted = self.greetings.get(tcp) or self._greet(tcp)
            asked, greeting = await together(self._ask_http(nsqd), greeted)
        else:
            asked = await self._ask_http(nsqd)
            if asked.topic is None:
                return asked
            greeting = await self._greet(tcp)
        features, needs_tls, error, certificate = greeting
        version = asked.version or (features.version if features else "")
        seen = replace(
            asked, features=features, needs_tls=needs_tls, tcp_error=error, version=version
        )
        if error and not needs_tls:
            return await self._explain(seen, tcp, error)
        if not facts.whole:
            return seen
        if certificate:
            return replace(seen, offers_tls=True, expiry=expiry(certificate))
        offers_tls, end_of_validity = await self._ask_tls(tcp)
        return replace(seen, offers_tls=offers_tls, expiry=end_of_validity)

    async def _ask_lookupd(self, url: str) -> LookupdFacts:
        left_out: dict[str, bool] = {}

        def tell(endpoint: str, entry: str) -> None:
            left_out[entry] = endpoint == "lookup" or left_out.get(entry, False)

        async with Lookupd(url, token=self._token, tell=tell, **self._limits) as client:
            address = client.address
            try:
                topics, lookup, nodes = await together(
                    client.topics(), self._lookup(client), client.nodes()
                )
            except HTTPError as error:
                speaks = await self._what_speaks(address, error)
                info = await self._info(str(address)) if speaks == "http" else None
                is_nsqd = info is not None and info.tcp_port > 0
                return LookupdFacts(
                    url=url, address=address, error=error.bare(), speaks=speaks, is_nsqd=is_nsqd
                )
            skew = client.skew
        info = await self._info(url if "://" in url else str(address))
        return LookupdFacts(
            url=url,
            address=address,
            version=info.version if info else "",
            skew=skew,
            topics=frozenset(topics),
            producers=self._first(address, lookup.producers),
            nodes=tuple(nodes),
            left_out=left_out,
        )

    async def _lookup(self, client: Lookupd) -> Lookup:
        """Return the answer for the topic; without one there is nothing to ask for."""
        topic = self._question.topic
        return await client.lookup(topic) if topic else Lookup()

    async def _with_stale(self, facts: Facts, lookupd: LookupdFacts) -> LookupdFacts:
        """Find channels registered with an nsqlookupd that no nsqd has.

        The nsqlookupd is asked for single topics only if it has more channels of a name than nsqds
        have. Topics that silent nsqds may have are left out.
        """
        looks = [look for nsqd in facts.nsqds for look in (nsqd.stats, nsqd.later_stats) if look]
        having = {
            (topic.name, channel.name)
            for look in looks
            for topic in look.topics
            for channel in topic.channels
        }
        async with Lookupd(lookupd.url, token=self._token, **self._limits) as client:
            try:
                names = Counter(await client.channels("*"))
                if not names - Counter(name for _, name in having):
                    return lookupd
                topics = sorted(lookupd.topics - (facts.maybe or set()))
                found = await call_each(topics, client.channels)
            except HTTPError as error:
                log.warning("nsqlookupd %s: its channels are not examined", error)
                return lookupd
        pairs = {(t, each) for t, some in zip(topics, found, strict=True) for each in some}
        stale = (pair for pair in sorted(pairs - having) if not is_ephemeral(pair[1]))
        return replace(lookupd, stale_channels=tuple(stale))

    def _first(self, lookupd: Address, nsqds: Sequence[Registration]) -> tuple[Registration, ...]:
        """Return the first MAX_NSQDS nsqds; an nsqlookupd may list any number."""
        if len(nsqds) > MAX_NSQDS:
            log.warning(
                "nsqlookupd %s lists %d nsqds: only the first %d are examined",
                *(lookupd, len(nsqds), MAX_NSQDS),
            )
        return tuple(nsqds[:MAX_NSQDS])

    def _candidates(
        self, lookupds: Sequence[LookupdFacts], infos: dict[str, NsqdInfo | None]
    ) -> list[NsqdFacts]:
        """Return all nsqds to examine, each once, with its HTTP address."""
        listed = union_producers(
            [
                *(self._first(each.address, each.nodes) for each in lookupds),
                *(each.producers for each in lookupds),
            ]
        )
        found = [
            NsqdFacts(tcp=tcp, http=each.http, url=str(each.http), producer=each)
            for tcp, each in listed.items()
        ]
        for tcp in dict.fromkeys(self._question.nsqds):
            url = _url_of(tcp, infos, alone=len(self._question.nsqds) == len(infos) == 1)
            infos.pop(url, None)
            found.append(_given(tcp, url))
        taken: set[Address | None] = set()
        for url, info in infos.items():
            own = info.tcp if info else None
            index = next((n for n, each in enumerate(found) if own and each.tcp == own), None)
            if index is None:
                found.append(_given(own, url))
            elif own in taken:  # another nsqd with the same broadcast address
                found.append(replace(found[index], http=_address(url), url=url))
            else:  # its listed address may not work
                found[index] = replace(found[index], http=_address(url), url=url)
            taken.add(own)
        return found

    async def _info(self, url: str) -> NsqdInfo | None:
        """Return /info, or None on an error. An nsqlookupd's /info has only its version."""
        try:
            async with NsqdHTTP(url, **self._limits) as client:
                return await client.info()
        except HTTPError as error:
            if error.reason in _DEAF:
                self._deaf[url] = error.bare()
            return None

    async def _ask_http(self, nsqd: NsqdFacts) -> NsqdFacts:
        """Ask for the topic's stats; if the nsqd lacks the topic, for the names of all topics.

        Without a topic in question, ask for the stats of all.
        """
        topic = self._question.topic or None
        if error := self._deaf.get(nsqd.url):
            return replace(nsqd, http_error=error)
        async with NsqdHTTP(nsqd.url, **self._limits) as client:
            try:
                report = await client.report(topic, include_clients=True)
                topics = report.topics or (await client.report()).topics
            except HTTPError as error:
                speaks = await self._what_speaks(client.address, error)
                return replace(nsqd, http_error=error.bare(), http_speaks=speaks)
            seen = replace(
                nsqd,
                skew=client.skew,
                time=_time(client),
                version=report.version,
                topics=frozenset(each.name for each in topics),
                topic=next(iter(report.topics), None) if topic else None,
                stats=report,
            )
            return replace(seen, broadcast=await self._broadcast(client, nsqd))

    async def _broadcast(self, client: NsqdHTTP, nsqd: NsqdFacts) -> Address | None:
        """Return the broadcast address of an nsqd given by a TCP address; None if unknown."""
        if self._question.topic or nsqd.tcp not in self._question.nsqds:
            return None
        info = await attempt(client.info())
        return None if isinstance(info, HTTPError) else info.tcp

    async def _ask_tls(self, tcp: Address) -> tuple[bool | None, float]:
        """Return whether nsqd offers TLS, and the end of its certificate; None and 0 if unknown.

        The certificate is not verified, so the secret is not sent: the certificate of an nsqd that
        requires AUTH stays unknown.
        """
        config = self._config.with_values(tls_v1=True, tls_insecure_skip_verify=True)
        try:
            async with asyncio.timeout(min(self._limits["request_timeout"], self._end.left)):
                connection = await Connection.open(tcp, config)
                ends = expiry(connection.certificate)
                await connection.close(drain=0)
        except AuthError:
            return True, 0
        except PeerError as error:
            return (False if isinstance(error, RefusedError) and error.reason == "tls" else None, 0)
        except TimeoutError:
            return None, 0
        return True, ends

    async def _greet(self, tcp: Address) -> _Greeting:
        limit = min(self._limits["request_timeout"], self._end.left)
        try:
            async with asyncio.timeout(limit):
                connection = await Connection.open(
                    tcp, self._config, auth_secret=self._config.auth_secret
                )
                certificate = connection.certificate
                needs_tls = await _needs_tls(connection, self._config)
        except TimeoutError:
            text = f"no response within {format_duration(round(limit, 1))}"
            return _Greeting(error=UnreachableError(text, tcp, reason="silence"))
        except PeerError as refused:
            return _Greeting(needs_tls=_wants_tls(refused), error=refused.bare())
        return _Greeting(connection.features, needs_tls, certificate=certificate)

    async def _explain(self, nsqd: NsqdFacts, tcp: Address, error: PeerError) -> NsqdFacts:
        """Identify the server at ``tcp`` after connecting as a consumer has failed."""
        speaks = await self._what_speaks(tcp, error)
        info = await self._info(str(tcp)) if speaks == "http" else None
        found = replace(nsqd, tcp_error=error, tcp_speaks=speaks)
        if not info or not info.tcp_port:
            return replace(found, is_lookupd=info is not None and await self._is_lookupd(tcp))
        if nsqd.http_error:  # nsqd's HTTP port was expected elsewhere
            found = await self._ask_http(replace(found, url=str(tcp), http=tcp, http_error=None))
        return replace(found, tcp_port=info.tcp_port)

    async def _is_lookupd(self, address: Address) -> bool:
        """Whether the server answers /topics, an endpoint of nsqlookupd but not of nsqd."""
        async with Lookupd(str(address), token=self._token, **self._limits) as client:
            try:
                await client.topics()
            except HTTPError:
                return False
        return True

    async def _what_speaks(self, address: Address, error: PeerError) -> Speaks:
        """Return the protocol of a port; empty, without asking, if the error explains enough.

        Such an error shows a port without a listener, or an nsqd.
        """
        if isinstance(error, AuthError | RefusedError) and error.reason != "protocol":
            return ""
        if error.reason in _DEAF:
            return ""
        limit = min(self._limits["connect_timeout"], self._deadline.left)
        return await what_speaks(address, limit=limit)

    async def _reexamine(self, nsqds: Sequence[NsqdFacts]) -> list[NsqdFacts]:
        """Ask again, a moment later: all nsqds, or those with consumers that seem stuck."""
        name, whole = self._question.channel, not self._question.topic
        again = {nsqd.name for nsqd in nsqds if (nsqd.stats if whole else _seems_stuck(nsqd, name))}
        if not again:
            return list(nsqds)
        await asyncio.sleep(min(MOMENT, self._deadline.left))

        async def look(nsqd: NsqdFacts) -> NsqdFacts:
            return await self._later(nsqd) if nsqd.name in again else nsqd

        return await call_each(nsqds, look)

    async def _later(self, nsqd: NsqdFacts) -> NsqdFacts:
        try:
            async with NsqdHTTP(nsqd.url, **self._limits) as client:
                topic, channel = self._question.topic or None, self._question.channel or None
                report = await client.report(topic, channel, include_clients=True)
        except HTTPError:
            return nsqd
        later = next(iter(report.topics), None) if topic else None
        return replace(nsqd, later=later, later_stats=report, time=_time(client))


def _time(client: NsqdHTTP) -> tuple[float, float] | None:
    return client.clock.span(client.at) if client.clock else None


def _seems_stuck(nsqd: NsqdFacts, name: str) -> bool:
    channel = nsqd.channel(name)
    return channel is not None and any(
        client.in_flight >= client.ready_count for client in channel.clients
    )


async def _needs_tls(connection: Connection, config: ConsumerConfig) -> bool:
    """Whether nsqd requires TLS: without it nsqd refuses all commands after IDENTIFY, even NOP."""
    if uses_tls(config):
        await connection.close(drain=0)
        return False
    reply = connection.request(commands.NOP)
    await connection.close()
    try:
        await reply
    except ServerError as error:
        return _wants_tls(error)
    except ProtocolError:
        raise
    except PeerError:  # both sides closed at the same time
        pass
    return False


def _wants_tls(error: PeerError) -> bool:
    """Whether nsqd refused a command for lack of TLS.

    Only the text shows this: the code is E_INVALID, as for many errors (nsqd/protocol_v2.go, Exec).
    """
    return "TLS required" in error.text


def _url_of(tcp: Address, infos: dict[str, NsqdInfo | None], *, alone: bool) -> str:
    """Return the HTTP address of a fixed nsqd: a given address, or its host and TCP port + 1."""
    for url, info in infos.items():
        own = info.tcp if info else None
        hosts = (_address(url).host, own.host, info.hostname) if info and own else ()
        if own and own.port == tcp.port and tcp.host in hosts:
            return url
    return next(iter(infos)) if alone else str(Address(tcp.host, tcp.port + 1))


def _given(tcp: Address | None, url: str) -> NsqdFacts:
    return NsqdFacts(tcp=tcp, http=_address(url), url=url, given=True)


def _address(url: str) -> Address:
    return parse_url(url, NsqdHTTP.default_port).address
