"""The source without a JVM."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from nsqtools.spark.source.source import NsqStreamReader
from nsqtools.spark.source.sourceoptions import parse_source
from nsqtools.spark.staging.ledger import Ledger
from nsqtools.stores import open_store
from tests.support.streaming import numbered, publish

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.servers import Nsqd

    Json = dict[str, Any]

ALL = ReadAllAvailable()


class Driven:
    """A reader of a topic that is driven as Spark does, without a JVM."""

    def __init__(self, nsqd: Nsqd, topic: str, options: Mapping[str, str]) -> None:
        self.nsqd, self.topic, self.options = nsqd, topic, options
        self.settings = parse_source(options)
        self.reader = NsqStreamReader(self.settings)

    def anew(self, **more: str) -> Driven:
        """Another process, with some other options."""
        changed = {name.replace("__", "."): text for name, text in more.items()}
        return Driven(self.nsqd, self.topic, {**self.options, **changed})

    def publish(self, *numbers: int) -> None:
        publish(self.nsqd, self.topic, numbered(*numbers))

    @property
    def depth(self) -> int:
        depth: int = self.nsqd.channel(self.topic, "c")["depth"]
        return depth

    def plan(self, start: Json | None = None, limit: Any = ALL) -> Json:
        return self.reader.latestOffset(start or self.reader.initialOffset(), limit)

    def read(self, start: Json, end: Json) -> list[Json]:
        """What executors read: each partition by a copy of its own."""
        rows = []
        for partition in self.reader.partitions(start, end):
            executor, sent = pickle.loads(pickle.dumps((self.reader, partition)))
            rows += [row for batch in executor.read(sent) for row in batch.to_pylist()]
        return rows

    def first(self, limit: Any = ALL) -> tuple[Json, Json, list[Json]]:
        """The first batch: its start, its end and its rows."""
        start = self.reader.initialOffset()
        end = self.plan(start, limit)
        return start, end, self.read(start, end)

    def drain(self, start: Json | None = None, limit: Any = ALL) -> tuple[Json, list[list[Json]]]:
        """All batches until there is nothing to read."""
        batches = []
        start = start or self.reader.initialOffset()
        while (end := self.plan(start, limit)) != start:
            batches.append(self.read(start, end))
            start = end
        return start, batches

    def ledger(self, offset: Json) -> Ledger:
        return Ledger(open_store(self.options["stagingLocation"]), offset["stream"])
