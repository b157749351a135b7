"""Changes of topics and channels: find the servers, ask for confirmation, print the outcome."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from nsqtools.cli.exits import Ended, Exit, describe, one_line
from nsqtools.cli.output import print_json, print_rows
from nsqtools.cli.remotes import client_limits, nsqds_of
from nsqtools.config.admin import LossOptions
from nsqtools.config.units import nearest
from nsqtools.engine.administration import Servers, all_topics, carry_out, survey
from nsqtools.engine.changes import (
    REGISTERED,
    Target,
    find_producer,
    loss,
    plan,
    plan_tombstone,
    producers,
)
from nsqtools.errors import ConfigError, NSQError, UnreachableError
from nsqtools.tasks import run_loop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.config.admin import ChangeOptions, TombstoneOptions
    from nsqtools.engine.changes import Discard, Stages, Step, Survey, Verb
    from nsqtools.errors import HTTPError
    from nsqtools.net.http.replies import Registration

log = logging.getLogger(__name__)


def change(
    verb: Verb, topic: str, channel: str, options: ChangeOptions, *, loses: Discard | None
) -> None:
    """Change a topic or channel on all servers concerned, and print each server's outcome.

    Raises Ended with PARTIAL if some servers failed, or if an nsqlookupd does not answer: it may
    list further nsqds with the topic. Raises ConfigError if the loss of messages must be confirmed
    without a terminal, UnreachableError if no server answers, and NSQError if no server has the
    topic or channel.
    """
    target = Target(topic, channel)
    request = ChangeRequest(target.kind, verb, target, options, verb if loses else "")
    found = request.survey()
    stages = plan(verb, target, found)
    if channel or verb != "create":
        require_known(request, found, Target(topic) if verb == "create" else target)
    if verb not in REGISTERED:
        if not any(stages):
            raise NSQError(f"no nsqd has {target}; only nsqlookupd lists it")
        warn_of_lookupds(found)
    if loses:
        confirm(request, _what_is_lost(loses, target, found))
    _do(request, stages)
    if found.mute and not options.dry_run:
        raise Ended(Exit.PARTIAL)


def hide(topic: str, node: str, options: TombstoneOptions) -> None:
    """Tombstone an nsqd for a topic. Raises the errors of ``change``."""
    request = ChangeRequest(
        "node", "tombstone", Target(topic), options, "delete" if options.delete else ""
    )
    found = request.survey()
    producer = _find_node(found, topic, node)
    stages = plan_tombstone(topic, producer, found, delete=options.delete)
    if options.delete:
        mine = [each for each in found.holdings if each.node.tcp == producer.tcp]
        lost = loss("channels", request.target, mine)
        confirm(request, f"topic {topic} on nsqd {producer.http}: {lost}")
    _do(request, stages)


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """The user's request: ``kind`` and ``action`` form the command, such as ``topic delete``.

    ``loses`` is the verb of the confirmation question; it is empty if no messages are lost. Raises
    ConfigError if confirmation is necessary and there is no terminal.
    """

    kind: str
    action: str
    target: Target
    options: ChangeOptions
    loses: str

    def __post_init__(self) -> None:
        if self.must_ask:
            check_terminal(self.command)

    @property
    def command(self) -> str:
        """The command as typed."""
        return f"{self.kind} {self.action}"

    @property
    def must_ask(self) -> bool:
        """Whether the command must ask for confirmation."""
        return bool(self.loses) and must_ask(self.options)

    def survey(self) -> Survey:
        """Find out which servers have the topic; raises UnreachableError if no server answers."""
        return run_loop(survey(self.servers, self.target.topic))

    @property
    def servers(self) -> Servers:
        """The servers given by the options."""
        return servers_of(self.options)


def servers_of(options: ChangeOptions) -> Servers:
    """The servers given by the options."""
    limits = client_limits(options)
    return Servers(options.lookupd_http_address, nsqds_of(options), limits, options.timeout)


def must_ask(options: ChangeOptions) -> bool:
    """Whether a command that loses messages must ask for confirmation."""
    consents = isinstance(options, LossOptions) and options.yes
    return not (options.dry_run or consents)


def check_terminal(command: str) -> None:
    """Raise ConfigError if there is no terminal to ask on."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            f"{command} needs a confirmation, and there is no terminal to ask on: give --yes, or "
            "--dry-run to see what it would do"
        )


def warn_of_lookupds(found: Survey) -> None:
    """Log each nsqlookupd that does not answer."""
    for error in found.mute:
        log.error("nsqlookupd %s", error)
    if found.blind:
        log.error("no nsqlookupd answers: only the given nsqds are asked")


def require_known(request: ChangeRequest, found: Survey, target: Target) -> None:
    """Raise NSQError, with the nearest name, if no server has the topic or channel."""
    if found.is_known(target):
        return
    for kind, error in _silent(found):
        log.warning("%s %s", kind, error)
    topic = Target(target.topic)
    if target.channel and found.is_known(topic):
        near = nearest(target.channel, sorted(found.channels))
    else:
        target = topic
        near = nearest(target.topic, sorted(run_loop(all_topics(request.servers, found))))
    raise NSQError(f"no server has {target}{near}")


def _silent(found: Survey) -> Iterator[tuple[str, HTTPError]]:
    """The errors of servers without an answer, each with the kind of server."""
    yield from (("nsqlookupd", each.error) for each in found.registries if each.error)
    yield from (("nsqd", each.error) for each in found.holdings if each.error)


def _find_node(found: Survey, topic: str, text: str) -> Registration:
    """The nsqd with this name.

    Raises NSQError if nsqlookupd does not list it with the topic, UnreachableError if no nsqlookupd
    answers.
    """
    listed = producers(found.registries)
    if all(each.error for each in found.registries):
        raise UnreachableError(f"no nsqlookupd answers: {found.registries[0].error}")
    producer = find_producer(text, found)
    if producer is None:
        near = nearest(text, [str(each.http) for each in listed])
        raise NSQError(f"nsqlookupd lists no nsqd {text!r} (write it as host:http-port){near}")
    if topic not in producer.topics:
        near = nearest(topic, producer.topics)
        raise NSQError(f"nsqlookupd does not list nsqd {producer.http} with topic {topic}{near}")
    return producer


def confirm(request: ChangeRequest, about: str) -> None:
    """Ask on the terminal whether to continue, if necessary. Raises Ended if the answer is no.

    With --dry-run, only print the messages at stake.
    """
    if request.must_ask or request.options.dry_run:
        click.echo(one_line(about), err=True)
    if not request.must_ask:
        return
    name = request.target.channel or request.target.topic
    ask(f"Type yes or {name} to {request.loses} it: ", "yes", name)


def ask(question: str, *answers: str) -> None:
    """Ask on the terminal. Raises Ended if none of these is the answer."""
    click.echo(question, err=True, nl=False)
    if sys.stdin.readline().strip() not in answers:
        click.echo("nothing was done", err=True)
        raise Ended(Exit.FAILURE)


def _what_is_lost(loses: Discard, target: Target, found: Survey) -> str:
    text = f"{target}: {loss(loses, target, found.holdings)}"
    if loses == "messages" and not target.channel:
        text += "; its channels keep theirs"
    silent = [each.node.name for each in found.holdings if each.may_have(target)]
    return f"{text}; no answer from {', '.join(silent)}" if silent else text


def _do(request: ChangeRequest, stages: Stages) -> None:
    """Send the requests, or with --dry-run print them. Raises Ended if a server failed."""
    if request.options.dry_run:
        _print(request, [step for steps in stages for step in steps])
        return
    taken = run_loop(carry_out(request.servers, stages))
    _print(request, taken)
    failed = [step for step in taken if step.error]
    for step in failed:
        log.error("%s %s", step.server, step.error)
    if failed and len(failed) < len(taken):
        raise Ended(Exit.PARTIAL)
    if failed:
        reached = any(step.error and step.error.status for step in failed)
        raise Ended(Exit.FAILURE if reached else Exit.UNREACHABLE)


def _print(request: ChangeRequest, steps: Sequence[Step]) -> None:
    """Print a line or a JSON entry for each step taken or, with --dry-run, planned."""
    planned, target = request.options.dry_run, request.target
    if request.options.json:
        print_json(
            {
                "kind": request.kind,
                "action": request.action,
                "topic": target.topic,
                **({"channel": target.channel} if target.channel else {}),
                "dry_run": planned,
                "servers": [entry(each, planned=planned) for each in steps],
            }
        )
        return
    header = ["server", "address", *(["request", "note"] if planned else [request.command])]
    rows = []
    for step in steps:
        more = [step.request, _result(step)] if planned else [_result(step) or "done"]
        rows.append([step.server, step.name, *more])
    print_rows(header, rows)


def _result(step: Step) -> str:
    if error := step.error:
        return f"failed: {getattr(error, 'text', '') or describe(error)}"
    return step.note


def entry(step: Step, *, planned: bool) -> dict[str, Any]:
    """The JSON entry of a step, taken or planned."""
    error, note = step.error, step.note
    result = "failed" if error else "planned" if planned else "unchanged" if note else "done"
    return {
        "server": step.server,
        "address": step.name,
        "request": step.request,
        "result": result,
        "note": note,
        "error": str(error) if error else "",
    }
