"""The checks of ``doctor``, each with a code, declared once; and the findings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Severity = Literal["ok", "note", "warning", "error"]
"""An ``ok`` is a check that has found nothing wrong."""

_MOST = 5
"""The maximum number of names in a finding."""

_LEVELS = {"error": "failure"}  # severities with another name in the field level


class Check(NamedTuple):
    """A fault to look for. ``name`` is the group of the check, for scripts.

    ``severity`` is that of most findings: a fault that keeps every message from the consumer is an
    error. ``seen`` and ``remedy`` are the guide's words.
    """

    code: str
    name: str
    severity: Severity
    seen: str
    remedy: str


CHECKS = (
    Check(
        "NSQ001",
        "nsqlookupd",
        "warning",
        "An nsqlookupd does not answer, or the port is not its HTTP port. An error if "
        "none answers.",
        "Start it, or correct its address.",
    ),
    Check(
        "NSQ002",
        "tcp",
        "error",
        "An nsqd does not accept consumers at its address, or the port is not its TCP port.",
        "Start it, or correct its address, its `-broadcast-address` and the firewall.",
    ),
    Check(
        "NSQ003",
        "http",
        "warning",
        "The HTTP API of an nsqd does not answer, so its topics are unknown. An error if the port "
        "is its TCP port, or its only known address.",
        "Give its HTTP address, with https:// if it requires TLS.",
    ),
    Check(
        "NSQ004",
        "health",
        "error",
        "An nsqd reports in /stats that it is unhealthy: it could not write to its disk.",
        "See its log, and the space and permissions of its `-data-path`.",
    ),
    Check(
        "NSQ005",
        "tls",
        "error",
        "An nsqd requires TLS, or the TLS handshake fails.",
        "Give `--tls-v1` and the CA with `--tls-root-ca-file`.",
    ),
    Check(
        "NSQ006",
        "tls",
        "warning",
        "Some nsqds offer TLS, others do not.",
        "Start all nsqds with `-tls-cert` and `-tls-key`.",
    ),
    Check(
        "NSQ007",
        "tls",
        "warning",
        "The certificate of an nsqd has expired, or expires within 30 days. Unknown of nsqds that "
        "require AUTH, unless `--tls-v1` and a secret are given.",
        "Renew it, and restart nsqd.",
    ),
    Check(
        "NSQ008",
        "auth",
        "error",
        "An nsqd requires AUTH, or refuses the secret.",
        "Give `--auth-secret-file` with a secret that its AUTH server knows.",
    ),
    Check(
        "NSQ009",
        "tcp",
        "warning",
        "An nsqd does not offer the compression the consumer asks for.",
        "Start it with `-snappy` or `-deflate`.",
    ),
    Check(
        "NSQ010",
        "version",
        "warning",
        "nsqds and nsqlookupds run different versions.",
        "Upgrade all to one version.",
    ),
    Check(
        "NSQ011",
        "clock",
        "warning",
        "The clock of a server is more than 5 s ahead of this host's or behind it.",
        "Synchronise the clocks of both hosts.",
    ),
    Check(
        "NSQ012",
        "max-in-flight",
        "warning",
        "`--max-in-flight` is less than the number of nsqds, or more than they allow. An error if "
        "it is 0.",
        "Change `--max-in-flight`, or nsqd's `-max-rdy-count`.",
    ),
    Check(
        "NSQ020",
        "listing",
        "warning",
        "nsqlookupd lists a server with an address nobody can use. An error if it has the topic "
        "examined.",
        "Start that nsqd with a valid `-broadcast-address` and ports.",
    ),
    Check(
        "NSQ021",
        "listing",
        "error",
        "No nsqd is registered with any nsqlookupd.",
        "Start nsqd with `-lookupd-tcp-address` for each nsqlookupd.",
    ),
    Check(
        "NSQ022",
        "listing",
        "warning",
        "An nsqd is registered with no nsqlookupd: consumers do not find it.",
        "Start it with `-lookupd-tcp-address` for each nsqlookupd.",
    ),
    Check(
        "NSQ023",
        "listing",
        "warning",
        "nsqlookupds disagree: one lists an nsqd or a topic, another does not.",
        "Start every nsqd with `-lookupd-tcp-address` for each nsqlookupd.",
    ),
    Check(
        "NSQ024",
        "tcp",
        "error",
        "nsqlookupd lists an nsqd that answers neither over TCP nor over HTTP.",
        "Start it. If it is gone for good, nsqlookupd forgets it after "
        "`-inactive-producer-timeout`.",
    ),
    Check(
        "NSQ025",
        "listing",
        "warning",
        "nsqlookupd lists a topic, or a channel, that the nsqd does not have, or no nsqd has. An "
        "error for the topic examined.",
        "Delete it with `nsqtools topic delete` or `channel delete` if nobody needs it.",
    ),
    Check(
        "NSQ026",
        "listing",
        "error",
        "An nsqd has a topic, and no nsqlookupd lists it there.",
        "Restart that nsqd: it then registers its topics.",
    ),
    Check(
        "NSQ027",
        "tombstone",
        "warning",
        "A topic of an nsqd is tombstoned. An error if every nsqlookupd hides the topic examined.",
        "Wait until the tombstone expires: nsqlookupd's `-tombstone-lifetime`.",
    ),
    Check(
        "NSQ028",
        "listing",
        "error",
        "No nsqlookupd lists the topic examined.",
        "Check the name, or publish to it; give the address of an nsqd that is not registered.",
    ),
    Check(
        "NSQ029",
        "listing",
        "error",
        "Several nsqds have one broadcast address: consumers reach one of them.",
        "Start each with a `-broadcast-address` of its own.",
    ),
    Check(
        "NSQ030",
        "topic",
        "error",
        "No nsqd has the topic examined.",
        "Check the name, or publish to it, which creates it.",
    ),
    Check(
        "NSQ031",
        "topic",
        "warning",
        "Nothing has been published to the topic examined since its nsqds started.",
        "Publish a message, and run doctor again.",
    ),
    Check(
        "NSQ032",
        "idle",
        "note",
        "Nobody consumes a topic: no channel has a consumer, no message waits, and nothing was "
        "published between the two looks.",
        "Delete it if nobody needs it; `nsqtools topic prune` deletes all that stay idle.",
    ),
    Check(
        "NSQ033",
        "depth",
        "warning",
        "Messages wait in a topic on an nsqd where it has no channel.",
        "Create a channel: the first on an nsqd gets the messages that wait there.",
    ),
    Check(
        "NSQ034",
        "topic-paused",
        "warning",
        "A topic is paused: its channels get no messages. An error for the topic examined.",
        "`nsqtools topic unpause`.",
    ),
    Check(
        "NSQ035",
        "channel-paused",
        "warning",
        "A channel is paused: it delivers no messages. An error for the channel examined.",
        "`nsqtools channel unpause`.",
    ),
    Check(
        "NSQ036",
        "channel",
        "warning",
        "A channel is orphaned: it has messages, and no consumer on that nsqd.",
        "Delete the channel if nobody needs it; otherwise consume it.",
    ),
    Check(
        "NSQ037",
        "channel",
        "warning",
        "The topic has no channel of the name examined.",
        "Check the name, or create the channel.",
    ),
    Check(
        "NSQ038",
        "depth",
        "warning",
        "The channel examined is empty, and other channels of the topic are not.",
        "Consume the other channel.",
    ),
    Check(
        "NSQ039",
        "channel",
        "warning",
        "The channel examined has only deferred messages.",
        "Wait, or see which consumer requeues messages.",
    ),
    Check(
        "NSQ040",
        "consumers",
        "warning",
        "A consumer of the channel examined, or every consumer of a channel, has RDY 0. An error "
        "if all have, and messages wait.",
        "See whether they are in backoff, are stopping, or have a `--max-in-flight` below the "
        "number of nsqds.",
    ),
    Check(
        "NSQ041",
        "consumers",
        "warning",
        "A consumer of the channel examined, or every consumer of a channel, has as many messages "
        "in flight as its RDY, and settled none between the two looks. Without `--topic` only if "
        "messages have timed out, or consumers were faster before or have settled none at all. An "
        "error if messages time out between the looks.",
        "See whether the consumers hang.",
    ),
    Check(
        "NSQ042",
        "consumers",
        "warning",
        "Other consumers take the messages of the channel examined.",
        "Use a channel of your own for a copy of every message.",
    ),
    Check(
        "NSQ043",
        "timeouts",
        "warning",
        "At least 5 % of a channel's messages, and 10, timed out since its nsqds started.",
        "Raise the consumers' `--msg-timeout`, or lower their `--max-in-flight`.",
    ),
    Check(
        "NSQ044",
        "requeues",
        "warning",
        "At least 20 % of a channel's messages, and 10, were requeued since its nsqds started.",
        "See the log of its consumers: handling fails.",
    ),
    Check(
        "NSQ050",
        "imbalance",
        "warning",
        "One of several nsqds has at least 90 % of all waiting messages, and 1,000.",
        "See why its consumers lag or miss it, and whether publishers use only this nsqd.",
    ),
    Check(
        "NSQ051",
        "disk",
        "warning",
        "The messages on an nsqd's disk grew between the two looks, by at least 1,000.",
        "See the space on its disk, and start more consumers.",
    ),
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


def some(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"{', '.join(names[:_MOST])}{more}"


def without(findings: Iterable[Finding], skipped: Iterable[str]) -> list[Finding]:
    """Return the findings but for those with a skipped code."""
    codes = frozenset(skipped)
    return [each for each in findings if each.code not in codes]
