"""The Spark session that all tests of Spark share, and what is skipped where there is none."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nsqtools.spark.jobs.replay import ReplaySettings
from tests.support.process import Cli
from tests.support.replays import Taken
from tests.support.servers import Nsqd
from tests.support.spark import SparkModule, java_options, needs_spark


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    module: pytest.Module = SparkModule.from_parent(parent, path=module_path)
    return module


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on ``local[2,4]`` in which the source and sink ``nsq`` are registered.

    It is started once in a run of tests, so configure nothing on it for good.
    """
    needs_spark("everything that runs in Spark")
    from nsqtools.spark import register
    from nsqtools.spark.sparksession import open_session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.driver.extraJavaOptions": java_options(),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with open_session("local[2]", conf, log_file=str(folder / "log"), app_name="tests") as session:
        register(session)
        yield session


@pytest.fixture
def replaying(nsqd: Nsqd, topic: str, tmp_path: Path) -> ReplaySettings:
    """A replay of ``lake`` into a topic that has a channel, by way of ``staging``."""
    from nsqtools.spark.jobs.replay import ReplaySettings

    nsqd.create(topic, "c")
    lake, staging = str(tmp_path / "lake"), str(tmp_path / "staging")
    return ReplaySettings((lake,), {"topic": topic, "nsqd.tcp.addresses": str(nsqd.tcp)}, staging)


@pytest.fixture
def taken(nsqd: Nsqd, topic: str, nsqtools_cli: Cli) -> Taken:
    """The bodies that are in the topic."""
    from tests.support.replays import Taken

    return Taken(nsqtools_cli, nsqd, topic)
