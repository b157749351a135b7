"""Requests to single endpoints, and the evaluation of responses."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import httpx

from nsqtools.metrics import Metric, Sample
from nsqtools.policy.latency import Latency
from nsqtools.policy.verdicts import (
    RETRY_AFTER,
    Verdict,
    blames_message,
    may_blame_one,
    retry_after,
)
from nsqtools.sinks.http.limits import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nsqtools.engine.handler import Batch, Message
    from nsqtools.policy.verdicts import Statuses
    from nsqtools.sinks.http.requests import Endpoint

log = logging.getLogger(__name__)
status = logging.getLogger("nsqtools.status")
"""For --status-every, at any log level."""

MAX_REDIRECTS = 10
_SNIPPET = 120
_QUIET = 60.0
"""Minimum seconds from the line that an endpoint accepts messages again to the next failure."""
_PERCENTILES = (50, 95, 99)
_REDIRECTS = (307, 308), (301, 302, 303, 307, 308)
"""The redirects followed by a POST, and by a GET."""
_PUBLIC = (b"content-type", b"content-encoding", b"content-length", b"user-agent")

Parcel = list[tuple["Batch", "Message"]]
"""Messages of one topic in one request, each with its batch."""


class Outcome(NamedTuple):
    """The result for a parcel. ``status`` is 0 without a response, ``delay`` is in seconds.

    ``reason`` is for the log. ``arrived`` means that the endpoint may have received the request,
    ``blames_messages`` that the result says nothing about the state of the endpoint, and
    ``may_blame_one`` that possibly one of several messages caused it.
    """

    verdict: Verdict
    status: int = 0
    delay: float | None = None
    reason: str = ""
    arrived: bool = True
    blames_messages: bool = False
    may_blame_one: bool = False


DONE = Outcome(Verdict.DONE)


@dataclass(slots=True)
class EndpointTally:
    """Counts of messages at one endpoint since the start.

    ``latency`` covers all responses. ``refused`` has the statuses that were already logged, among
    those that blame messages: they would otherwise cause a log line per message.
    """

    delivered: int = 0
    failed: int = 0
    dropped: int = 0
    latency: Latency = field(default_factory=Latency)
    refused: set[int] = field(default_factory=set)
    fails: bool = False
    quiet_until: float = 0.0


class Post:
    """Sends parcels to single endpoints and evaluates the responses.

    ``timeout``, in seconds, covers everything from connecting to the end of the response. An
    endpoint may ask for a retry after at most ``longest_delay`` seconds. ``wall`` is the clock of
    signatures, in seconds since the epoch. Counts are logged after every ``status_every`` requests
    and at the end; 0 means never.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        transport: httpx.AsyncBaseTransport,
        statuses: Statuses,
        *,
        timeout: float,
        longest_delay: float,
        wall: Callable[[], float],
        follow_redirects: bool = False,
        status_every: int = 0,
    ) -> None:
        self.endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self.tallies = {name: EndpointTally() for name in self.endpoints}
        self.requests = 0
        # GET endpoints differ in the position of the body; all POST endpoints have one format.
        gets = [endpoint for endpoint in endpoints if endpoint.method == "GET"]
        self._judges = gets or endpoints[:1]
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._statuses = statuses
        self._limit = TimeLimit(timeout)
        self._longest_delay = longest_delay
        self._wall = wall
        self._follow_redirects = follow_redirects
        self._status_every = status_every

    def fits(self, parcel: Parcel) -> bool:
        """Whether requests can carry all of these bodies."""
        for judge in self._judges:
            for _, message in parcel:
                if not judge.fits(message.body):
                    return False
        return True

    async def send(self, name: str, parcel: Parcel) -> tuple[Outcome, float]:
        """Send a parcel; return the outcome and its duration in seconds."""
        started = self._loop.time()
        try:
            with self._limit:
                outcome = await self._exchange(self.endpoints[name], parcel)
        except TimeoutError:
            outcome = Outcome(Verdict.RETRY, reason=f"no response within {self._limit.seconds:g} s")
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            outcome = Outcome(Verdict.RETRY, reason=f"cannot connect: {error}", arrived=False)
        except httpx.TransportError as error:
            outcome = Outcome(Verdict.RETRY, reason=_reason(error))
        took = self._loop.time() - started
        self._count(name, outcome, len(parcel), took)
        self.requests += 1
        if self._status_every and self.requests % self._status_every == 0:
            self.tell()
        return outcome, took

    def tell(self) -> None:
        """Log the counts of each endpoint."""
        for name, tally in self.tallies.items():
            status.info(
                "%s: %d delivered, %d failed, %d dropped, latency %.1f ms, p95 %.1f, p99 %.1f",
                *(name, tally.delivered, tally.failed, tally.dropped),
                *(1000 * tally.latency.percentile(percent) for percent in _PERCENTILES),
            )

    def metrics(self, states: Mapping[str, str]) -> Iterator[Metric]:
        """Yield the metrics of the endpoints, with the name as label ``endpoint``."""
        messages, latencies = [], []
        for name, tally in self.tallies.items():
            for result in ("delivered", "failed", "dropped"):
                labels = {"endpoint": name, "result": result}
                messages.append(Sample(labels, getattr(tally, result)))
            for percent in _PERCENTILES:
                labels = {"endpoint": name, "quantile": str(percent / 100)}
                latencies.append(Sample(labels, tally.latency.percentile(percent)))
        up = [Sample({"endpoint": name}, state == "up") for name, state in states.items()]
        text = "Messages that were sent to an endpoint, by result."
        yield Metric("nsqtools_http_messages_total", "counter", text, messages)
        text = "Time from a request to the end of its response."
        yield Metric("nsqtools_http_latency_seconds", "gauge", text, latencies)
        text = "Whether an endpoint is used; 0 while it is only probed, or gone."
        yield Metric("nsqtools_http_endpoint_up", "gauge", text, up)

    async def close(self) -> None:
        """Close the connections; current requests fail."""
        if self._status_every:
            self.tell()
        await self._transport.aclose()
        self._limit.close()

    async def _exchange(self, endpoint: Endpoint, parcel: Parcel) -> Outcome:
        batch = parcel[0][0]
        messages = [message for _, message in parcel]
        request = endpoint.build(batch.topic, batch.channel, messages, self._wall())
        response = await self._transport.handle_async_request(request)
        if self._follow_redirects:
            response = await follow(self._transport, request, response)
        verdict = self._statuses.verdict(response.status_code)
        return DONE if verdict is Verdict.DONE else self._judged(verdict, response)

    def _judged(self, verdict: Verdict, response: httpx.Response) -> Outcome:
        code = response.status_code
        delay = None
        if code in RETRY_AFTER and (retry_header := response.headers.get("retry-after")):
            date = response.headers.get("date", "")
            delay = retry_after(retry_header, date=date, longest=self._longest_delay)
        reason = f"status {code}"
        if 300 <= code < 400 and not self._follow_redirects:
            reason += " (a redirect; --follow-redirects is not set)"
        elif text := " ".join(_body(response)[:_SNIPPET].decode("utf-8", "replace").split()):
            reason += f", response {text!r}"
        return Outcome(
            verdict,
            code,
            delay,
            reason,
            blames_messages=blames_message(code),
            may_blame_one=verdict is Verdict.DROP or may_blame_one(code),
        )

    def _count(self, name: str, outcome: Outcome, messages: int, took: float) -> None:
        tally = self.tallies[name]
        if outcome is DONE:
            tally.delivered += messages
            tally.latency.add(took)
            if tally.fails:
                tally.fails, tally.quiet_until = False, self._loop.time() + _QUIET
                log.warning("%s: accepts messages again", name)
            return
        if outcome.status:
            tally.latency.add(took)
        is_dropped = outcome.verdict is Verdict.DROP
        if is_dropped:
            tally.dropped += messages
        else:
            tally.failed += messages
        if is_dropped or outcome.blames_messages:
            is_news = outcome.status not in tally.refused
            tally.refused.add(outcome.status)
        else:
            is_news = not tally.fails and self._loop.time() >= tally.quiet_until
            tally.fails = tally.fails or is_news
        text = f"{outcome.reason}: dropped, because of --drop-on" if is_dropped else outcome.reason
        log.log(logging.WARNING if is_news else logging.DEBUG, "%s: %s", name, text)


def _body(response: httpx.Response) -> bytes:
    """Return the body, which transports read before they return the response."""
    assert isinstance(response.stream, httpx.ByteStream)
    return b"".join(response.stream)


async def follow(
    transport: httpx.AsyncBaseTransport, request: httpx.Request, response: httpx.Response
) -> httpx.Response:
    """Follow redirects that keep method and body (RFC 9110, 15.4); return the last response.

    A POST follows 307 and 308 only, because other redirects would turn it into a GET without a
    body. Headers of the user and signatures, which may be secret, are sent to the same origin only.
    Raises httpx.RemoteProtocolError for more than MAX_REDIRECTS, for an invalid URL, and for a
    redirect from https to http.
    """
    for left in reversed(range(MAX_REDIRECTS + 1)):
        place = response.headers.get("location")
        if place is None or response.status_code not in _REDIRECTS[request.method == "GET"]:
            return response
        if not left:
            break
        try:
            url = request.url.join(place)
        except httpx.InvalidURL:
            raise httpx.RemoteProtocolError(f"redirected to the invalid URL {place!r}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise httpx.RemoteProtocolError(f"redirected to the invalid URL {place!r}")
        if url.scheme < request.url.scheme:
            raise httpx.RemoteProtocolError("redirected from https to http, which is not allowed")
        same = (url.scheme, url.netloc) == (request.url.scheme, request.url.netloc)
        headers = [
            (name, value)
            for name, value in request.headers.raw
            if name.lower() != b"host" and (same or _is_public(name.lower()))
        ]
        request = httpx.Request(
            request.method, url, headers=[(b"Host", url.netloc), *headers], stream=request.stream
        )
        response = await transport.handle_async_request(request)
    raise httpx.RemoteProtocolError(f"more than {MAX_REDIRECTS} redirects")


def _is_public(name: bytes) -> bool:
    return name in _PUBLIC or name.startswith(b"x-nsq-")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
