"""What ``doctor`` has seen, kept in a file: one JSON object, for a comparison later.

An nsqd's part is its answer to /stats, without consumers and latencies.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Self

from nsqtools.checksum import sealed, unsealed
from nsqtools.clock import boot, uptime_ns
from nsqtools.config.connection import without_waiting
from nsqtools.engine.cluster import sample_of
from nsqtools.engine.doctor.findings import Finding
from nsqtools.errors import ConfigError, OutputError
from nsqtools.net.http.replies import decode_report, encode_report
from nsqtools.policy.idleness import CALENDAR_END, ClusterSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsqtools.engine.doctor.facts import Facts
    from nsqtools.net.http.replies import NsqdStats
    from nsqtools.policy.rates import CounterSample

FORMAT = "nsqtools-doctor"
VERSION = 1
_MAX_BYTES = 256 << 20
"""The maximum size of a file; 100,000 channels take 30 MiB."""

_TOO_LARGE = f"larger than {_MAX_BYTES >> 20} MiB: too large"


@dataclass(frozen=True, slots=True)
class SavedSnapshot:
    """The answers of all nsqds at time ``at`` on this host's clock, in seconds since the epoch.

    Keys are an nsqd's TCP broadcast address, its identity; or its HTTP address, if others claim the
    same identity, or if the nsqd was given by that and did not answer. ``stats`` has the nsqds that
    answered, ``silent`` the error of each silent nsqd. ``silent_lookupds`` maps the address of each
    silent nsqlookupd to its error: nsqds may then be missing. ``times`` has the earliest and latest
    possible time on each nsqd's own clock when it answered, if it is known. ``boot`` and ``uptime``
    in seconds are those of this host. Version 0.3 saved none of these.
    """

    at: float
    stats: Mapping[str, NsqdStats]
    silent: Mapping[str, str] = field(default_factory=dict)
    silent_lookupds: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    times: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    boot: str = ""
    uptime: float = 0.0

    @classmethod
    def of(cls, facts: Facts, findings: Iterable[Finding]) -> Self:
        """Return what a diagnosis of a whole cluster has seen at its last look."""
        identities = [str(nsqd.broadcast or nsqd.name) for nsqd in facts.nsqds]
        claims = Counter(identities)
        nsqds = {
            name if claims[name] == 1 else str(nsqd.http): nsqd
            for name, nsqd in zip(identities, facts.nsqds, strict=True)
        }
        looks = {name: nsqd.later_stats or nsqd.stats for name, nsqd in nsqds.items()}
        return cls(
            facts.at,
            {name: stats for name, stats in looks.items() if stats},
            {name: str(nsqd.http_error) for name, nsqd in nsqds.items() if nsqd.http_error},
            {str(each.address): str(each.error) for each in facts.lookupds if each.error},
            tuple(each for each in findings if each.code),
            {name: nsqd.time for name, nsqd in nsqds.items() if nsqd.time},
            boot(),
            uptime_ns() / 1e9,
        )

    @property
    def is_complete(self) -> bool:
        """Whether all servers answered."""
        return not (self.silent or self.silent_lookupds)

    def samples(self) -> dict[str, CounterSample | None]:
        """Return the counters of each nsqd, at times since the epoch; None for a silent nsqd."""
        found: dict[str, CounterSample | None] = dict.fromkeys(self.silent)
        return found | {name: sample_of(self.at, stats) for name, stats in self.stats.items()}

    def cluster_sample(self) -> ClusterSample:
        """Return the input of Idleness, without silent servers."""
        nsqds = {name: each for name, each in self.samples().items() if each}
        return ClusterSample(
            self.at, nsqds, {}, times=self.times, boot=self.boot, uptime=self.uptime
        )


def save(path: str, snapshot: SavedSnapshot) -> None:
    """Write a snapshot to a file that is complete once it has this name. Raises OutputError.

    A symbolic link is followed, and a file keeps its permissions. A device or a pipe is refused: a
    file would take its place.
    """
    data = {
        "format": FORMAT,
        "version": VERSION,
        "at": snapshot.at,
        "nsqds": {name: encode_report(stats) for name, stats in snapshot.stats.items()},
        "silent_nsqds": dict(snapshot.silent),
        "silent_nsqlookupds": dict(snapshot.silent_lookupds),
        "findings": [asdict(each) for each in snapshot.findings],
        "times": snapshot.times,
        "boot": snapshot.boot,
        "uptime": snapshot.uptime,
    }
    try:
        _replace(path, data)
    except OSError as error:
        raise OutputError(f"{path}: {(error.strerror or str(error)).lower()}") from error


def _replace(path: str, data: dict[str, Any]) -> None:
    mode = None
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise OSError("not a regular file")
    target = Path(os.path.realpath(path))
    new = target.parent / f".{target.name}.{token_hex(4)}"
    with open(new, "xb") as file:
        try:
            file.write(sealed(data) + b"\n")
            file.flush()
            if os.fstat(file.fileno()).st_size > _MAX_BYTES:
                raise OutputError(f"{path}: {_TOO_LARGE} to save")
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            os.fsync(file.fileno())
            os.replace(new, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(new)
            raise


def load(path: str) -> SavedSnapshot:
    """Read a snapshot. Raises ConfigError naming the file if it cannot be used."""
    try:
        with open(path, "rb", opener=without_waiting) as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{path}: {_TOO_LARGE} to read")
    try:
        return _decoded(unsealed(data))
    except ValueError as error:
        text = f"{path}: no snapshot of doctor --save: {error}"
        raise ConfigError(text) from error


def _decoded(data: dict[str, Any]) -> SavedSnapshot:
    if data.get("format") != FORMAT:
        raise ValueError("its format is unknown")
    if data.get("version") != VERSION:
        raise ValueError(f"its version is {data.get('version')!r}, expected {VERSION}")
    at: Any = data.get("at")
    if not _is_time(at):
        raise ValueError("'at' is not a time")
    faults: list[str] = []
    stats = {name: decode_report(each, faults) for name, each in _object(data, "nsqds").items()}
    if faults:
        raise ValueError(faults[0])
    entries = data.get("findings")
    if not isinstance(entries, list):
        raise ValueError("'findings' is not a list")
    booted, uptime = data.get("boot", ""), data.get("uptime", 0.0)
    if not isinstance(booted, str) or not isinstance(uptime, float):
        raise ValueError("'boot' is not a text, or 'uptime' is not a time")
    return SavedSnapshot(
        float(at),
        stats,
        _errors(data, "silent_nsqds"),
        _errors(data, "silent_nsqlookupds"),
        tuple(map(_finding, entries)),
        _times(data) if "times" in data else {},
        booted,
        uptime,
    )


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < CALENDAR_END


def _times(data: dict[str, Any]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for name, span in _object(data, "times").items():
        if not (isinstance(span, list) and len(span) == 2 and all(map(_is_time, span))):
            raise ValueError("'times' has a value that is not a pair of times")
        found[name] = span[0], span[1]
    return found


def _object(data: dict[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{name!r} is not an object")
    return value


def _errors(data: dict[str, Any], name: str) -> dict[str, str]:
    value = _object(data, name)
    _check_texts(name, value.values())
    return value


def _check_texts(name: str, values: Iterable[object]) -> None:
    if not all(isinstance(each, str) for each in values):
        raise ValueError(f"{name!r} has a value that is not a text")


def _finding(entry: object) -> Finding:
    names = {each.name for each in fields(Finding)}
    if not isinstance(entry, dict) or entry.keys() != names:
        raise ValueError("a finding has other fields")
    _check_texts("findings", entry.values())
    return Finding(**entry)
