"""The result of a check as monitoring programs read it, and the file that it may go to."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import stat
from typing import TYPE_CHECKING, Any

from nsqtools.cli.exits import one_line
from nsqtools.policy.checks import age, number

if TYPE_CHECKING:
    from nsqtools.policy.checks import Datum, Verdict
    from nsqtools.policy.rates import Row

_MOST_LINES = 50  # Nagios keeps 8 KiB of an output
_MODE = 0o644
_NOT_IN_LABELS = re.compile(r"[='|]")


def nagios(verdict: Verdict) -> str:
    """A line of state and numbers, then one for each finding if there are several.

    As the Monitoring Plugins Development Guidelines want it (Plugin Output, Performance data).
    """
    data = " ".join(map(_datum, verdict.data))
    first = f"NSQ {verdict.status.name} - {_plain(verdict.summary)}"
    lines = [f"{first} | {data}" if data else first]
    if len(verdict.findings) > 1:
        shown = verdict.findings[:_MOST_LINES]
        lines += [f"{each.status.name}: {_plain(str(each))}" for each in shown]
        if more := len(verdict.findings) - len(shown):
            lines.append(f"and {more} more")
    return "".join(f"{line}\n" for line in lines)


def as_text(verdict: Verdict) -> str:
    """For people: the state and why, then each finding if there are several."""
    lines = [f"{verdict.status.name:8}  {one_line(verdict.summary)}"]
    if len(verdict.findings) > 1:
        lines += [f"{each.status.name:8}  {one_line(str(each))}" for each in verdict.findings]
    return "".join(f"{line}\n" for line in lines)


def as_json(verdict: Verdict) -> str:
    """One object on one line; ``null`` is a number that is not known, or was not asked for."""
    return (
        json.dumps(
            {
                "status": verdict.status.name,
                "code": int(verdict.status),
                "summary": verdict.summary,
                "findings": [
                    {
                        "status": each.status.name,
                        "topic": each.topic,
                        "channel": each.channel,
                        "text": each.text,
                    }
                    for each in verdict.findings
                ],
                "rows": [_row(row) for row in verdict.rows],
                "nsqds": dict(verdict.peers.nsqds),
                "nsqlookupds": dict(verdict.peers.lookupds),
            }
        )
        + "\n"
    )


def replace_file(path: str, text: str) -> None:
    """Write a file that others see as it was before, or whole; a new one has mode 0644.

    Raises OSError that names the path as given: also if that is neither a regular file nor new.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    work = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.part")
    mode = _MODE
    try:
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(target).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "not a regular file")
        fd = os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                os.fchmod(fd, stat.S_IMODE(mode))  # whatever the umask
                file.write(text)
                file.flush()
                os.fsync(fd)
            os.replace(work, target)
        except BaseException:
            os.unlink(work)
            raise
        _sync(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _datum(datum: Datum) -> str:
    """``'label'=value[UOM];[warn];[crit];[min];[max]``; U is a value that could not be had."""
    known = datum.value is not None and math.isfinite(datum.value)
    value = f"{number(datum.value or 0)}{datum.unit}" if known else "U"
    limits = [
        "" if limit is None else f"{number(limit)}{':' if datum.at_least else ''}"
        for limit in (datum.limit.warn, datum.limit.crit)
    ]
    most = "" if datum.maximum is None else number(datum.maximum)
    label = _NOT_IN_LABELS.sub("_", one_line(datum.label))
    return f"'{label}'={';'.join((value, *limits, '0', most))}".rstrip(";")


def _plain(text: str) -> str:
    """A line of text that does not end where the numbers begin."""
    return one_line(text).replace("|", "/")


def _row(row: Row) -> dict[str, Any]:
    waits = age(row)
    return {
        "topic": row.topic,
        "channel": row.channel,
        "depth": row.totals.depth,
        "in_flight": row.totals.in_flight,
        "deferred": row.totals.deferred,
        "clients": row.totals.clients,
        "paused": row.totals.paused,
        "nsqds": row.nodes,
        "ingress": row.ingress,
        "egress": row.egress,
        "requeue_rate": row.requeue_rate,
        "timeout_rate": row.timeout_rate,
        "age": None if waits == math.inf else waits,
        "stuck": waits == math.inf,
    }


RENDER = {"nagios": nagios, "json": as_json, "text": as_text}
"""By the name that ``--format`` has for it; that of Prometheus needs more than a verdict."""
