"""The pipeline: a warm archive and the sink beside the Go tools."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.archiving import events
from tests.bench.measuring import BODY, Pair, Run, Side, drain, filled, measure
from tests.support.servers import at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.binaries import Nsq
    from tests.support.servers import Nsqd

FEW = 10_000


class Lakes:
    """The benches of the pipeline; one Spark session serves all that are to find it warm."""

    def __init__(self, nsqd: Nsqd, nsq: Nsq, n: int, scratch: str) -> None:
        self._nsqd = nsqd
        self._nsq = nsq
        self._n = n
        self._scratch = Path(scratch)
        self._folder = self._scratch / "lake"
        self._stack = ExitStack()
        self._is_warm = False

    @cached_property
    def spark(self) -> SparkSession:
        from nsqtools.spark import register
        from nsqtools.spark.sparksession import open_session

        spark = self._stack.enter_context(open_session("local[2]", {}))
        register(spark)
        return spark

    def close(self) -> None:
        """End the session."""
        self._stack.close()

    def pairs(self) -> list[Pair]:
        """What is compared, in order."""
        return [
            Pair(
                Side("pipeline archive, warm", self._archive),
                Side("nsq_to_file --sync-interval 1s", self._to_file),
            ),
            Pair(Side("pipeline sink", self._sink), Side("to_nsq", self._to_nsq)),
        ]

    def _archive(self) -> Run:
        from nsqtools.spark.jobs.archive import ArchiveSettings, archive
        from nsqtools.spark.jobs.streams import Stream

        seconds = []
        # Java has compiled what is used once a first archive of this size is done.
        for messages in (self._n,) if self._is_warm else (self._n, self._n):
            folder = self._emptied()
            with filled(self._nsqd, messages, events(FEW)) as topic:
                settings = ArchiveSettings(
                    self._options(topic), str(folder / "out"), Stream(str(folder / "checkpoint"))
                )
                spark = self.spark
                started = time.perf_counter()
                archive(spark, settings, stop=threading.Event(), report=lambda _: None)
                seconds.append(time.perf_counter() - started)
        self._is_warm = True
        return Run(self._n, seconds[-1], 0.0, 0.0)

    def _to_file(self) -> Run:
        argv = [self._nsq.path("nsq_to_file"), "--sync-interval=1s", "--max-in-flight=2500"]
        argv += ["--output-dir", str(self._emptied())]
        return drain(self._nsqd, self._n, argv, bodies=events(FEW), settled=True)

    def _sink(self) -> Run:
        from pyspark.sql import functions as F  # noqa: N812

        body = F.lit(BODY.decode()).alias("body")
        rows = self.spark.range(0, self._n, numPartitions=2).select(body)
        for frame in (rows.limit(FEW), rows):
            started = time.perf_counter()
            frame.write.format("nsq").mode("append").options(
                **{"nsqd.tcp.addresses": str(self._nsqd.tcp), "topic": "lake#ephemeral"}
            ).save()
            seconds = time.perf_counter() - started
        return Run(self._n, seconds, 0.0, 0.0)

    def _to_nsq(self) -> Run:
        lines = self._scratch / "lake.lines"
        fewer = self._n // 4
        lines.write_bytes((BODY + b"\n") * fewer)
        argv = [self._nsq.path("to_nsq"), "--topic=lake#ephemeral", *at(self._nsqd)]
        return measure(argv, fewer, stdin=lines)

    def _options(self, topic: str) -> dict[str, str]:
        return {
            "nsqd.tcp.addresses": f"{self._nsqd.tcp}/{self._nsqd.http.port}",
            "subscribe": topic,
            "channel": "bench",
            "stagingLocation": str(self._folder / "staging"),
        }

    def _emptied(self) -> Path:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        return self._folder
