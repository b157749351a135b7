"""What is done for a published file: manifest, latest link, retention, and the user's command."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from nsqtools.policy.retention import Kept
from nsqtools.sinks.files.journal import ON_ROTATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsqtools.policy.retention import Retention
    from nsqtools.records.manifest import Published
    from nsqtools.sinks.files.hooks import Hook
    from nsqtools.sinks.files.journal import Entry, Journal
    from nsqtools.sinks.files.listing import Found
    from nsqtools.sinks.files.manifest import LatestLink, Manifest

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """What of a topic was published; a file that is continued counts each time, with all of it."""

    files: int = 0
    records: int = 0
    size: int = 0


class Care:
    """An ``archive.Aftercare`` made of those parts that were asked for; threads may share it.

    ``found`` lists the published files that are there, and is asked once, when the first of them
    may have to go.
    """

    def __init__(
        self,
        *,
        manifest: Manifest | None,
        link: Callable[[str], LatestLink] | None,
        retention: Retention,
        hook: Hook | None,
        journal: Journal,
        found: Callable[[], Iterable[Found]],
    ) -> None:
        self._manifest = manifest
        self._link = link
        self._retention = retention
        self._hook = hook
        self._journal = journal
        self._found = found
        self._files: dict[str, dict[str, Kept]] | None = None
        self._listing = threading.Lock()
        self._tallies: dict[str, Tally] = {}
        self._counting = threading.Lock()

    @property
    def owes(self) -> tuple[str, ...]:
        """As Aftercare."""
        return (ON_ROTATE,) if self._hook else ()

    def check(self) -> None:
        """Before anything is written; raises ConfigError or OSError."""
        if self._manifest:
            self._manifest.check()

    def record(self, published: Published) -> None:
        """As Aftercare: add the manifest's line, unless it is there already. Raises OSError."""
        if self._manifest and not self._manifest.has(published.path, sha256=published.sha256):
            self._manifest.append(published)

    def settle(self, entry: Entry) -> None:
        """As Aftercare: have the command run, if there is one now."""
        if self._hook and ON_ROTATE in entry.owes:
            done = partial(self._journal.settle, entry, ON_ROTATE)
            self._hook.submit(entry.published, done)

    def follow(self, entry: Entry) -> None:
        """As Aftercare."""
        published = entry.published
        self._count(published)
        self.settle(entry)
        if self._link:
            try:
                self._link(published.topic).point(published.path)
            except OSError as error:
                log.warning("--latest-link %s: %s", error.filename, error.strerror)
        if not self._retention.unlimited:
            files = self._listed().setdefault(published.topic, {})
            files[published.path] = Kept(published.path, published.size, time.time_ns())
            self._delete(files)

    def prune(self) -> None:
        """Delete what is over its age, or was over a limit before the run; blocks."""
        if not self._retention.unlimited:
            for files in list(self._listed().values()):
                self._delete(files)

    def _listed(self) -> dict[str, dict[str, Kept]]:
        with self._listing:
            if self._files is None:
                self._files = {}
                for each in self._found():
                    kept = Kept(each.path, each.size, each.mtime_ns)
                    self._files.setdefault(each.topic, {})[each.path] = kept
            return self._files

    def tallies(self) -> dict[str, Tally]:
        """What was published until now, by topic; it does not block."""
        with self._counting:
            return {topic: replace(tally) for topic, tally in self._tallies.items()}

    def _count(self, published: Published) -> None:
        with self._counting:
            tally = self._tallies.setdefault(published.topic, Tally())
            tally.files += 1
            tally.records += published.records
            tally.size += published.size

    def _delete(self, files: dict[str, Kept]) -> None:
        known = list(files.values())
        if self._retention.surplus(known, time.time_ns()):
            owing = self._journal.owing()
            known = [replace(each, busy=each.path in owing) for each in known]
        for kept in self._retention.surplus(known, time.time_ns()):
            try:
                os.unlink(kept.path)
            except FileNotFoundError:
                pass
            except OSError as error:
                log.warning("%s is not deleted: %s", kept.path, error.strerror)
                continue
            else:
                log.info("deleted %s", kept.path)
            files.pop(kept.path, None)  # another thread may have been here
