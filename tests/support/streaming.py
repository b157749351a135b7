"""What tests of streaming jobs share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from nsqtools.spark.streams import Stream
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from nsqtools.spark.progress import Progress
    from tests.support.servers import Nsqd

CHANNEL = "lake"


def source(nsqd: Nsqd, topic: str, folder: Path, **more: str) -> dict[str, str]:
    """Options of the source, for an archive in this folder."""
    return {
        "nsqd.tcp.addresses": f"{nsqd.tcp}/{nsqd.http.port}",
        "connectionsPerNsqd": "1",
        "subscribe": topic,
        "channel": CHANNEL,
        "stagingLocation": str(folder / "_nsqtools/staging"),
        "idleTimeoutMs": "300",
        "pollIntervalMs": "10",
        **more,
    }


def stream(folder: Path, **more: Any) -> Stream:
    return Stream(str(folder / "_nsqtools/checkpoint"), **more)


def publish(nsqd: Nsqd, topic: str, bodies: Iterable[bytes]) -> None:
    """Publish, and wait until the channel has it all."""
    bodies = list(bodies)
    nsqd.create(topic, CHANNEL)
    before = nsqd.channel(topic, CHANNEL)["message_count"]
    nsqd.publish(topic, bodies)
    count = before + len(bodies)
    eventually(lambda: nsqd.channel(topic, CHANNEL)["message_count"] == count)


def rows(folder: Path) -> list[dict[str, Any]]:
    """All that is in the Parquet files of a directory, as any reader sees it."""
    table = ds.dataset(folder, partitioning="hive").to_table()
    found: list[dict[str, Any]] = table.to_pylist()
    return found


class Told:
    """What a job is given besides its settings."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.facts: list[Progress] = []

    @property
    def given(self) -> dict[str, Any]:
        return {"stop": self.stop, "report": self.facts.append}


class OfTopic:
    """Jobs on a topic, with their files in a folder."""

    def __init__(self, spark: SparkSession, nsqd: Nsqd, topic: str, folder: Path) -> None:
        self.spark = spark
        self.nsqd = nsqd
        self.topic = topic
        self.folder = folder
        self.told = Told()

    def publish(self, *bodies: bytes) -> None:
        publish(self.nsqd, self.topic, bodies)
