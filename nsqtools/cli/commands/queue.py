"""``nsqtools queue``: the disk queues in nsqd's data path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.options import CommandGroup, argument, options
from nsqtools.config.option import Option
from nsqtools.config.queue import (
    ChannelQueueOptions,
    QueueCatOptions,
    QueueListOptions,
    QueueOptions,
    QueuePushOptions,
)
from nsqtools.config.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.records.diskqueue.queuefiles import DiskQueue, QueueMeta, QueueReader
    from nsqtools.sinks.appender import QueueAppender

_STDIN = 0
_READ_SIZE = 256 << 10
_COLUMNS = ("topic", "channel", "messages", "bytes", "oldest", "newest", "meta", "damaged", "bad")
"""The columns of ``queue ls``."""

_data_path = argument("data_path", Option("path", "nsqd's --data-path."), metavar="DATA_PATH")


@click.group("queue", cls=CommandGroup)
def queue() -> None:
    """List, read and append to nsqd's disk queues.

    nsqd writes the messages beyond its memory queue to its --data-path, and all others when it
    stops. ls and cat only read, so nsqd may be running. They do not see the messages that nsqd has
    in memory, in flight or deferred. They may show messages delivered a moment ago, because nsqd
    stores its position at most every two seconds. Stop nsqd before you use push.
    """


@queue.command("ls", essential="json")
@_data_path
@options()
def ls(*, data_path: str, how: QueueListOptions) -> None:
    """List disk queues.

    All files are read. The columns are: topic; channel (- for the queue of the topic itself);
    messages; bytes of their bodies; time of the oldest; time of the newest; depth by nsqd's meta
    file; damaged bytes; .bad files.
    """
    from nsqtools.cli.output import print_json, print_rows

    found = [_tally(each, how.max_msg_size) for each in _queues(data_path)]
    if how.json:
        print_json({"queues": found})
        return
    rows = [
        [
            *(each["topic"], each["channel"] or "-", str(each["messages"]), str(each["bytes"])),
            *(_time(each["oldest"]), _time(each["newest"])),
            str(each["meta"]["depth"]) if each["meta"] else "-",
            *(str(each["damaged"]), str(len(each["bad"]))),
        ]
        for each in found
    ]
    print_rows(_COLUMNS, rows)


@queue.command(
    "cat", essential="topic channel count since until damaged json timestamps where decode"
)
@_data_path
@options()
def cat(*, data_path: str, which: QueueOptions, form: QueueCatOptions) -> None:
    """Print the messages of a disk queue, and leave them there.

    Without --channel, cat prints the messages of the topic itself, not yet taken by a channel.
    After damage, cat looks for the next message and logs the skipped bytes; the exit status is then
    4.
    """
    import logging

    from nsqtools.records.diskqueue.queuefiles import QueueReader
    from nsqtools.tasks import run_loop

    found = _find(data_path, which)
    meta = _meta_of(found)
    reader = QueueReader(found, meta, form.max_msg_size, bad=form.damaged)
    printed = run_loop(_print(found, reader, form))
    if found.bad and not form.damaged:
        logging.getLogger(__name__).warning(
            "%s left out, which nsqd gave up: --damaged reads it",
            counted(len(found.bad), ".bad file"),
        )
    elif meta and meta.depth and not (printed or reader.skipped or form.since or form.until):
        logging.getLogger(__name__).warning(
            "%s: has %s, but no file has them", found.path("meta"), counted(meta.depth, "message")
        )
    for path, size in reader.skipped.items():
        logging.getLogger(__name__).warning("%s: damaged: %s skipped", path, counted(size, "byte"))
    if reader.skipped:
        raise Ended(Exit.PARTIAL)


@queue.command("push", essential="topic channel file delimiter json dry_run")
@_data_path
@options()
def push(*, data_path: str, which: ChannelQueueOptions, form: QueuePushOptions) -> None:
    """Append messages to the disk queue of one channel, while nsqd is stopped.

    pub sends a message to all channels of its topic; push adds it to a single channel. Messages are
    the lines of --file or of standard input, as for pub. With --json they keep their time of
    publishing. They get new ids. Empty messages are skipped.
    """
    import logging

    from nsqtools.sinks.appender import QueueAppender

    with QueueAppender(data_path, which.topic, which.channel, dry_run=form.dry_run) as appender:
        for file in form.file or ("-",):
            _add(appender, file, form)
        appender.commit()
    what = f"{counted(appender.messages, 'message')}, {counted(appender.bytes, 'byte')}"
    if form.dry_run:
        click.echo(f"{which.topic}:{which.channel}: {what}")
    else:
        logging.getLogger(__name__).info("%s appended", what)


def _queues(data_path: str) -> list[DiskQueue]:
    """The queues in a data path; warns of each file left out.

    Raises ConfigError if this is not the data path of an nsqd.
    """
    import logging
    import os

    from nsqtools.errors import ConfigError
    from nsqtools.records.diskqueue.queuefiles import disk_queues

    try:
        found, strange = disk_queues(data_path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"{data_path}: {error.strerror}") from error
    if not found and not os.path.exists(os.path.join(data_path, "nsqd.dat")):
        raise ConfigError(f"{data_path}: not the data path of an nsqd")
    for reason in strange:
        logging.getLogger(__name__).warning("left out: %s", reason)
    return found


def _find(data_path: str, which: QueueOptions) -> DiskQueue:
    """The queue named by the options; raises NSQError if it does not exist."""
    from nsqtools.errors import NSQError

    for each in _queues(data_path):
        if (each.topic, each.channel) == (which.topic, which.channel):
            return each
    whose = f"channel {which.channel} of topic" if which.channel else "topic"
    raise NSQError(f"{data_path}: no disk queue of {whose} {which.topic}: see nsqtools queue ls")


def _meta_of(found: DiskQueue) -> QueueMeta | None:
    """The metadata of a queue; None if its meta file is missing or, after a warning, damaged.

    All files are read in this case.
    """
    import logging

    from nsqtools.errors import RecordError

    try:
        return found.meta()
    except RecordError as error:
        logging.getLogger(__name__).warning("%s; all its files are read", error)
        return None


def _tally(found: DiskQueue, max_msg_size: int) -> dict[str, Any]:
    """The contents of a queue, for JSON. Times are in ns since the epoch, None without messages."""
    from nsqtools.records.diskqueue.queuefiles import QueueReader

    meta = _meta_of(found)
    reader = QueueReader(found, meta, max_msg_size)
    messages = size = 0
    oldest = newest = None
    for batch in filter(None, reader.batches()):
        messages += len(batch)
        size += sum(len(each.body) for each in batch)
        times = [each.timestamp for each in batch]
        oldest = min(times) if oldest is None else min(oldest, *times)
        newest = max(times) if newest is None else max(newest, *times)
    position = None
    if meta:
        position = {"depth": meta.depth, "read": meta.read._asdict(), "write": meta.write._asdict()}
    return {
        "topic": found.topic,
        "channel": found.channel,
        "messages": messages,
        "bytes": size,
        "oldest": oldest,
        "newest": newest,
        "meta": position,
        "damaged": sum(reader.skipped.values()),
        "bad": [f"{found.path(n)}.bad" for n in found.bad],
    }


def _time(ns: int | None) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(ns // 10**9, UTC):%FT%TZ}" if ns is not None else "-"


async def _print(found: DiskQueue, reader: QueueReader, form: QueueCatOptions) -> int:
    """Print the messages; returns their number."""
    import asyncio

    from nsqtools.cli.output import STDOUT, selection_of, stream_writer
    from nsqtools.clock import wall
    from nsqtools.config.units import parse_time
    from nsqtools.sinks.pipes import Output

    now = wall()
    since, until = (parse_time(each, now) if each else None for each in (form.since, form.until))
    writer, selection = stream_writer(form), selection_of(form)
    output = Output(STDOUT, "standard output")
    printed = 0
    await output.open()
    try:
        count = 0 if form.where else form.count
        for batch in reader.batches(since=since, until=until, count=count):
            for messages in selection.shown(batch) if selection else (batch,):
                shown = messages[: form.count - printed] if form.count else messages
                await output.write(writer.render(found, shown))
                printed += len(shown)
                await asyncio.sleep(0)  # a signal may have come
            if form.count and printed == form.count:
                break
    finally:
        output.close()
        if selection:
            selection.close()
    return printed


def _add(appender: QueueAppender, file: str, form: QueuePushOptions) -> None:
    """Add the messages of a file, or of standard input for ``-``; raises RecordError."""
    from nsqtools.cli.output import layout_of
    from nsqtools.clock import wall_ns
    from nsqtools.errors import RecordError
    from nsqtools.records.envelope import timestamp_of
    from nsqtools.records.forms import make_reader

    timestamps: list[int] = []

    def observe(envelope: dict[str, Any]) -> None:
        timestamps.append(timestamp_of(envelope) if "timestamp" in envelope else wall_ns())

    reader = make_reader(layout_of(form), max_size=form.max_msg_size, observe=observe)
    with open(_STDIN if file == "-" else file, "rb", buffering=0, closefd=file != "-") as source:
        try:
            while chunk := source.read(_READ_SIZE):
                _add_records(appender, reader.feed(chunk), timestamps)
            _add_records(appender, reader.finish(), timestamps)
        except RecordError as error:
            name = "standard input" if file == "-" else file
            raise RecordError(f"{name}: {error}; nothing was appended") from error


def _add_records(appender: QueueAppender, records: Sequence[bytes], times: list[int]) -> None:
    """Add the non-empty records, with their times from the list, or with now if it is empty."""
    from nsqtools.clock import wall_ns

    taken = times[: len(records)] or [wall_ns()] * len(records)
    del times[: len(records)]
    kept = [(body, at) for body, at in zip(records, taken, strict=True) if body]
    appender.add([body for body, _ in kept], [at for _, at in kept])
