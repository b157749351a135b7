"""Small files and directories in any file system that Spark can reach, through its JVM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nsqtools.sinks.files.disk import make_directory
from nsqtools.spark.mounted import replace_json
from nsqtools.spark.places import below, literal, local

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


def read_text(spark: SparkSession, url: str) -> str | None:
    """Return the content of a file; None if it does not exist."""
    jvm, files, path = _find(spark, url)
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_json(spark: SparkSession, place: str, value: Mapping[str, Any]) -> None:
    """Replace or create a file, so that readers find all of it or none."""
    if root := local(place):
        make_directory(str(root.parent))
        replace_json(str(root), value)
        return
    _, files, path = _find(spark, place)
    new = path.suffix(".new")
    stream = files.create(new, True)
    try:
        stream.write(bytearray(json.dumps(value).encode()))
    finally:
        stream.close()
    files.delete(path, False)  # HDFS renames to no file that is there
    files.rename(new, path)


def remove_all(spark: SparkSession, place: str, pattern: str) -> None:
    """Remove directories in a path or URL that match a pattern such as ``date=*/hour=*``."""
    _, files, path = _find(spark, below(literal(place), pattern))
    for each in files.globStatus(path) or ():
        files.delete(each.getPath(), True)


def _find(spark: SparkSession, url: str) -> tuple[Any, Any, Any]:
    """The JVM, Hadoop's file system of a URL, and the URL as its path."""
    jvm: Any = spark.sparkContext._jvm
    java: Any = spark.sparkContext._jsc
    path = jvm.org.apache.hadoop.fs.Path(url)
    return jvm, path.getFileSystem(java.hadoopConfiguration()), path
