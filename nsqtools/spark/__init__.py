"""NSQ for Spark: ``register(spark)``, then ``format("nsq")`` reads and writes topics.

Importing this loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make ``format("nsq")`` known to a session.

    With a local master Python workers run in the Python of this process, unless PYSPARK_PYTHON
    names another one. Raises ConfigError, naming the command that installs it, without pyspark,
    pyarrow or Java, and for a session that starts tasks twice.
    """
    from nsqtools.spark.sparksession import refuse_speculation, require_spark, use_own_python

    require_spark()
    refuse_speculation(spark)
    use_own_python(spark)
    from nsqtools.spark.source import NsqDataSource

    spark.dataSource.register(NsqDataSource)
