"""A driver of Spark on a cluster, in a process of its own, which does what stdin tells it.

Its argument is JSON: ``master``, ``conf``, ``log`` and whatever the steps take. Each line of stdin
is the name of a step; what it finds is a line of JSON on stdout, under that name.
"""

from __future__ import annotations

import json
import sys
from threading import Event
from typing import TYPE_CHECKING, Any

from nsqtools.config import ProducerConfig
from nsqtools.names import Address
from nsqtools.spark import register
from nsqtools.spark.archive import ArchiveSettings, archive
from nsqtools.spark.replay import ReplaySettings, publish, stage
from nsqtools.spark.session import first_line, open_session
from nsqtools.spark.shipping import check_executors, ship
from nsqtools.spark.sql import ArchivesSettings, Query, Target, query_archives
from nsqtools.spark.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession


def imports(spark: SparkSession, given: dict[str, Any]) -> list[str]:
    """From where executors import nsqtools, as absolute paths, or that they cannot."""

    def look(_: Iterable[int]) -> Iterator[str]:
        import os

        try:
            import nsqtools.spark.sink
        except ImportError as error:
            yield str(error)
        else:
            yield os.path.abspath(nsqtools.spark.sink.__file__)

    return sorted(set(spark.sparkContext.parallelize(range(4), 4).mapPartitions(look).collect()))


def shipping(spark: SparkSession, given: dict[str, Any]) -> None:
    ship(spark)
    check_executors(spark)
    register(spark)


def lacking(spark: SparkSession, given: dict[str, Any]) -> None:
    check_executors(spark, ["pyarrow", "snappy"])


def archiving(spark: SparkSession, given: dict[str, Any]) -> int:
    stream = Stream(given["checkpoint"])
    settings = ArchiveSettings(given["source"], given["output"], stream)
    say = lambda progress: tell(batch=progress.batch)  # noqa: E731
    return archive(spark, settings, stop=Event(), report=say).received


def publishing(spark: SparkSession, given: dict[str, Any]) -> None:
    target = Target("topic", sink={"nsqd.tcp.addresses": given["nsqd"], "topic": given["sql_to"]})
    query = Query("select body from nsq distribute by message_id")
    settings = ArchivesSettings(query, target, (given["output"],), None)
    query_archives(spark, settings, stop=Event(), report=lambda _: None)


def replaying(spark: SparkSession, given: dict[str, Any]) -> int:
    settings = ReplaySettings(
        (given["output"],),
        given["replay_to"],
        (Address.parse(given["nsqd"]),),
        given["staging"],
        ProducerConfig(),
        where="attempts > 0",
        order_by="timestamp",
    )
    stage(spark, settings, Event(), lambda *_: None)
    return publish(settings, Event(), lambda *_: None).published


STEPS = {
    step.__name__: step for step in (imports, shipping, lacking, archiving, publishing, replaying)
}


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main(given: dict[str, Any]) -> None:
    with open_session(given["master"], given["conf"], log_file=given["log"]) as spark:
        for line in sys.stdin:
            name = line.strip()
            try:
                found = STEPS[name](spark, given)
            except Exception as error:
                tell(**{name: {"error": first_line(error)}})
            else:
                tell(**{name: found})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
