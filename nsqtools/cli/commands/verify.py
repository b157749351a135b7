"""``nsqtools verify``: checks archives, the files listed in manifests, and whole directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nsqtools.cli.exits import Ended, Exit, one_line
from nsqtools.cli.options import Command, argument, options
from nsqtools.config.files import VerifyOptions
from nsqtools.config.option import Option
from nsqtools.config.program import LogOptions
from nsqtools.config.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from nsqtools.records.verification import Verification


@click.command("verify", cls=Command, essential="format delimiter max_msg_size json quiet")
@argument(
    "files",
    Option("path", "An archive, a manifest, or the --output-dir of to-file."),
    nargs=-1,
    required=True,
    metavar="FILE...",
)
@options()
def verify(*, files: tuple[str, ...], how: VerifyOptions, say: LogOptions) -> None:
    """Check archives, manifests, and whole directories of to-file.

    Each file gets a line: ok, or its first fault and the place. A manifest gets a line for each of
    its bad lines. For a directory, incomplete files are listed too, and the last line counts its
    files by state. With -q only faults are printed; with --json each line is a JSON object. Files
    with names in .gz or .zst are decompressed. Any line is a valid record of --format raw: only the
    end of such a file can be bad, unless a manifest has its checksum. With --uploaded, the uploaded
    files of manifests are checked instead of the local files. The exit status is 4 if a file is
    bad, else 1 if a file could not be read.
    """
    import os

    from nsqtools.sinks.files.journal import owing_near

    checks = _Checks(how, quiet=say.quiet)
    for file in files:
        if os.path.isdir(file):
            checks.directory(file)
        else:
            checks.file(file, owing_near)
    if checks.bad or checks.unreadable:
        raise Ended(Exit.PARTIAL if checks.bad else Exit.FAILURE)


class _Checks:
    """Checks files, prints the results, and notes whether any was bad or unreadable."""

    def __init__(self, how: VerifyOptions, *, quiet: bool) -> None:
        from nsqtools.records.layout import Layout
        from nsqtools.stores import open_store

        self.bad = self.unreadable = False
        self._how = how
        self._quiet = quiet
        self._layout = Layout.parse(how.format, how.delimiter)
        self._uploaded = open_store(how.uploaded, "--uploaded").open if how.uploaded else None

    def file(self, file: str, waiting_near: Callable[[str], Container[str]]) -> None:
        """Check an archive or a manifest."""
        from nsqtools.records.verification import check
        from nsqtools.stores.pinned import open_below

        reports = check(
            file,
            self._layout,
            max_msg_size=self._how.max_msg_size,
            waiting_near=waiting_near,
            uploaded=self._uploaded,
            below=self._how.below,
            opened=open_below,
        )
        for report in reports:
            if report.unreadable:
                self._fail(file, report.problem)
            else:
                self._tell(_object(file, report), _line(file, report), fault=bool(report.problem))

    def directory(self, directory: str) -> None:
        """Check the complete files of a directory, and print the states of the others."""
        import os
        from collections import Counter

        from nsqtools.records.verification import listed
        from nsqtools.sinks.files.survey import FAULTS, survey

        try:
            found = list(survey(directory))
            complete = {each.path for each in found if each.state in ("completed", "owing")}
            lists = {path: listed(path) for path in sorted(complete)}
        except OSError as error:
            self._fail(error.filename or directory, error.strerror or str(error))
            return
        manifests = {path for path, paths in lists.items() if paths is not None}
        in_manifests = set().union(*(lists[path] or () for path in manifests))
        owing = {os.path.realpath(each.path) for each in found if each.state == "owing"}
        for path, state, note in found:
            name = os.path.join(directory, os.path.relpath(path, directory))
            if path not in complete:
                value = {"file": name, "ok": state not in FAULTS, "state": state, "note": note}
                text = f"{name}: {state}: {note}" if note else f"{name}: {state}"
                self._tell(value, text, fault=state in FAULTS)
            elif os.path.realpath(path) not in in_manifests and os.path.lexists(path):
                self.file(name, lambda _: owing)
        counts: dict[str, object] = {
            **Counter(str(state) for path, state, _ in found if path not in manifests)
        }
        text = ", ".join(f"{number} {state}" for state, number in counts.items()) or "no files"
        self._tell({"directory": directory} | counts, f"{directory}: {text}", fault=False)

    def _tell(self, value: dict[str, object], text: str, *, fault: bool) -> None:
        self.bad = self.bad or fault
        if self._how.json and (fault or not self._quiet):
            from json import dumps

            click.echo(dumps({key: each for key, each in value.items() if each not in (None, "")}))
        elif fault or not self._quiet:
            click.echo(one_line(text))

    def _fail(self, file: str, reason: str) -> None:
        import logging

        self.unreadable = True
        logging.getLogger(__name__).error("%s: %s", file, reason)


def _line(file: str, report: Verification) -> str:
    if report.problem:
        return f"{file}: {report.problem}"
    text = f"{file}: ok, {counted(report.records, 'record')}, {counted(report.size, 'byte')}"
    if report.files is not None:
        text += f", {counted(report.files, 'file')}"
    if report.deleted:
        text += f", {counted(report.deleted, 'older file')} deleted"
    if report.waiting:
        which = "" if report.files is None else f"{counted(report.waiting, 'file')} "
        text += f", {which}waiting for --upload or --on-rotate"
    return text


def _object(file: str, report: Verification) -> dict[str, object]:
    return {
        "file": file,
        "ok": not report.problem,
        "records": report.records,
        "bytes": report.size,
        "files": report.files,
        "deleted": report.deleted,
        "waiting": report.waiting or None,
        "problem": report.problem,
    }
