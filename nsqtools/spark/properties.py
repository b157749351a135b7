"""Properties of a Spark session: defaults, values from spark-submit, and access to S3.

Importing this module does not load pyspark.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError
from nsqtools.stores.places import is_s3, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    # Rows in transit to writing tasks: Spark holds each batch three times, by default 64 MiB each.
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Tasks to list files: by default one for each of up to 10,000 files.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_FEW_CORES = {"spark.sql.shuffle.partitions": "8"}
"""With Spark's default, 200, a batch of an aggregation would take seconds on one machine."""

JAVA_PID = "spark.nsqtools.java"
"""The id of the Java process that a session was started with; unset for spark-submit's."""

_LOCAL = re.compile(r"local(?:\[([^],]+)(?:,[^]]+)?\])?")
_TASK_TRIES = 4
"""Attempts per task, as on a cluster; Spark's own default for a local master is 1."""

_VARIABLES = {
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "endpoint": "AWS_ENDPOINT_URL",
}
"""Properties of S3A, below spark.hadoop.fs.s3a, and the variables for the stores of nsqtools."""


def is_local(master: str) -> bool:
    """Whether executors are threads of the driver's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def on_loopback(master: str) -> bool:
    """Whether driver and executors need no other network interface."""
    return is_local(master) or re.match(r"spark://(127\.|localhost\b|\[::1\])", master) is not None


def refuse_speculation(value: str | None) -> None:
    """Raise ConfigError if a session starts second copies of slow tasks (spark.speculation).

    Like a retry, a copy takes over the messages staged by the first task, and so fails the first
    task. The retry of the first task then fails the copy, and so on, until the query fails. In the
    sink, both would publish their rows.
    """
    if str(value).lower() == "true":
        raise ConfigError(
            "spark.speculation is true, so two copies of a task would take over each other's "
            "messages until both fail: set it to false"
        )


def refuse_speculative_task() -> None:
    """Raise ConfigError in a task of a session with speculation.

    Tasks have the properties of their session.
    """
    from pyspark import TaskContext

    if task := TaskContext.get():
        refuse_speculation(task.getLocalProperty("spark.speculation"))


def check_variables(conf: Iterable[str], places: Iterable[str]) -> None:
    """Raise ConfigError if properties give Spark access to S3 that nsqtools itself lacks.

    ``conf`` are texts KEY=VALUE. Staging, outputs and tables are read and written without Hadoop,
    on this machine and by executors.
    """
    if not any(is_s3(place) for place in places):
        return
    given = {name.strip() for name, _, _ in (text.partition("=") for text in conf)}
    for name, variable in _VARIABLES.items():
        known = f"spark.hadoop.fs.s3a.{name}"
        if known in given | inherited().keys() and variable not in os.environ:
            raise ConfigError(
                f"{known} is set, but {variable} is not: export {variable} for this command, and "
                f"on a cluster set spark.executorEnv.{variable} too: only Spark's own readers use "
                "the property"
            )


def default_master() -> str:
    """Return the master from spark-submit or spark-defaults.conf, else ``local[*]``."""
    return inherited().get("spark.master", "local[*]")


def properties(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the properties to start a session with: ``conf`` and the defaults.

    Inherited properties are left out, because they may hold secrets: every user of the machine can
    read Java's command line.
    """
    defaults = {**_DEFAULTS, **_s3a()}
    if on_loopback(master):
        defaults |= _LOOPBACK
    if is_local(master):
        defaults |= _FEW_CORES
    known = inherited()
    missing = {name: value for name, value in defaults.items() if name not in known}
    return {**missing, **conf, "spark.master": _with_tries(master)}


def inherited() -> dict[str, str]:
    """Return the properties common to all sessions of this process.

    They come from spark-submit if it started the process, else from PYSPARK_SUBMIT_ARGS and
    spark-defaults.conf.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    return {**_file_of_defaults(), **_submit_args()}


def _file_of_defaults() -> dict[str, str]:
    package = find_spec("pyspark")
    origin = package.origin if package else None
    home = os.environ.get("SPARK_HOME") or (os.path.dirname(origin) if origin else "")
    folder = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"))
    import javaproperties  # executors import this module, and have no need of it

    with (
        suppress(OSError, ValueError),  # Spark reports the fault
        folder.joinpath("spark-defaults.conf").open("rb") as file,
    ):
        return {name: value.strip() for name, value in javaproperties.load(file).items()}
    return {}


def _submit_args() -> dict[str, str]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--master")
    parser.add_argument("--conf", "-c", action="append", default=[])
    try:
        words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
        given, _ = parser.parse_known_args(words)
    except (argparse.ArgumentError, ValueError):  # Spark reports the fault
        return {}
    found = {name: value for name, _, value in (text.partition("=") for text in given.conf)}
    return found | ({"spark.master": given.master} if given.master else {})


def _s3a() -> dict[str, str]:
    """Return the AWS_* variables as S3A properties; Hadoop itself reads only those of a key."""
    endpoint, region = s3_server()
    found = {"endpoint.region": region} if region else {}
    if endpoint:
        found |= {"endpoint": endpoint, "path.style.access": "true"}
    if "AWS_ACCESS_KEY_ID" not in os.environ:  # a profile, or the role of a machine or pod
        chain = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
        found["aws.credentials.provider"] = chain
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in found.items()}


def _with_tries(master: str) -> str:
    """Return ``local[2]`` as ``local[2,4]``; clusters and explicit retries are unchanged."""
    found = _LOCAL.fullmatch(master)
    return f"local[{found[1] or 1},{_TASK_TRIES}]" if found and "," not in master else master
