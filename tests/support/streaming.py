"""What tests of streaming jobs share."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
from pyarrow import fs
from pyspark.sql import SparkSession

from nsqtools.spark.jobs.streams import Stream
from tests.support.eventually import eventually
from tests.support.servers import Nsqd, SandboxNsqd

if TYPE_CHECKING:
    from nsqtools.spark.jobs.progress import Progress


def source(nsqd: Nsqd, topic: str, staging: str | Path, **more: str) -> dict[str, str]:
    """Options of the source; in names of ``more``, __ stands for a dot."""
    return {
        "nsqd.tcp.addresses": f"{nsqd.tcp}/{nsqd.http.port}",
        "connectionsPerNsqd": "1",
        "subscribe": topic,
        "channel": "c",
        "stagingLocation": str(staging),
        "idleTimeoutMs": "300",
        "pollIntervalMs": "1",
        **{name.replace("__", "."): text for name, text in more.items()},
    }


def publish(
    nsqd: Nsqd, topic: str, bodies: Iterable[bytes], *, channel: str = "c", alert: bool = False
) -> None:
    """Publish, and wait until the channel has it all.

    ``alert``: nsqd notices time-outs at once, as it does in channels that it starts with.
    """
    bodies = list(bodies)
    nsqd.create(topic, channel)
    if alert and not isinstance(nsqd, SandboxNsqd):
        nsqd.restart()
    count = nsqd.channel(topic, channel)["message_count"] + len(bodies)
    nsqd.publish(topic, bodies)
    eventually(lambda: nsqd.channel(topic, channel)["message_count"] == count)


def numbered(*numbers: int) -> list[bytes]:
    """The numbers of a range."""
    return [b"%d" % each for each in range(*numbers)]


def rows(folder: str | Path, filesystem: fs.FileSystem | None = None) -> list[dict[str, Any]]:
    """All that is in the Parquet files of a directory, as any reader sees it."""
    table = ds.dataset(folder, filesystem=filesystem, partitioning="hive").to_table()
    found: list[dict[str, Any]] = table.to_pylist()
    return found


class OfTopic:
    """Jobs on a topic, with their files in a folder."""

    def __init__(self, spark: SparkSession, nsqd: Nsqd, topic: str, folder: Path) -> None:
        self.spark, self.nsqd, self.topic, self.folder = spark, nsqd, topic, folder
        self.stop = threading.Event()
        self.facts: list[Progress] = []

    @property
    def given(self) -> dict[str, Any]:
        """What a job is given besides its settings."""
        return {"stop": self.stop, "report": self.facts.append}

    def source(self, **more: str) -> dict[str, str]:
        return source(self.nsqd, self.topic, self.folder / "_nsqtools/staging", **more)

    def stream(self, **more: Any) -> Stream:
        return Stream(str(self.folder / "_nsqtools/checkpoint"), **more)

    def publish(self, *bodies: bytes) -> None:
        publish(self.nsqd, self.topic, bodies)
