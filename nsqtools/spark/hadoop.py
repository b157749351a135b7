"""Small files and directories in whatever file system Spark can reach, through its JVM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nsqtools.spark.places import below, literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_json(spark: SparkSession, url: str) -> dict[str, Any] | None:
    """The object in a file; None if there is no file, or none that is whole."""
    jvm, files, path = _find(spark, url)
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        found = json.loads(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    except ValueError:
        return None
    finally:
        stream.close()
    return found if isinstance(found, dict) else None


def write_text(spark: SparkSession, url: str, text: str) -> None:
    """Write a file, in place of one that is there."""
    _, files, path = _find(spark, url)
    stream = files.create(path, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def remove_all(spark: SparkSession, place: str, pattern: str) -> None:
    """Remove directories in a path or URL, by a pattern such as ``date=*/hour=*``."""
    _, files, path = _find(spark, below(literal(place), pattern))
    for each in files.globStatus(path) or ():
        files.delete(each.getPath(), True)


def _find(spark: SparkSession, url: str) -> tuple[Any, Any, Any]:
    """The JVM, Hadoop's file system of a URL, and the URL as its path."""
    jvm: Any = spark.sparkContext._jvm
    java: Any = spark.sparkContext._jsc
    path = jvm.org.apache.hadoop.fs.Path(url)
    return jvm, path.getFileSystem(java.hadoopConfiguration()), path
