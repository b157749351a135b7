"""The Spark session: there is one, for tests of this folder, which one process runs."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.spark import java_options, needs_spark


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
