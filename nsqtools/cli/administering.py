"""What ``topic``, ``channel`` and ``node`` share: asking, confirming, changing and telling."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from nsqtools.cli.cluster import client_limits, nsqds_of
from nsqtools.cli.exits import Exit, describe, one_line
from nsqtools.cli.tables import print_json, print_rows
from nsqtools.config import LossOptions
from nsqtools.config.units import counted, nearest
from nsqtools.engine.administration import Servers, all_topics, carry_out, survey
from nsqtools.engine.changes import Target, find_producer, loss, plan, plan_tombstone, producers
from nsqtools.errors import ConfigError, NSQError, UnreachableError
from nsqtools.names import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsqtools.config import ChangeOptions, TombstoneOptions
    from nsqtools.engine.changes import Loss, Outcome, Stages, Step, Survey, Verb
    from nsqtools.errors import HTTPError
    from nsqtools.net.http.replies import Producer

log = logging.getLogger(__name__)

_OF_LOOKUPDS = ("create", "delete")
_LOSING = ("delete", "empty")


@dataclass(frozen=True, slots=True)
class Request:
    """A change: its words as they were typed, such as ``topic delete``, and what it is for."""

    words: str
    target: Target
    servers: Servers
    where: ChangeOptions


def change(verb: Verb, topic: str, channel: str, where: ChangeOptions) -> int:
    """Do it everywhere, and print who did what; the exit code.

    It is PARTIAL too where nsqlookupds are given and none answers: who else has it is not known.
    Raises ConfigError where nobody can be asked to confirm, UnreachableError if no server
    answers, and NSQError if none has the topic or channel.
    """
    target = _target(topic, channel)
    request = Request(f"{target.kind} {verb}", target, _servers(where), where)
    losing = verb in _LOSING
    if losing:
        _require_consent(request)
    found = asyncio.run(survey(request.servers, topic))
    stages = plan(verb, target, found)
    if not (verb == "create" and not channel):
        _require_known(request, found, Target(topic) if verb == "create" else target)
    if verb not in _OF_LOOKUPDS:
        if not any(stages):
            raise NSQError(f"no nsqd has {target}; nsqlookupd alone knows of it")
        _tell_of_lookupds(found)
    if losing and not _confirmed(request, _what_is_lost(request, verb, found), verb):
        return Exit.FAILURE
    code = _do(request, stages)
    return Exit.PARTIAL if code == Exit.DONE and found.blind and not where.dry_run else code


def _tell_of_lookupds(found: Survey) -> None:
    """Who of those that are only asked does not answer."""
    for registry in found.registries:
        if registry.error:
            log.warning("nsqlookupd %s", registry.error)
    if found.blind:
        log.error("no nsqlookupd answers: nsqds that were not given are not asked")


def tombstone(topic: str, node: str, where: TombstoneOptions) -> int:
    """Hide an nsqd from a topic's lookups; as ``change``."""
    target = _target(topic, "")
    request = Request("node tombstone", target, _servers(where), where)
    if where.delete:
        _require_consent(request)
    found = asyncio.run(survey(request.servers, topic))
    producer = _require_node(request, found, node)
    stages = plan_tombstone(topic, producer, found, delete=where.delete)
    if where.delete:
        mine = [each for each in found.holdings if each.node.tcp == producer.tcp]
        lost = _describe(loss("delete", target, mine))
        about = f"topic {topic} on nsqd {producer.http}: {lost}"
        if not _confirmed(request, about, "delete"):
            return Exit.FAILURE
    return _do(request, stages)


def _target(topic: str, channel: str) -> Target:
    check_name("topic", topic)
    if channel:
        check_name("channel", channel)
    return Target(topic, channel)


def _servers(where: ChangeOptions) -> Servers:
    limits = client_limits(where)
    return Servers(where.lookupd_http_address, nsqds_of(where), limits, where.timeout)


def _require_known(request: Request, found: Survey, target: Target) -> None:
    """Raise NSQError with the nearest name if nobody has the topic or channel."""
    if found.is_known(target):
        return
    for kind, error in _silent(found):
        log.warning("%s %s", kind, error)
    topic = Target(target.topic)
    if target.channel and found.is_known(topic):
        near = nearest(target.channel, sorted(found.channels))
    else:
        target = topic
        near = nearest(target.topic, sorted(asyncio.run(all_topics(request.servers, found))))
    raise NSQError(f"no server has {target}{near}")


def _silent(found: Survey) -> Iterator[tuple[str, HTTPError]]:
    """Who did not answer, and could have what is looked for."""
    yield from (("nsqlookupd", each.error) for each in found.registries if each.error)
    yield from (("nsqd", each.error) for each in found.holdings if each.error)


def _require_node(request: Request, found: Survey, text: str) -> Producer:
    """The nsqd of that name, which nsqlookupd lists with the topic; raises NSQError."""
    topic = request.target.topic
    known = producers(found.registries)
    if not known and all(each.error for each in found.registries):
        raise UnreachableError(f"no nsqlookupd answers: {found.registries[0].error}")
    producer = find_producer(text, found)
    if producer is None:
        near = nearest(text, [str(each.http) for each in known])
        raise NSQError(f"nsqlookupd lists no nsqd {text!r} (write it as host:http-port){near}")
    if topic not in producer.topics:
        near = nearest(topic, producer.topics)
        raise NSQError(f"nsqlookupd does not list nsqd {producer.http} with topic {topic}{near}")
    return producer


def _require_consent(request: Request) -> None:
    """Raise ConfigError if messages are lost and there is nobody to confirm that."""
    where = request.where
    assert isinstance(where, LossOptions)
    if not (where.yes or where.dry_run or _has_terminal()):
        raise ConfigError(
            f"{request.words} loses messages: give --yes, as there is no terminal to ask on"
        )


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _confirmed(request: Request, about: str, verb: str) -> bool:
    where = request.where
    assert isinstance(where, LossOptions)
    if where.yes or where.dry_run:
        return True
    name = request.target.channel or request.target.topic
    click.echo(one_line(about), err=True)
    click.echo(f"Type yes or {name} to {verb} it: ", err=True, nl=False)
    if sys.stdin.readline().strip() in ("yes", name):
        return True
    click.echo("nothing was done", err=True)
    return False


def _what_is_lost(request: Request, verb: Verb, found: Survey) -> str:
    text = f"{request.target}: {_describe(loss(verb, request.target, found.holdings))}"
    if verb == "empty" and not request.target.channel:
        text += "; its channels keep theirs"
    silent = [each.node.name for each in found.holdings if each.may_have(request.target)]
    return f"{text}; no answer from {', '.join(silent)}" if silent else text


def _describe(lost: Loss) -> str:
    """``120 messages on 2 nsqds would be lost (depth 100, in flight 15, deferred 5)``."""
    parts = f"depth {lost.depth}, in flight {lost.in_flight}, deferred {lost.deferred}"
    text = f"{counted(lost.messages, 'message')} on {counted(lost.nsqds, 'nsqd')} would be lost"
    ends = f", in {counted(lost.channels, 'channel')}" if lost.channels else ""
    uses = f" with {counted(lost.clients, 'consumer')}" if lost.clients else ""
    return f"{text} ({parts}){ends}{uses}"


def _do(request: Request, stages: Stages) -> int:
    if request.where.dry_run:
        _print_plan(request, [step for steps in stages for step in steps])
        return Exit.DONE
    outcomes = asyncio.run(carry_out(request.servers, stages))
    _print_outcomes(request, outcomes)
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        log.error("%s %s", outcome.step.server, outcome.error)
    if not failed:
        return Exit.DONE
    if len(failed) < len(outcomes):
        return Exit.PARTIAL
    reached = any(outcome.error and outcome.error.status for outcome in failed)
    return Exit.FAILURE if reached else Exit.UNREACHABLE


def _print_plan(request: Request, steps: Sequence[Step]) -> None:
    if request.where.json:
        _print_as_json(request, [_entry(each, "planned", each.note, each.error) for each in steps])
        return
    rows = [
        [each.server, each.name, each.request, _failure(each.error) if each.error else each.note]
        for each in steps
    ]
    print_rows(["server", "address", "request", "note"], rows)


def _print_outcomes(request: Request, outcomes: Iterable[Outcome]) -> None:
    if request.where.json:
        _print_as_json(request, [_outcome_entry(each) for each in outcomes])
        return
    rows = [
        [
            each.step.server,
            each.step.name,
            _failure(each.error) if each.error else each.note or "done",
        ]
        for each in outcomes
    ]
    print_rows(["server", "address", request.words], rows)


def _failure(error: NSQError) -> str:
    return f"failed: {getattr(error, 'text', '') or describe(error)}"


def _outcome_entry(outcome: Outcome) -> dict[str, Any]:
    result = "failed" if outcome.error else "unchanged" if outcome.note else "done"
    return _entry(outcome.step, result, outcome.note, outcome.error)


def _entry(step: Step, result: str, note: str, error: NSQError | None) -> dict[str, Any]:
    return {
        "server": step.server,
        "address": step.name,
        "request": step.request,
        "result": "failed" if error else result,
        "note": note,
        "error": str(error) if error else "",
    }


def _print_as_json(request: Request, entries: list[dict[str, Any]]) -> None:
    kind, _, verb = request.words.partition(" ")
    target = request.target
    print_json(
        {
            "kind": kind,
            "action": verb,
            "topic": target.topic,
            **({"channel": target.channel} if target.channel else {}),
            "dry_run": request.where.dry_run,
            "servers": entries,
        }
    )
