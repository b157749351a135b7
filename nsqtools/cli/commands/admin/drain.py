"""``nsqtools node drain``: polls an nsqd until it has drained."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.output import print_json, print_rows
from nsqtools.cli.remotes import client_limits
from nsqtools.cli.service import until_signal
from nsqtools.config.units import counted
from nsqtools.engine.administration import Servers, evict
from nsqtools.engine.changes import Target
from nsqtools.engine.cluster import Cluster
from nsqtools.errors import UnreachableError
from nsqtools.policy.drain import Drain
from nsqtools.tasks import run_loop

if TYPE_CHECKING:
    from nsqtools.config.admin import DrainOptions
    from nsqtools.names import Address
    from nsqtools.policy.rates import ChannelKey

log = logging.getLogger(__name__)

_INTERVAL = 0.5
_QUIET = 2.0
_REQUEST = 8.0
"""Timeout of a request to nsqd or nsqlookupd, in seconds."""
_HIDE_AGAIN = 20.0
"""Seconds between tombstones of a topic; by default, nsqlookupd drops a tombstone after 45."""


def wait(nsqd: str, options: DrainOptions) -> None:
    """Wait until the nsqd has drained; print the topics and channels still holding messages.

    Raises UnreachableError if nsqd does not answer at the start, or with --evict if no nsqlookupd
    does. Raises Ended with PARTIAL if --timeout or SIGTERM ends the wait, with INTERRUPTED after
    SIGINT.
    """
    drain = Drain(_QUIET)
    run_loop(until_signal(_until_drained(nsqd, options, drain)))
    rows = _rows(drain)
    if options.json:
        left = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        print_json({"nsqd": nsqd, "drained": drain.is_done, "left": left})
    elif rows:
        print_rows(_COLUMNS, [[str(cell) for cell in row] for row in rows])
    if not drain.is_done:
        log.error("nsqd %s has not drained: %s", nsqd, _state(drain))
        raise Ended(Exit.PARTIAL)


_COLUMNS = ("topic", "channel", "depth", "in_flight", "deferred", "clients", "note")


def _rows(drain: Drain) -> list[tuple[str | int, ...]]:
    """The topics and channels still holding messages, as rows of ``_COLUMNS``."""
    reasons = drain.stuck()
    return [
        (
            key[0],
            key[1] or "-",
            each.depth,
            each.in_flight,
            each.deferred,
            each.clients,
            reasons.get(key, ""),
        )
        for key, each in sorted(drain.left.items())
    ]


def _state(drain: Drain) -> str:
    if not drain.answers:
        return "it does not answer"
    return f"{counted(drain.messages, 'message')} left" if drain.left else "messages are published"


async def _until_drained(nsqd: str, options: DrainOptions, drain: Drain) -> None:
    """Poll until the nsqd has drained, or --timeout has passed."""
    loop = asyncio.get_running_loop()
    short = {"connect_timeout": _REQUEST / 4, "request_timeout": _REQUEST}
    limits = client_limits(options) | short
    servers = Servers(options.lookupd_http_address, (), limits, timeout=2 * _REQUEST)
    hide_at = loop.time() if options.evict else float("inf")
    named: set[ChannelKey] = set()
    with suppress(TimeoutError):
        async with asyncio.timeout(options.timeout), Cluster((), [nsqd], **limits) as cluster:
            snapshot = await cluster.poll()
            while True:
                (node,) = snapshot.nodes.values()
                if node.tcp and loop.time() >= hide_at:
                    await _hide(servers, node.tcp, is_retry=drain.answers)
                    hide_at = loop.time() + _HIDE_AGAIN
                drain.record(snapshot.samples()[node.name])
                if drain.is_done:
                    return
                stuck = drain.stuck()
                for key in sorted(stuck.keys() - named):
                    log.warning("%s %s, so it does not drain", Target(*key), stuck[key])
                named |= stuck.keys()
                await asyncio.sleep(_INTERVAL)
                snapshot = await cluster.look()


async def _hide(servers: Servers, nsqd: Address, *, is_retry: bool) -> None:
    """Tombstone all topics of the nsqd.

    Raises UnreachableError if every request fails, except in a retry.
    """
    steps = await evict(servers, nsqd)
    failed = [step for step in steps if step.error]
    if failed and len(failed) == len(steps) and not is_retry:
        raise UnreachableError(f"no topic was tombstoned: nsqlookupd {failed[0].error}")
    if not steps and not is_retry:
        log.warning("no nsqlookupd lists a topic of nsqd %s", nsqd)
    for step in failed:
        log.log(logging.DEBUG if is_retry else logging.WARNING, "nsqlookupd %s", step.error)
