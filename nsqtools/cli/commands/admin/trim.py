"""``nsqtools channel trim``: finishes a channel's old messages, and prints the counts."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from nsqtools.cli.commands.admin.change import (
    ChangeRequest,
    confirm,
    require_known,
    warn_of_lookupds,
)
from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.output import print_json, print_rows
from nsqtools.cli.remotes import with_secret
from nsqtools.cli.service import consume
from nsqtools.config.consuming import StopOptions
from nsqtools.config.files import ArchiveOptions, ArchiveSourceOptions
from nsqtools.config.units import counted, format_duration
from nsqtools.engine.changes import Target, loss
from nsqtools.errors import ConfigError, NSQError, UnreachableError
from nsqtools.names import NSQD_HTTP_PORT, Address, is_ephemeral
from nsqtools.net.http.api import parse_url
from nsqtools.policy.trim import Marks, Trim
from nsqtools.sinks.files.disk import make_writable_directory, named_option
from nsqtools.sinks.files.filesink import file_sink
from nsqtools.sinks.trimsink import TrimSink
from nsqtools.tasks import run_loop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsqtools.config.admin import TrimOptions
    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.engine.changes import Holding, Loss
    from nsqtools.sinks.files.filesink import FileSink

log = logging.getLogger(__name__)

_NO_LIMIT = 1 << 62
_PATIENCE = 3.0
_MAX_YOUNGER = 100_000
"""After this many younger messages in a row, the trim takes the rest to be younger, too.

nsqd keeps deferred messages in memory, and this process keeps their ids."""


def run(topic: str, channel: str, options: TrimOptions, config: ConsumerConfig) -> None:
    """Trim a channel on all its nsqds, and print each nsqd's counts.

    Raises Ended with PARTIAL if some servers do not answer, if too many younger messages came in a
    row, or if messages did not come although nobody else consumes the channel. Raises ConfigError
    for an ephemeral channel, for --sample-rate, or if the loss of messages must be confirmed
    without a terminal. Raises UnreachableError if no server answers, and NSQError if no server has
    the channel, if it is paused, or if the clock of one of its nsqds is unknown.
    """
    target = Target(topic, channel)
    request = ChangeRequest("channel", "trim", target, options, "" if options.archive else "trim")
    if is_ephemeral(channel):
        raise ConfigError(
            f"{target}: nsqd would delete an ephemeral channel, with all messages, when trim ends"
        )
    if config.sample_rate:
        raise ConfigError("--sample-rate would make nsqd drop messages of the channel")
    found, now = request.survey(), time.monotonic()
    require_known(request, found, target)
    holdings = [each for each in found.holdings if each.has(target)]
    silent = [each for each in found.holdings if each.may_have(target)]
    for each in silent:
        log.error("nsqd %s", each.error)
    warn_of_lookupds(found)
    if not holdings:
        raise NSQError(f"no reachable nsqd has {target}")
    if paused := [each.node.name for each in holdings if each.is_paused(target)]:
        names = ", ".join(paused)
        raise NSQError(f"{target} is paused on nsqd {names}, and delivers nothing: unpause it")
    held = loss("messages", target, holdings)
    marks: dict[Address, Marks] = {}
    for each in holdings:  # several may claim one address
        tcp, mark = _tcp(each), _marks(each, options.older_than, now)
        marks[tcp] = min(mark, marks.get(tcp, mark))
    confirm(request, _about(target, held, options))
    if options.dry_run:
        return
    # Once all nsqds have surely reached ``latest``, what was published before ``cutoff`` is old.
    wait = max(mark.latest - mark.earliest for mark in marks.values()) / 1e9
    time.sleep(max(0.0, now + wait - time.monotonic()))
    trim = run_loop(_consume(target, options, holdings, marks, held, with_secret(config)))
    fallen = _fallen(request, holdings) if trim.unseen else []
    for error in fallen:
        log.error("nsqd %s", error)
    _judge(trim, held)
    if silent or fallen or found.mute:
        raise Ended(Exit.PARTIAL)


def _fallen(request: ChangeRequest, holdings: Sequence[Holding]) -> list[UnreachableError]:
    """The errors of the channel's nsqds no longer answering."""
    names = {each.node.name for each in holdings}
    try:
        found = request.survey().holdings
    except UnreachableError as error:
        return [error]
    return [each.error for each in found if each.error and each.node.name in names]


def _about(target: Target, held: Loss, options: TrimOptions) -> str:
    result = "archived and finished" if options.archive else "lost"
    return (
        f"{target}: of {counted(held.messages, 'message')} on {counted(held.nsqds, 'nsqd')}, those "
        f"older than {format_duration(options.older_than)} would be {result}"
    )


def _marks(holding: Holding, older_than: float, now: float) -> Marks:
    """The marks of an nsqd that was asked at ``now``, in monotonic seconds.

    ``cutoff`` is ``older_than`` seconds before ``latest``. Raises NSQError if the clock of the nsqd
    is unknown.
    """
    if not (clock := holding.clock):
        raise NSQError(
            f"nsqd {holding.node.name}: its clock is unknown, and so is the age of its messages: "
            "its response has no valid Date header, which a proxy may have removed: give the HTTP "
            "address of nsqd itself"
        )
    latest = clock.latest(now)
    return Marks(latest - round(older_than * 1e9), clock.earliest(now), latest)


async def _consume(
    target: Target,
    options: TrimOptions,
    holdings: Sequence[Holding],
    marks: Mapping[Address, Marks],
    held: Loss,
    config: ConsumerConfig,
) -> Trim:
    """Consume until the trim is done or a signal comes, and print each nsqd's counts."""
    nsqds = {_tcp(each): each.node.name for each in holdings}
    trim = Trim(
        marks,
        expected=held.messages,
        patience=_PATIENCE,
        max_younger=_MAX_YOUNGER,
        now=asyncio.get_running_loop().time(),
    )
    source = ArchiveSourceOptions(
        topic=(target.topic,), channel=target.channel, nsqd_tcp_address=tuple(map(str, nsqds))
    )
    archive = _archive(source, options.archive, config) if options.archive else None
    if not archive:  # no body is kept
        config = config.with_values(max_in_flight_bytes=_NO_LIMIT)
    sink = TrimSink(trim, archive, room=max(1, config.max_in_flight // (2 * len(nsqds))))
    ended = None
    try:
        config = config.with_values(max_attempts=0)
        await consume(source, target.channel, config, StopOptions(), sink, patient=False)
    except Ended as code:
        ended = code
    _print(target, options, {nsqds[a]: (sink.finished[a], trim.younger.get(a, 0)) for a in nsqds})
    if sink.deferred:
        log.warning(
            "younger messages are deferred for up to 30 s: raise --max-in-flight to hold more"
        )
    if ended:
        raise ended
    return trim


def _tcp(holding: Holding) -> Address:
    """The TCP address of an nsqd: its broadcast address, or the host given by the user.

    Raises NSQError if nsqd does not report its TCP port.
    """
    node = holding.node
    if node.tcp is None:
        raise NSQError(f"nsqd {node.name} does not report its TCP port")
    if holding.given:
        return Address(parse_url(node.http, NSQD_HTTP_PORT).address.host, node.tcp.port)
    return node.tcp


def _archive(source: ArchiveSourceOptions, folder: str, config: ConsumerConfig) -> FileSink:
    with named_option("--archive", folder):
        make_writable_directory(folder)
    options = ArchiveOptions(
        output_dir=folder,
        filename_format=f"<TOPIC>.{source.channel}.<HOST><REV>.<DATETIME>.json",
        format="json",
        gzip=True,
        skip_empty_files=True,
        fail_fast=True,
    )
    return file_sink(source, options, config)


def _print(target: Target, options: TrimOptions, counts: Mapping[str, tuple[int, int]]) -> None:
    """Print each nsqd's counts of finished and of younger messages."""
    if not options.json:
        rows = [["nsqd", name, *map(str, both)] for name, both in counts.items()]
        print_rows(["server", "address", "finished", "younger"], rows)
        return
    servers = [
        {"server": "nsqd", "address": name, "finished": finished, "younger": younger}
        for name, (finished, younger) in counts.items()
    ]
    names = {"topic": target.topic, "channel": target.channel}
    print_json({"kind": "channel", "action": "trim", **names, "servers": servers})


def _judge(trim: Trim, held: Loss) -> None:
    """Log the messages not looked at.

    Raises Ended if too many younger messages came in a row, or if the missing messages cannot all
    have been deferred, in flight or taken by another consumer.
    """
    if trim.is_flooded:
        log.error(
            "%d younger messages came after the last old one: the rest was not looked at",
            _MAX_YOUNGER,
        )
        raise Ended(Exit.PARTIAL)
    if not trim.unseen:
        return
    others = held.in_flight + held.deferred
    log.warning(
        "%s not looked at: deferred, in flight, or consumed by others",
        counted(trim.unseen, "message"),
    )
    if trim.unseen > others and not held.clients:
        raise Ended(Exit.PARTIAL)
