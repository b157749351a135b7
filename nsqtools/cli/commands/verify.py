"""``nsqtools verify``: checks archives, and the files that manifests list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nsqtools.cli.exits import Ended, Exit, one_line
from nsqtools.cli.options import Command, argument, options
from nsqtools.config import LogOptions, VerifyOptions
from nsqtools.config.option import Option
from nsqtools.config.units import counted

if TYPE_CHECKING:
    from nsqtools.records.verification import Verification


@click.command("verify", cls=Command, essential="format delimiter max_msg_size json quiet")
@argument(
    "files",
    Option("path", "An archive, or a manifest."),
    nargs=-1,
    required=True,
    metavar="FILE...",
)
@options()
def verify(*, files: tuple[str, ...], how: VerifyOptions, say: LogOptions) -> None:
    """Check archives and manifests.

    Each file gets a line: ok, or its first fault and where it is. A manifest gets a line for each
    of its bad lines. With -q only faults are printed. Files whose names end in .gz or .zst are
    decompressed. With --uploaded, the uploaded files of manifests are checked, not the local ones.
    The exit status is 4 if a file is bad, else 1 if a file could not be read.
    """
    import logging

    from nsqtools.records.layout import Layout
    from nsqtools.records.verification import check
    from nsqtools.sinks.files.journal import owing_near
    from nsqtools.stores import open_store

    log = logging.getLogger(__name__)
    layout = Layout.parse(how.format, how.delimiter)
    uploaded = open_store(how.uploaded, "--uploaded").open if how.uploaded else None
    bad = unreadable = False
    for file in files:
        reports = check(
            file, layout, max_msg_size=how.max_msg_size, waiting_near=owing_near, uploaded=uploaded
        )
        for report in reports:
            if report.unreadable:
                unreadable = True
                log.error("%s: %s", file, report.problem)
                continue
            bad = bad or bool(report.problem)
            if report.problem or not say.quiet:
                click.echo(_json(file, report) if how.json else _line(file, report))
    if bad or unreadable:
        raise Ended(Exit.PARTIAL if bad else Exit.FAILURE)


def _line(file: str, report: Verification) -> str:
    if report.problem:
        return one_line(f"{file}: {report.problem}")
    text = f"{file}: ok, {counted(report.records, 'record')}, {counted(report.size, 'byte')}"
    if report.files is not None:
        text += f", {counted(report.files, 'file')}"
    if report.deleted:
        text += f", {counted(report.deleted, 'older file')} deleted"
    if report.waiting:
        which = "" if report.files is None else f"{counted(report.waiting, 'file')} "
        text += f", {which}waiting for --upload or --on-rotate"
    return one_line(text)


def _json(file: str, report: Verification) -> str:
    from json import dumps

    value = {
        "file": file,
        "ok": not report.problem,
        "records": report.records,
        "bytes": report.size,
        "files": report.files,
        "deleted": report.deleted,
        "waiting": report.waiting or None,
        "problem": report.problem or None,
    }
    return dumps({key: each for key, each in value.items() if each is not None})
