"""``nsqtools doctor``: finds out what is wrong with a cluster or a topic."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from nsqtools.cli.exits import Ended, Exit, one_line
from nsqtools.cli.options import Command, options
from nsqtools.config.admin import DoctorOptions
from nsqtools.config.connection import ExaminedConfig
from nsqtools.errors import ConfigError
from nsqtools.names import NSQD_TCP_PORT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.engine.doctor.comparison import Differences
    from nsqtools.engine.doctor.examine import Question
    from nsqtools.engine.doctor.findings import Finding

_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}
_WIDTH = max(map(len, _COLOURS))
_HERE = (f"127.0.0.1:{NSQD_TCP_PORT}",)
_MOST = 10
"""The maximum number of findings of a code, and of changes of a kind, to print."""


@click.command(
    "doctor",
    cls=Command,
    essential="topic channel nsqd_tcp_address lookupd_http_address nsqd_http_address skip json "
    "timeout tls_v1 auth_secret_file verbose",
)
@options()
def doctor(*, options: DoctorOptions, config: ExaminedConfig) -> None:
    """Find faults of a cluster, or why a consumer sees nothing.

    Without --topic, doctor examines the whole cluster. With --topic, give it the options of the
    consumer, such as those of tail: it examines the servers of the topic. It prints its findings,
    with their codes, and what to do about each. It changes nothing. The exit status is 4 if there
    are warnings, 1 if there are errors, and 3 if no server answers.
    """

    from nsqtools.cli.remotes import with_secret
    from nsqtools.engine.doctor import diagnose
    from nsqtools.engine.doctor.comparison import compare
    from nsqtools.engine.doctor.examine import examine
    from nsqtools.engine.doctor.findings import without
    from nsqtools.engine.doctor.snapshot import SavedSnapshot, load, save
    from nsqtools.tasks import run_loop

    skipped = _skipped(options.skip)
    before = None
    if options.compare and not _is_first_run(options):
        before = load(options.compare)
    facts = run_loop(examine(_question(options), with_secret(config)))
    found = diagnose(facts)
    findings = without(found, skipped)
    seen = SavedSnapshot.of(facts, found)
    differences = compare(before, seen, skipped) if before else None
    try:
        if options.json:
            _print_json(options, findings, differences)
        else:
            _print(findings)
            if differences:
                _print_differences(differences)
    finally:  # also if nobody reads the output
        if options.save and facts.anybody:
            save(options.save, seen)
    if not facts.anybody:
        raise Ended(Exit.UNREACHABLE)
    severities = {finding.severity for finding in findings}
    if "error" in severities:
        raise Ended(Exit.FAILURE)
    if "warning" in severities:
        raise Ended(Exit.PARTIAL)


def _is_first_run(options: DoctorOptions) -> bool:
    """Whether the file to compare with is about to be saved for the first time."""
    import os

    return options.compare == options.save and not os.path.exists(options.compare)


def _skipped(codes: Sequence[str]) -> set[str]:
    from nsqtools.config.units import nearest
    from nsqtools.engine.doctor.findings import BY_CODE

    for code in codes:
        if code.upper() not in BY_CODE:
            raise ConfigError(f"--skip {code}: unknown code{nearest(code.upper(), BY_CODE)}")
    return {code.upper() for code in codes}


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
    for kind, group in groupby(findings, lambda each: each.code or each.check):
        found = list(group)
        for each in found[:_MOST]:
            severity = click.style(each.severity.ljust(_WIDTH), fg=_COLOURS[each.severity])
            click.echo(f"{severity}  {_line(each)}")
            if each.fix:
                click.echo(f"{'':{_WIDTH}}  fix: {one_line(each.fix)}")
        _print_more(kind, len(found))


def _print_more(kind: str, number: int) -> None:
    if number > _MOST:
        click.echo(f"{'':{_WIDTH}}  {kind}: {number - _MOST} more; --json prints all")


def _line(finding: Finding) -> str:
    return one_line(f"{finding.code} {finding.text}".lstrip())


def _print_differences(differences: Differences) -> None:
    from nsqtools.policy.idleness import shown_time

    click.echo(f"\nChanges since {shown_time(differences.since)}")
    for kind, lines in _kinds(differences):
        for line in lines[:_MOST]:
            click.echo(f"{kind:{_WIDTH}}  {line}")
        _print_more(kind, len(lines))


def _kinds(differences: Differences) -> Iterator[tuple[str, list[str]]]:
    yield "new", [_line(each) for each in differences.new_findings]
    yield "gone", [_line(each) for each in differences.gone_findings]
    places = (
        ("came", differences.nsqds_came, differences.came),
        ("went", differences.nsqds_went, differences.went),
        ("still", (), differences.still),
    )
    for kind, nsqds, keys in places:
        topics = {topic for topic, channel in keys if not channel}
        others = [f"channel {key[1]} of topic {key[0]}" for key in keys if key[0] not in topics]
        named = [f"nsqd {name}" for name in nsqds] + [f"topic {name}" for name in sorted(topics)]
        yield kind, [*named, *others]


def _print_json(
    options: DoctorOptions, findings: Sequence[Finding], differences: Differences | None
) -> None:
    from nsqtools.cli.output import print_json

    shown: dict[str, Any] = {
        "topic": options.topic,
        "channel": options.channel,
        "findings": [each.fields() for each in findings],
    }
    if differences:
        places = {"came": differences.came, "went": differences.went, "still": differences.still}
        shown["changes"] = {
            "since": differences.since,
            "new": [each.fields() for each in differences.new_findings],
            "gone": [each.fields() for each in differences.gone_findings],
            **{
                kind: [{"topic": topic, "channel": channel} for topic, channel in keys]
                for kind, keys in places.items()
            },
            "nsqds_came": list(differences.nsqds_came),
            "nsqds_went": list(differences.nsqds_went),
        }
    print_json(shown)
