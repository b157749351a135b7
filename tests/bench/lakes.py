"""The pipeline: a warm archive and the sink beside the Go tools."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from tests.bench.measuring import BODY, Pair, Run, Side, drain, filled, measure
from tests.support.binaries import require_nsq
from tests.support.servers import at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.servers import Nsqd


class Lakes:
    """The benches of the pipeline; one Spark session serves all that are to find it warm."""

    def __init__(self, nsqd: Nsqd, n: int, scratch: Path, events: Sequence[bytes]) -> None:
        self._nsqd, self._n, self._scratch, self._events = nsqd, n, scratch, events
        self._folder = scratch / "lake"
        self._stack = ExitStack()

    @cached_property
    def spark(self) -> SparkSession:
        """A session where Java has compiled what is used: an archive of this size was written."""
        from nsqtools.spark import register
        from nsqtools.spark.sparksession import open_session

        spark = self._stack.enter_context(open_session("local[2]", {}))
        register(spark)
        self._write(spark)
        return spark

    def close(self) -> None:
        """End the session."""
        self._stack.close()

    def pairs(self) -> list[Pair]:
        """What is compared, in order."""
        archive = Side("pipeline archive, warm", lambda: self._write(self.spark))
        return [
            Pair(archive, Side("nsq_to_file --sync-interval 1s", self._to_file)),
            Pair(Side("pipeline sink", self._sink), Side("to_nsq", self._to_nsq)),
        ]

    def _write(self, spark: SparkSession) -> Run:
        from nsqtools.spark.jobs.archive import ArchiveSettings, archive
        from nsqtools.spark.jobs.streams import Stream

        folder = self._emptied()
        with filled(self._nsqd, self._n, self._events) as topic:
            options = {
                "nsqd.tcp.addresses": f"{self._nsqd.tcp}/{self._nsqd.http.port}",
                "subscribe": topic,
                "channel": "bench",
                "stagingLocation": str(folder / "staging"),
            }
            stream = Stream(str(folder / "checkpoint"))
            settings = ArchiveSettings(options, str(folder / "out"), stream)
            started = time.perf_counter()
            archive(spark, settings, stop=threading.Event(), report=lambda _: None)
            return Run(self._n, time.perf_counter() - started)

    def _to_file(self) -> Run:
        argv = [require_nsq().path("nsq_to_file"), "--sync-interval=1s", "--max-in-flight=2500"]
        argv += ["--output-dir", str(self._emptied())]
        return drain(self._nsqd, self._n, argv, bodies=self._events, settled=True)

    def _sink(self) -> Run:
        from pyspark.sql import functions as F  # noqa: N812

        body = F.lit(BODY.decode()).alias("body")
        rows = self.spark.range(0, self._n, numPartitions=2).select(body)
        for frame in (rows.limit(10_000), rows):
            started = time.perf_counter()
            frame.write.format("nsq").mode("append").options(
                **{"nsqd.tcp.addresses": str(self._nsqd.tcp), "topic": "lake#ephemeral"}
            ).save()
            seconds = time.perf_counter() - started
        return Run(self._n, seconds)

    def _to_nsq(self) -> Run:
        lines, fewer = self._scratch / "lake.lines", self._n // 4
        lines.write_bytes((BODY + b"\n") * fewer)
        argv = [require_nsq().path("to_nsq"), "--topic=lake#ephemeral", *at(self._nsqd)]
        return measure(argv, fewer, stdin=lines)

    def _emptied(self) -> Path:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        return self._folder
