"""NSQ for Spark: after ``register(spark)``, ``format("nsq")`` reads and writes topics.

Importing this package loads neither pyspark nor pyarrow.
"""

# size: the public name of the package, without its imports

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register ``format("nsq")`` with a session.

    With a local master, Python workers run the Python of this process, unless PYSPARK_PYTHON names
    another. Raises ConfigError, with the command to run, if pyspark, pyarrow or Java is missing,
    and for a session with spark.speculation.
    """
    from nsqtools.spark.sparksession import refuse_speculation, require_spark, use_own_python

    require_spark()
    refuse_speculation(spark)
    use_own_python(spark)
    from nsqtools.spark.source import NsqDataSource

    spark.dataSource.register(NsqDataSource)
