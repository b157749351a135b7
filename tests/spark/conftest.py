"""The Spark session that all tests of Spark share, and what is skipped where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.spark import SparkModule, java_options, needs_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    module: pytest.Module = SparkModule.from_parent(parent, path=module_path)
    return module


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared session's JVM and workers write what else would be on stderr."""
    return tmp_path_factory.mktemp("spark-log") / "spark.log"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_log: Path) -> Iterator[SparkSession]:
    """A session on ``local[2,4]`` in which the source and sink ``nsq`` are registered.

    It is started once in a run of tests, so configure nothing on it for good.
    """
    needs_spark("everything that runs in Spark")
    from nsqtools.spark import register
    from nsqtools.spark.session import open_session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.driver.extraJavaOptions": java_options(),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with open_session("local[2]", conf, log_file=str(spark_log), app_name="tests") as session:
        register(session)
        yield session
