"""What a seed decides of a life: who lives in it, and the faults that come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

ACTIVE_TIME = 90.0
"""Seconds in which messages are published and faults begin."""

CALM = frozenset({"reader", "endpoint", "hup", "clock"})
"""Faults after which no message needs to be delivered twice."""

ONCE = frozenset(
    {"server restarts", "break", "garbage", "kill", "kill at", "term", "power", "server dies"}
)
"""Faults after which nsqd may deliver again what was in flight."""

OF_DISKS = frozenset({"disk full", "disk fails", "reply lost"})
"""Faults with which what is written to a disk may fail."""

AGAIN = frozenset({"server stops", "cut", "latency", "stop at"})
"""Faults during which it may, each time that it has timed out."""

OF_SERVERS = ("server stops", "server restarts", "cut", "break", "latency")
"""Faults beside which a healthy nsqd must be consumed."""

REDRIVEN_WELL = frozenset(
    {"clock", "term", "lie", "disk slow", "rotate", "second run", "other consumer"}
)
"""Faults beside which a run of redrive does all that it promises."""

_OF_ALL = (
    *OF_SERVERS,
    "garbage",
    "kill",
    "term",
    "clock",
)
_OF_STAGING = ("kill at", "stop at", "power", "disk fails")
_OF_DISK = {"staging": _OF_STAGING, "redrive-dir": ("kill at", "power at", "power", "disk fails")}
"""The faults that come together in some lives, instead of those of servers."""
_LOOKUPD = ("lookupd stops", "lookupd restarts")
_FAULTS = {
    "tail": (*_OF_ALL, "reader", "power"),
    "to-http": (*_OF_ALL, "endpoint", "endpoint stops", "power", "kill at", "disk full", *_LOOKUPD),
    "relay": (*_OF_ALL, "destination stops", "destination restarts", "lie", *_LOOKUPD),
    "to-file": (*_OF_ALL, "hup", "hup", "kill at", "kill at", "power", "disk full", "disk fails"),
    "library": (*_OF_ALL[:6], "handler", "max in flight", "term", *_LOOKUPD),
    "until-empty": (
        *("server stops", "server dies", "cut", "reader", "latency", "lie", "lookupd stops"),
    ),
    "count": ("reader", "break", "server stops", "latency"),
    "pub": ("server stops", "server restarts", "cut", "latency", *_LOOKUPD),
    "redrive": (*OF_SERVERS, "garbage", "kill", "term", "lie", "other consumer", *_LOOKUPD),
    "redrive-dir": (
        *(*OF_SERVERS, "garbage", *_OF_STAGING, "disk full", "disk slow"),
        *("kill", "power at", "term", "rotate", "second run", *_LOOKUPD),
    ),
    "staging": (
        *("server stops", "server restarts", "cut", "break", *_OF_STAGING),
        *("kill", "worker stops", "replaced", "disk full", "disk slow"),
    ),
}
KINDS = tuple(_FAULTS)
_MORE = {"clock": KINDS, "reply lost": ("to-file", "to-http", "redrive-dir", "staging")}
"""Faults that are drawn after all else, for these kinds, so that seeds keep their lives."""
_ALONE = "until-empty", "count", "pub", "library", "redrive"
"""Kinds of which one copy runs at a time."""
_MESSAGES = {"staging": (1, 20, 60), "redrive": (1, 10, 50, 100), "redrive-dir": (1, 20, 200, 500)}
"""Messages that each nsqd gets, or a directory."""
_STYLES = {
    "to-file": ("", "hook", "upload", "hook <REV>", "one directory"),
    "to-http": ("", "dead letters"),
    "relay": ("", "beside others"),
    "until-empty": ("", "to-file"),
    "count": ("", "to-file"),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that begins at ``at`` and is over after ``lasts`` seconds.

    ``which`` and ``how`` choose the victim and the details.
    """

    at: float
    kind: str
    lasts: float
    which: int
    how: float

    def __str__(self) -> str:
        return f"{self.at:.3f} s: {self.kind} for {self.lasts:.3f} s ({self.which}, {self.how:.3f})"


@dataclass(frozen=True, slots=True)
class Plan:
    """A life: ``kind`` of consumer, ``servers`` nsqds, ``copies`` of the command at a time."""

    seed: int
    kind: str
    servers: int
    lookupds: int
    copies: int
    messages: int
    size: int
    options: tuple[str, ...]
    style: str
    faults: tuple[Fault, ...]
    ahead: float | None = None
    """Days that clocks of hosts are ahead of those of nsqds; the seed decides if it is None."""

    @property
    def is_calm(self) -> bool:
        """Whether no fault excuses a message that comes twice."""
        return all(fault.kind in CALM for fault in self.faults)

    def without(self, fault: Fault) -> Plan:
        """The same life without a fault."""
        return replace(self, faults=tuple(each for each in self.faults if each is not fault))

    def __str__(self) -> str:
        head = (
            f"seed {self.seed}: {self.kind} x {self.copies} ({self.style or 'plain'}), "
            f"{self.servers} nsqds, {self.lookupds} nsqlookupds, {self.messages} messages of "
            f"{self.size} bytes, {' '.join(self.options)}"
        )
        return "\n".join([head, *(f"  {fault}" for fault in self.faults)])


def plan_of(seed: int, kind: str) -> Plan:
    """The life of a seed, of this kind of consumer."""
    rng = Random(f"{seed} {kind}")
    known = tuple(dict.fromkeys(_FAULTS[kind]))
    kinds = rng.choice(  # a few at a time find more
        (
            *(rng.sample(known, count) for count in (1, 1, 2, len(known))),
            [e for e in known if e in _OF_DISK.get(kind, OF_SERVERS)],
        )
    )
    span = ACTIVE_TIME * rng.choice((1.0, 1.0, 0.2))  # also those that come together
    first = rng.random() * (ACTIVE_TIME - span)
    faults = sorted(
        (
            _fault(rng, rng.choice(kinds), first + rng.random() * span)
            for _ in range(rng.choice((2, 5, 8) if kind in _OF_DISK else (0, 1, 1, 2, 3, 5, 8)))
        ),
        key=lambda fault: fault.at,
    )
    style = rng.choice(_STYLES.get(kind, ("",)))
    faults += _more_faults(Random(f"{seed} {kind} more"), kind)
    return Plan(
        seed=seed,
        kind=kind,
        servers=rng.choice((1, 2, 2, 3)),
        lookupds=rng.choice((0, 0, 1, 2)) if kind != "staging" else 0,
        copies=_copies(rng, kind, style),
        messages=rng.choice(_MESSAGES.get(kind, (1, 20, 200, 1000))),
        size=rng.choice((20, 20, 300, 5000)),
        options=_options(rng, kind, style),
        style=style,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _more_faults(rng: Random, kind: str) -> list[Fault]:
    """None in half of all lives."""
    known = [fault for fault, kinds in _MORE.items() if kind in kinds]
    return [
        _fault(rng, rng.choice(known), rng.random() * ACTIVE_TIME)
        for _ in range(rng.choice((0, 0, 1, 2, 5)) if known else 0)
    ]


def _copies(rng: Random, kind: str, style: str) -> int:
    if kind == "staging":  # a driver and executors
        return 1 + rng.choice((1, 2, 3))
    if kind == "redrive-dir":  # with a writer of dead letters
        return 2
    if style == "beside others":  # relay, tail and to-http
        return 3
    if style == "one directory":
        return 2
    return 1 if kind in _ALONE else rng.choice((1, 1, 2))


def _fault(rng: Random, kind: str, at: float) -> Fault:
    return Fault(
        at=at,
        kind=kind,
        lasts=rng.choice((0.0, 0.3, 2.0, 5.0, 12.0, 40.0, 120.0)) * (0.5 + rng.random()),
        which=rng.randrange(6),
        how=rng.random(),
    )


def _options(rng: Random, kind: str, style: str) -> tuple[str, ...]:
    if kind in ("pub", "redrive-dir"):
        return ()
    if kind == "staging":
        return _source_options(rng)
    options = ["--msg-timeout", rng.choice(("2s", "5s", "60s"))]
    options += ["--max-in-flight", rng.choice(("1", "5", "50", "500", "2500"))]
    if kind != "library" and rng.random() < 0.5:  # a server that hangs is noticed sooner
        options += ["--consumer-opt", "heartbeat_interval,5s"]
    if kind in ("to-file", "to-http", "relay"):
        options += ["--requeue-delay", rng.choice(("0s", "1s", "20s"))]
    if kind == "to-file":
        options += ["--sync-interval", rng.choice(("100ms", "1s", "4s"))]
        options += ["--compress", rng.choice(("none", "none", "gzip", "zstd"))]
        if style in ("upload", "hook <REV>") or "none" not in options:  # names are used once
            options += ["--rotate-interval", rng.choice(("3s", "10s", "60s"))]
    if style == "beside others":
        options += rng.choice(([], ["--consumer-opt", "snappy"], ["--consumer-opt", "deflate"]))
    if kind == "to-http":
        options += ["--concurrency", rng.choice(("1", "5", "100"))]
    return tuple(options)


def _source_options(rng: Random) -> tuple[str, ...]:
    """Of the source ``nsq``: names and values."""
    return (
        *("nsq.msg_timeout", rng.choice(("2s", "5s", "60s"))),
        *("maxInFlight", rng.choice(("1", "5", "50", "2500"))),
        *("connectionsPerNsqd", rng.choice(("1", "2", "3"))),
        *("maxMessagesPerTrigger", rng.choice(("0", "10", "50"))),
        *("idleTimeoutMs", rng.choice(("500", "2000"))),
        *("pollIntervalMs", rng.choice(("1000", "5000"))),
        *("partitions", "1"),  # or as many as connections, whatever the machine
    )
