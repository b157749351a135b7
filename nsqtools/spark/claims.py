"""Ownership of a checkpoint: a lock for one run at a time, and a stamp of the run's settings."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, LockedError, OutputError
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark.checkpoints import has_forgotten, is_finished, is_unused
from nsqtools.spark.hadoop import read_text, remove_all, write_json
from nsqtools.spark.places import as_url, below, local
from nsqtools.spark.segments import as_output_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_STAMP = "nsq-source"
_LOCK = "lock"
_JAVA = "java"
_JAVA_ENDS = 60.0  # seconds
_LOOK = 0.1


class Stamp:
    """The settings of a checkpoint's batches: ``topics``, ``channel``, ``output`` and others.

    A killed run may leave the next batch half written. A run with the same settings overwrites it
    with the same rows in the same directories; a run with other settings must remove it first.
    """

    def __init__(self, spark: SparkSession, checkpoint: str, stamp: dict[str, Any]) -> None:
        """Compare the settings of the last run; a checkpoint without a stamp gets one.

        Raises ConfigError for other topics, another channel or another output, and OutputError if
        the stamp cannot be read.
        """
        self._spark = spark
        self._url = below(as_url(checkpoint), _STAMP)
        self._stamp = stamp
        text = read_text(spark, self._url)
        # Without a stamp what was left is not known: until that is removed this is not like it.
        said = stamp | {"settled": False} if text is None else _parse(checkpoint, text)
        self._changed = said != stamp
        if text is None:
            write_json(spark, self._url, said)
        else:
            _check(checkpoint, said, stamp)

    def make_way(self, output: str, pattern: str) -> None:
        """Before a batch is written, remove what a run with other settings may have left of it.

        ``pattern`` matches the batch's directories in ``output``, which may be empty.
        """
        if self._changed and output:
            remove_all(self._spark, output, pattern)
        self.settle()

    def settle(self) -> None:
        """Write the stamp, after files of other settings have been removed."""
        if self._changed:
            write_json(self._spark, self._url, self._stamp)
            self._changed = False


def stamp_of(
    source: Mapping[str, str], checkpoint: str, output: str, **more: Any
) -> dict[str, Any]:
    """Return the settings that batches depend on, from the source's options.

    With other settings, batches have other rows or other places. An output that contains its
    checkpoint is identified by the relative path, so that it can be moved.
    """
    topics = sorted({each.strip() for each in source["subscribe"].split(",")})
    place, state = _real(output), _real(checkpoint)
    if place and state.startswith(f"{place}/"):
        place = "/".join([".."] * state[len(place) :].count("/"))
    return {"topics": topics, "channel": source["channel"], "output": place, **more}


def _real(place: str) -> str:
    """The only name of a place of this machine; others are what they are called."""
    path = local(place) if place else None
    return place.rstrip("/") if path is None else os.path.realpath(path)


def check_stamp(checkpoint: str, stamp: Mapping[str, Any]) -> None:
    """Raise the errors of Stamp without Spark, for a local checkpoint only."""
    path = local(checkpoint)
    if path is not None:
        with as_output_error(str(path / _STAMP)), contextlib.suppress(FileNotFoundError):
            text = (path / _STAMP).read_text("utf-8", "replace")
            _check(checkpoint, _parse(checkpoint, text), stamp)


def is_settled(checkpoint: str, staging: str, stamp: Mapping[str, Any]) -> bool:
    """Whether a local checkpoint has no work left.

    It is then unused, or its last run had the same settings.
    """
    path = local(checkpoint)
    if path is None or not is_finished(checkpoint):
        return False
    try:
        said = json.loads((path / _STAMP).read_text())
    except FileNotFoundError:
        return not (path / "offsets").exists()
    return bool(said == stamp) and not has_forgotten(checkpoint, staging)


def _parse(checkpoint: str, text: str) -> dict[str, Any]:
    """What a stamp says; raises OutputError if it is damaged."""
    with contextlib.suppress(ValueError):
        if isinstance(found := json.loads(text), dict):
            return found
    raise OutputError(
        f"{below(checkpoint, _STAMP)}: damaged: remove it if the last run had the same "
        "--topic, --channel and --output, or give another --checkpoint"
    )


def _check(checkpoint: str, said: Mapping[str, Any], stamp: Mapping[str, Any]) -> None:
    if is_unused(checkpoint):
        return
    for name, flag in (("topics", "--topic"), ("channel", "--channel")):
        if said.get(name) != stamp[name]:
            raise ConfigError(
                f"--checkpoint {checkpoint}: belongs to {flag} {_words(said.get(name))}, not "
                f"{_words(stamp[name])}: give another --checkpoint, or that {flag}"
            )
    before, now = said.get("output"), stamp["output"]
    if before and now and before != now:
        raise ConfigError(
            f"--checkpoint {checkpoint}: belongs to --output {_place(before, checkpoint)}, not"
            f" {_place(now, checkpoint)}: give another --checkpoint, or that --output; if the "
            f"output was moved, remove {below(checkpoint, _STAMP)}"
        )


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _place(output: str, checkpoint: str) -> str:
    """An output as ``stamp_of`` has it, by its name."""
    above = output.split("/").count("..") if output.startswith("..") else 0
    return _real(checkpoint).rsplit("/", above)[0] if above else output


@contextlib.contextmanager
def only_one(checkpoint: str, flag: str = "--checkpoint") -> Iterator[None]:
    """Hold the lock of a local checkpoint, or of the directory that ``flag`` names.

    Raises LockedError if another run holds it, and ConfigError or OutputError if the directory
    cannot be created.

    Spark itself notices two runs only when one of them fails. Directories created for the lock are
    removed again if they remain empty.
    """
    path = local(checkpoint)
    if path is None:
        yield
        return
    made = [each for each in (path, *path.parents) if not os.path.exists(each)]
    lock = Lock(str(path / _LOCK))
    try:
        try:
            held = lock.acquire()
        except OSError as error:
            kind = OutputError if error.errno in (errno.ENOSPC, errno.EDQUOT) else ConfigError
            raise kind(f"{flag} {checkpoint}: {error.strerror}: give another {flag}") from error
        if not held:
            raise lock.refusal("give another --checkpoint")
        _outlive(path / _JAVA)
        yield
    finally:
        lock.release()
        with contextlib.suppress(OSError):
            for each in made:
                each.rmdir()


def note_java(checkpoint: str, spark: SparkSession) -> None:
    """Record the Java process of this run, for the next holder of the lock."""
    path = local(checkpoint)
    gateway: Any = spark.sparkContext._gateway
    process = gateway.proc if gateway else None
    if path is not None and process is not None:
        (path / _JAVA).write_text(f"{process.pid} {_began(process.pid)}")


def _outlive(note: Path) -> None:
    """Wait until the Java process of a run that was killed has ended.

    That takes it a moment, in which it might still put a batch in place, in the midst of the same
    being done anew. Raises LockedError if it does not end.
    """
    try:
        pid, began = note.read_text().split()
    except (OSError, ValueError):
        return
    deadline = time.monotonic() + _JAVA_ENDS
    while began and _began(int(pid)) == began:
        if time.monotonic() > deadline:
            raise LockedError(
                f"the Java process {pid} of a killed run is still running: try again when it has "
                "ended"
            )
        time.sleep(_LOOK)


def _began(pid: int) -> str:
    """When a process began, in the kernel's words; empty if it has ended or nobody knows."""
    try:
        state, *_, began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:20]
    except (OSError, ValueError):
        return ""
    return "" if state == "Z" else began
