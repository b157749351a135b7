"""What a session has to be like for the source and the sink, and is made like."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import ConfigError
from nsqtools.spark import register
from nsqtools.spark.session import use_own_python

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from tests.support.servers import Nsqd


@pytest.mark.parametrize("speculation", ["true", "TRUE"])
def test_a_session_that_starts_tasks_twice_is_refused_in_one_line(
    speculation: str, spark: SparkSession
) -> None:
    class Conf:
        def get(self, key: str, default: str) -> str:
            return speculation if key == "spark.speculation" else default

    class Session:
        conf = Conf()

        sparkContext = None  # noqa: N815 - as pyspark calls it

    twice: Any = Session()
    with pytest.raises(ConfigError, match=r"^spark\.speculation is true: .*: set it to false$"):
        register(twice)
    register(spark)


def test_workers_of_this_machine_run_in_the_python_that_registers_unless_told(
    spark: SparkSession, nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = spark.sparkContext
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(context, "pythonExec", "/no/such/python3")
    monkeypatch.setenv("PYSPARK_PYTHON", "/asked/for")
    use_own_python(spark)
    assert context.pythonExec == "/no/such/python3"
    monkeypatch.delenv("PYSPARK_PYTHON")
    register(spark)
    assert context.pythonExec == sys.executable
    options = {"nsqd.tcp.addresses": f"{nsqd.tcp}/{nsqd.http.port}"}
    body = spark.range(1).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS body")
    body.write.format("nsq").mode("append").options(**options, topic=topic).save()
    options |= {"subscribe": topic, "channel": "c", "stagingLocation": str(tmp_path / "s")}
    found = spark.readStream.format("nsq").options(**options).load()
    rows: list[Row] = []
    writer = found.writeStream.foreachBatch(lambda batch, number: rows.extend(batch.collect()))
    writer = writer.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "c"))
    writer.start().awaitTermination()
    assert [bytes(row["body"]) for row in rows] == [b"0"]

    class Context:
        master, pythonExec = "yarn", "python3"  # noqa: N815 - as pyspark calls it

    class Session:
        sparkContext = Context()  # noqa: N815 - as pyspark calls it

    cluster: Any = Session()
    use_own_python(cluster)
    assert cluster.sparkContext.pythonExec == "python3"
