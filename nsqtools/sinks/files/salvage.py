"""Leftovers of a crash: cut back to their last whole record, and published."""

from __future__ import annotations

import hashlib
import logging
import os
from itertools import count
from typing import TYPE_CHECKING

from nsqtools.errors import NSQError, OutputError
from nsqtools.sinks.compression import method_of
from nsqtools.sinks.files import publish
from nsqtools.sinks.files.manifest import Published
from nsqtools.sinks.recovery import inspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from hashlib import _Hash

    from nsqtools.sinks.files.leftovers import Found
    from nsqtools.sinks.files.rules import Aftercare, Rules
    from nsqtools.sinks.recovery import Inspection

log = logging.getLogger(__name__)


def salvage(leftovers: Iterable[Found], rules: Rules, aftercare: Aftercare) -> int:
    """Publish work files that no living process holds; how many could not be.

    Each is logged, and one that fails does not keep the others from it.
    """
    failures = 0
    for found in leftovers:
        try:
            fd = publish.hold(found.path)
            if fd is None:
                log.info("%s: another process writes to it", found.path)
                continue
            try:
                _salvage(found, fd, rules, aftercare)
            finally:
                os.close(fd)
        except (OSError, NSQError) as error:
            failures += 1
            reason = getattr(error, "strerror", None) or str(error)
            log.error("%s, which a crash left behind, is not published: %s", found.path, reason)
    return failures


def good_part(fd: int, path: str, rules: Rules) -> Inspection:
    """Cut an archive back to its last whole record, setting what follows it aside.

    Of a compressed file just the member that a crash kept from being written whole is cut off: it
    was never synced. What follows the last record of a plain one may have been, and be the fault
    of another --format or --delimiter. Raises OSError.
    """
    inspection = _inspect(fd, path, rules)
    size = os.fstat(fd).st_size
    if inspection.cut_short:
        os.ftruncate(fd, inspection.good)
        os.fsync(fd)
        log.info("%s: %s: cut off", path, inspection.problem)
    elif inspection.good < size:
        aside = publish.set_aside(fd, path, inspection.good, size)
        log.warning(
            "%s: %s: its last %d bytes are put aside in %s",
            path,
            inspection.problem or "torn",
            size - inspection.good,
            aside,
        )
    return inspection


def _inspect(fd: int, path: str, rules: Rules) -> Inspection:
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        return inspect(
            file,
            compression=method_of(path.removesuffix(publish.WORK)),
            json=rules.format == "json",
            length_prefix=rules.format == "length-prefixed",
            delimiter=rules.delimiter,
        )


def digest_of(fd: int) -> _Hash:
    """The sha256 of an open file, as far as it goes."""
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256")


def _salvage(found: Found, fd: int, rules: Rules, aftercare: Aftercare) -> None:
    known = publish.is_published(found.path, map(rules.target_path, _names(found)))
    if known is not None:
        relative = os.path.relpath(known, rules.output_dir)
        inspection = _inspect(fd, found.path, rules)
    else:
        inspection = good_part(fd, found.path, rules)
        if not inspection.good:
            rules.retire(found.path)
            return
        relative = _publish(found, rules)
        log.warning(
            "published %s, which a crash left behind: %d records", relative, inspection.records
        )
    published = _published(relative, found, fd, rules, inspection.records)
    aftercare.record(published)
    rules.retire(found.path)
    aftercare.follow(published)


def _names(found: Found) -> Iterator[str]:
    """The relative name it was to have, and those it gets if others have that."""
    yield found.relative
    if "<REV>" in found.name:
        for revision in count(found.revision + 1):
            yield found.name.replace("<REV>", f"-{revision:06d}")


def _publish(found: Found, rules: Rules) -> str:
    for relative in _names(found):
        try:
            publish.publish(found.path, rules.target_path(relative))
        except FileExistsError:
            continue
        return relative
    raise OutputError(f"{rules.target_path(found.relative)} exists: move one of them away")


def _published(relative: str, found: Found, fd: int, rules: Rules, records: int) -> Published:
    return Published(
        path=rules.target_path(relative),
        name=relative,
        topic=found.topic,
        records=records,
        size=os.fstat(fd).st_size,
        sha256=digest_of(fd).hexdigest() if rules.digest else "",
        format=rules.format,
        delimiter=rules.delimiter_text if rules.format == "raw" else "",
        compression=method_of(relative),
    )
