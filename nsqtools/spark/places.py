"""Where a stream writes and keeps its state: paths and URLs, what a crash leaves, what lasts.

A path without a scheme is one of this machine, or of a file system that all machines share,
whatever Spark's default file system is. What is done here to local directories is left, of others
such as HDFS or S3, to their file system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, LockedError, NSQError, OutputError
from nsqtools.sinks.files.locks import Lock
from nsqtools.sinks.files.publish import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

OURS = "_nsqtools"
"""The directory of an output that has our own files; readers skip it for its underscore."""

_STAMP = "nsq-source"
_LOCK = "lock"
_JAVA = "java"
_JAVA_ENDS = 60.0  # seconds
_LOOK = 0.1
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_WILD = re.compile(r"([\\{}\[\]*?])")
_KILLED = ".spark-staging-"


def local(place: str) -> Path | None:
    """The absolute path of a path or ``file:`` URL; None for a URL of another file system."""
    found = _SCHEME.match(place)
    if not found:
        return Path(place).absolute()
    if found[1].lower() != "file":
        return None
    return Path("/" + place[found.end() :].lstrip("/"))


def as_url(place: str) -> str:
    """A path or URL as Spark takes it, whatever its default file system is."""
    path = local(place)
    return place if path is None else f"file://{path}"


def below(place: str, *names: str) -> str:
    """A place within a place."""
    return "/".join((place.rstrip("/"), *names))


def check_output(place: str, flag: str) -> None:
    """Make a local directory that is to be written to; raises ConfigError or OutputError."""
    path = local(place)
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    except OSError as error:
        kind = OutputError if error.errno in (errno.ENOSPC, errno.EDQUOT) else ConfigError
        raise kind(f"{flag} {place}: {error.strerror}") from error


@contextlib.contextmanager
def only_one(checkpoint: str) -> Iterator[None]:
    """Hold the lock of a local checkpoint; raises LockedError if another run has it.

    Spark itself notices two runs, but only by the failure of one of them.
    """
    path = local(checkpoint)
    if path is None:
        yield
        return
    path.mkdir(parents=True, exist_ok=True)
    lock = Lock(str(path / _LOCK))
    if not lock.acquire():
        raise LockedError(f"{lock}: try again when that has ended, or give another --checkpoint")
    try:
        _outlive(path / _JAVA)
        yield
    finally:
        lock.release()


def note_java(checkpoint: str, spark: SparkSession) -> None:
    """Note the Java process that works for a checkpoint, for who holds its lock next."""
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
            raise LockedError(f"the Java process {pid} of a run that was killed has not ended yet")
        time.sleep(_LOOK)


def _began(pid: int) -> str:
    """When a process began, in the kernel's words; empty if it has ended or nobody knows."""
    try:
        state, *_, began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:20]
    except (OSError, ValueError):
        return ""
    return "" if state == "Z" else began


@contextlib.contextmanager
def writing(output: str) -> Iterator[None]:
    """Be one of those who write to an output.

    Who is alone removes what killed ones left: Spark writes to a directory with a dot before it
    moves, and not every reader skips that.
    """
    path = local(output)
    if path is None:
        yield
        return
    folder = path / OURS
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / "writers", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in path.glob(f"{_KILLED}*"):
                shutil.rmtree(left, ignore_errors=True)
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def sync(root: Path, leaves: Iterable[Path]) -> None:
    """Make the files of directories last, and all names from ``root`` down to them.

    Raises OutputError.
    """
    above: set[Path] = set()
    try:
        for leaf in leaves:
            for entry in os.scandir(leaf):
                if entry.is_file(follow_symlinks=False):
                    _sync_file(entry.path)
            above.add(leaf)
            above.update(each for each in leaf.parents if each.is_relative_to(root))
        for folder in sorted(above, key=lambda each: len(each.parts), reverse=True):
            sync_directory(str(folder))
    except OSError as error:
        raise OutputError(f"{error.filename or root}: {error.strerror}") from error


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_finished(checkpoint: str) -> bool:
    """Whether a local checkpoint has no batch that was begun and is not done."""
    path = local(checkpoint)
    if path is None:
        return False
    with contextlib.suppress(OSError):
        return _last(path / "offsets") == _last(path / "commits")
    return False


def is_settled(checkpoint: str, staging: str, stamp: Mapping[str, Any]) -> bool:
    """Whether nothing of a local checkpoint is left to do, and a run like this one began it."""
    path = local(checkpoint)
    if path is None or not is_finished(checkpoint):
        return False
    try:
        if json.loads((path / _STAMP).read_text()) != stamp:
            return False
        batch = _last(path / "offsets")
        return batch < 0 or not _forgotten(path / "offsets" / str(batch), staging)
    except (OSError, ValueError, LookupError, NSQError):
        return False


def has_orphans(checkpoint: str, staging: str) -> bool:
    """Whether there is no checkpoint yet, and messages are staged that it cannot know."""
    state, stage = local(checkpoint), local(staging)
    if state is None or stage is None or (state / "offsets").exists():
        return False
    return any(stage.glob("*/b*/p*/*/*.arrow"))


def _forgotten(offsets: Path, staging: str) -> bool:
    """Whether a batch is staged that a power failure has taken out of Spark's log."""
    from nsqtools.spark.ledger import Ledger
    from nsqtools.spark.plans import Offset
    from nsqtools.spark.stores import make_store

    offset = Offset.from_json(json.loads(offsets.read_text().splitlines()[-1]))
    return Ledger(*make_store(staging), offset.stream).staged(offset.batch + 1) is not None


def _last(folder: Path) -> int:
    """The highest batch of a log of Spark's; -1 if there is none."""
    try:
        names = [each.name for each in folder.iterdir()]
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def is_unlike(spark: SparkSession, checkpoint: str, stamp: Mapping[str, Any]) -> bool:
    """Whether the last run of a checkpoint was unlike this one; a new one is claimed for it.

    Raises ConfigError if it was of other topics or another channel.
    """
    said = _read(spark, below(as_url(checkpoint), _STAMP))
    if said is None:
        claim(spark, checkpoint, stamp)
        return False
    _check(checkpoint, said, stamp)
    return said != stamp


def check_claim(checkpoint: str, stamp: Mapping[str, Any]) -> None:
    """As ``is_unlike``, but without Spark and of a local checkpoint alone; raises ConfigError."""
    path = local(checkpoint)
    if path is not None:
        with contextlib.suppress(OSError, ValueError):
            _check(checkpoint, json.loads((path / _STAMP).read_text()), stamp)


def _check(checkpoint: str, said: Mapping[str, Any], stamp: Mapping[str, Any]) -> None:
    for name, flag in (("topics", "--topic"), ("channel", "--channel")):
        if said.get(name) != stamp[name]:
            raise ConfigError(
                f"--checkpoint {checkpoint}: it is of {flag} {_words(said.get(name))}, not of "
                f"{_words(stamp[name])}: give another --checkpoint, or that {flag}"
            )


def claim(spark: SparkSession, checkpoint: str, stamp: Mapping[str, Any]) -> None:
    """Note in a checkpoint what a run is like: its ``topics``, its ``channel``, and the rest."""
    _write(spark, below(as_url(checkpoint), _STAMP), json.dumps(stamp))


def remove_all(spark: SparkSession, output: str, pattern: str) -> None:
    """Remove directories in an output, by a pattern such as ``date=*/hour=*``."""
    found = _WILD.sub(r"\\\1", as_url(output))
    _, files, path = _hadoop(spark, below(found, pattern))
    for each in files.globStatus(path) or ():
        files.delete(each.getPath(), True)


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _read(spark: SparkSession, place: str) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no file, or none that is whole."""
    jvm, files, path = _hadoop(spark, place)
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        found = json.loads(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    except ValueError:
        return None
    finally:
        stream.close()
    return found if isinstance(found, dict) else None


def _write(spark: SparkSession, place: str, text: str) -> None:
    _, files, path = _hadoop(spark, place)
    stream = files.create(path, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def _hadoop(spark: SparkSession, place: str) -> tuple[Any, Any, Any]:
    """The JVM, Hadoop's file system of a URL, and the URL as its path."""
    jvm: Any = spark.sparkContext._jvm
    java: Any = spark.sparkContext._jsc
    path = jvm.org.apache.hadoop.fs.Path(place)
    return jvm, path.getFileSystem(java.hadoopConfiguration()), path
