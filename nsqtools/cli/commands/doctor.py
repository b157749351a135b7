"""``nsqtools doctor``: finds out why a consumer receives no messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nsqtools.cli.exits import Ended, Exit, one_line
from nsqtools.cli.options import Command, options
from nsqtools.config.admin import DoctorOptions
from nsqtools.config.connection import ExaminedConfig
from nsqtools.names import NSQD_TCP_PORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.engine.doctor.examine import Question
    from nsqtools.engine.doctor.facts import Finding

_COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}
_HERE = (f"127.0.0.1:{NSQD_TCP_PORT}",)


@click.command(
    "doctor",
    cls=Command,
    essential="topic channel nsqd_tcp_address lookupd_http_address nsqd_http_address json timeout "
    "tls_v1 auth_secret_file verbose",
)
@options()
def doctor(*, options: DoctorOptions, config: ExaminedConfig) -> None:
    """Find out why a consumer sees nothing.

    Give doctor the options of the consumer, such as those of tail. It examines the servers of the
    topic, and prints its findings and what to do about each warning or failure. It changes nothing.
    The exit status is 1 if there are failures, and 3 if no server answers.
    """

    from nsqtools.cli.remotes import with_secret
    from nsqtools.engine.doctor import diagnose
    from nsqtools.engine.doctor.examine import examine
    from nsqtools.tasks import run_loop

    facts = run_loop(examine(_question(options), with_secret(config)))
    findings = diagnose(facts)
    if options.json:
        _print_json(options, findings)
    else:
        _print(findings)
    if not facts.anybody:
        raise Ended(Exit.UNREACHABLE)
    if any(finding.level == "failure" for finding in findings):
        raise Ended(Exit.FAILURE)


def _question(options: DoctorOptions) -> Question:
    from nsqtools.cli.remotes import fixed_nsqds
    from nsqtools.engine.doctor.examine import Question

    # If only an HTTP address is given, /info of this nsqd reports its TCP address.
    alone = options.nsqd_http_address and options.nsqd_tcp_address == _HERE
    return Question(
        topic=options.topic,
        channel=options.channel,
        nsqds=() if alone else fixed_nsqds(options),
        lookupds=options.lookupd_http_address,
        urls=options.nsqd_http_address,
        timeout=options.timeout,
    )


def _print(findings: Sequence[Finding]) -> None:
    width = max(map(len, _COLOURS))
    for each in findings:
        level = click.style(each.level.ljust(width), fg=_COLOURS[each.level])
        click.echo(f"{level}  {one_line(each.text)}")
        if each.fix:
            click.echo(f"{'':{width}}  fix: {one_line(each.fix)}")


def _print_json(options: DoctorOptions, findings: Sequence[Finding]) -> None:
    from dataclasses import asdict

    from nsqtools.cli.output import print_json

    print_json(
        {
            "topic": options.topic,
            "channel": options.channel,
            "findings": [asdict(each) for each in findings],
        }
    )
