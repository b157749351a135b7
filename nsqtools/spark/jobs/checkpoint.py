"""A checkpoint of Spark: its logs, the staging of its stream, and the settings of its runs."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark.lake.folders import sync_log
from nsqtools.spark.staging.ledger import Ledger, refuse_orphans
from nsqtools.stores import open_store
from nsqtools.stores.interface import as_output_error
from nsqtools.stores.places import below, local

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqtools.spark.source.plans import BatchPlan

log = logging.getLogger(__name__)

_OFFSETS, _COMMITS = "offsets", "commits"
_STAMP = "nsq-source"
_GROUP = "streams"


class Checkpoint:
    """A checkpoint and the staging of its streams, in any stores; both may not exist yet.

    Methods raise OutputError for errors of the stores.
    """

    def __init__(self, place: str, staging: str) -> None:
        """Raises ConfigError for places that are not supported."""
        self.place = place
        self.store = open_store(place, "--checkpoint")
        self.staging = open_store(staging, "--staging")

    def is_finished(self) -> bool:
        """Whether there is no unfinished batch."""
        return self._last(_OFFSETS) == self._last(_COMMITS)

    def planned(self) -> list[BatchPlan]:
        """Return the plans of the batches that are not known to be committed."""
        with as_output_error(self.staging.place):
            found = [Ledger(self.staging, name).pending() for name in self._streams()]
        return [plan for plan in found if plan]

    def is_unused(self) -> bool:
        """Whether no batch has been planned."""
        return self._last(_OFFSETS) < 0

    def is_settled(self, stamp: Mapping[str, Any]) -> bool:
        """Whether there is no work left: it is unused, or its last run had the same settings.

        Raises OutputError if it cannot be read.
        """
        if not self.is_finished():
            return False
        found = self.read_stamp()
        if found is None:
            return self.is_unused()
        return found == {**stamp, _GROUP: found.get(_GROUP)} and not self.planned()

    def staged(self) -> int:
        """Return the number of messages in the staging."""
        with as_output_error(self.staging.place):
            return sum(Ledger(self.staging, name).rows() for name in self.staging.list(""))

    def clean(self, batches: Mapping[str, int]) -> None:
        """Remove the staging of each stream up to a batch that Spark has committed.

        Raises nothing: failures are logged, and the next run tries again.
        """
        try:
            if (path := local(self.place)) is not None:
                sync_log(str(path), _COMMITS)
        except OutputError as error:
            log.warning("%s", error)
            return
        for stream, batch in batches.items():
            Ledger(self.staging, stream).clean(batch)

    def group(self) -> str:
        """Return the beginning of the names of its streams; empty if that is not known."""
        found = self.read_stamp()
        if found is not None and _GROUP in found:
            return str(found[_GROUP])
        return uuid4().hex[:16] if self.is_unused() else ""

    def check_orphans(self) -> None:
        """Raise OutputError if messages are staged that belong to another checkpoint."""
        refuse_orphans(self.staging, self.group())

    def read_stamp(self) -> Mapping[str, Any] | None:
        """Return the settings of the last run; None if there are none."""
        try:
            with as_output_error(self.place):
                if isinstance(found := json.loads(self.store.get(_STAMP)), dict):
                    return found
        except FileNotFoundError:
            return None
        except ValueError:
            pass
        raise OutputError(
            f"{below(self.place, _STAMP)}: damaged: remove it if the last run had the same "
            "--topic, --channel and --output, or give another --checkpoint"
        )

    def _streams(self) -> list[str]:
        group = self.group()
        return sorted(name for name in self.staging.list("") if name.startswith(group))

    def _last(self, folder: str) -> int:
        """The highest batch of a log of Spark's; -1 if there is none."""
        with as_output_error(self.place):
            names = self.store.list(folder)
        return max((int(name) for name in names if name.isdecimal()), default=-1)


class Stamp:
    """The settings of a checkpoint's batches: ``topics``, ``channel``, ``output`` and others.

    A killed run may leave the next batch half written. A run with the same settings overwrites it
    with the same rows in the same files; a run with other settings must remove it first.
    """

    def __init__(self, checkpoint: Checkpoint, stamp: Mapping[str, Any]) -> None:
        """Compare the settings of the last run; a checkpoint without a stamp gets one.

        Raises as ``check`` does.
        """
        self.checkpoint = checkpoint
        self.group = checkpoint.group()
        """The beginning of the names of its streams, for the source."""
        self._stamp = {**stamp, _GROUP: self.group}
        found = self.check(checkpoint, stamp)
        self.changed = found != self._stamp and not checkpoint.is_finished()
        """Whether an unfinished batch may have left files of other settings."""
        if not self.changed and found != self._stamp:
            self._write(self._stamp)
        elif found is None or _GROUP not in found:
            self._write({**self._stamp, "settled": False})

    @staticmethod
    def check(checkpoint: Checkpoint, stamp: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the settings of the last run; None if there are none.

        Raises ConfigError for other topics, another channel or another output, and OutputError if
        the stamp cannot be read.
        """
        found = checkpoint.read_stamp()
        if found is not None and not checkpoint.is_unused():
            _compare(checkpoint.place, found, stamp)
        return found

    def confirm(self) -> None:
        """Write the stamp, after files of other settings have been removed."""
        if self.changed:
            self._write(self._stamp)
            self.changed = False

    def _write(self, stamp: Mapping[str, Any]) -> None:
        with as_output_error(self.checkpoint.place):
            self.checkpoint.store.put(_STAMP, json.dumps(stamp).encode())


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


def _compare(checkpoint: str, found: Mapping[str, Any], stamp: Mapping[str, Any]) -> None:
    for name, flag in (("topics", "--topic"), ("channel", "--channel")):
        if found.get(name) != stamp[name]:
            raise ConfigError(
                f"--checkpoint {checkpoint}: belongs to {flag} {_words(found.get(name))}, not "
                f"{_words(stamp[name])}: give another --checkpoint, or that {flag}"
            )
    before, now = found.get("output"), stamp["output"]
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
