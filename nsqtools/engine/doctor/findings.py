"""The checks of ``doctor``, each with a code, declared once; and the findings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

Severity = Literal["ok", "note", "warning", "error"]
"""An ``ok`` is a check that has found nothing wrong."""

"""The maximum number of names in a finding."""

_LEVELS = {"error": "failure"}  # severities with another name in the field level


class Check(NamedTuple):
    """A fault to look for. ``name`` is the group of the check, for scripts.

    ``severity`` is that of most findings: a fault that keeps every message from the consumer is an
    error. The guide ``checks`` says what each of them has seen, and what to do.
    """

    code: str
    name: str
    severity: Severity


CHECKS = (
    Check("NSQ001", "nsqlookupd", "warning"),
    Check("NSQ002", "tcp", "error"),
    Check("NSQ003", "http", "warning"),
    Check("NSQ004", "health", "error"),
    Check("NSQ005", "tls", "error"),
    Check("NSQ006", "tls", "warning"),
    Check("NSQ007", "tls", "warning"),
    Check("NSQ008", "auth", "error"),
    Check("NSQ009", "tcp", "warning"),
    Check("NSQ010", "version", "warning"),
    Check("NSQ011", "clock", "warning"),
    Check("NSQ012", "max-in-flight", "warning"),
    Check("NSQ020", "listing", "warning"),
    Check("NSQ021", "listing", "error"),
    Check("NSQ022", "listing", "warning"),
    Check("NSQ023", "listing", "warning"),
    Check("NSQ024", "tcp", "error"),
    Check("NSQ025", "listing", "warning"),
    Check("NSQ026", "listing", "error"),
    Check("NSQ027", "tombstone", "warning"),
    Check("NSQ028", "listing", "error"),
    Check("NSQ029", "listing", "error"),
    Check("NSQ030", "topic", "error"),
    Check("NSQ031", "topic", "warning"),
    Check("NSQ032", "idle", "note"),
    Check("NSQ033", "depth", "warning"),
    Check("NSQ034", "topic-paused", "warning"),
    Check("NSQ035", "channel-paused", "warning"),
    Check("NSQ036", "channel", "warning"),
    Check("NSQ037", "channel", "warning"),
    Check("NSQ038", "depth", "warning"),
    Check("NSQ039", "channel", "warning"),
    Check("NSQ040", "consumers", "warning"),
    Check("NSQ041", "consumers", "warning"),
    Check("NSQ042", "consumers", "warning"),
    Check("NSQ043", "timeouts", "warning"),
    Check("NSQ044", "requeues", "warning"),
    Check("NSQ050", "imbalance", "warning"),
    Check("NSQ051", "disk", "warning"),
)
"""All checks, in the order of their codes. A code is never given to another check."""

BY_CODE = {check.code: check for check in CHECKS}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found, and ``fix``, the remedy.

    ``check`` is the name of the check's group. ``code`` is empty if nothing is wrong. ``topic``,
    ``channel`` and ``server`` are what the finding is about, as far as there is only one.
    ``subject`` tells it from others of its code about the same.
    """

    severity: Severity
    check: str
    text: str
    fix: str = ""
    code: str = ""
    topic: str = ""
    channel: str = ""
    server: str = ""
    subject: str = ""

    @property
    def about(self) -> tuple[str, ...]:
        """What the same finding has in common when it is seen again."""
        return self.code, self.topic, self.channel, self.server, self.subject

    def fields(self) -> dict[str, Any]:
        """Return the finding for JSON, with its ``level``: ok, note, warning or failure."""
        return {"level": _LEVELS.get(self.severity, self.severity), **asdict(self)}


def passed(name: str, text: str) -> Finding:
    """Return the finding of a check, by its name, that found nothing wrong."""
    return Finding("ok", name, text)


def fault(
    code: str,
    text: str,
    fix: str,
    *,
    error: bool = False,
    topic: str = "",
    channel: str = "",
    server: object = "",
    subject: object = "",
) -> Finding:
    """Return the finding of a check, with the check's severity or, if ``error``, as an error."""
    check = BY_CODE[code]
    severity = "error" if error else check.severity
    about = topic, channel, str(server), str(subject)
    return Finding(severity, check.name, text, fix, code, *about)


def without(findings: Iterable[Finding], skipped: Iterable[str]) -> list[Finding]:
    """Return the findings but for those with a skipped code."""
    codes = frozenset(skipped)
    return [each for each in findings if each.code not in codes]
