"""NSQ for Spark: ``format("nsq")`` reads and writes topics.

Importing this package loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register ``format("nsq")`` with a session, and check the session.

    No registration is needed if nsqtools is installed in the workers' Python. With a local master,
    Python workers run the Python of this process, unless PYSPARK_PYTHON names another. Raises
    ConfigError, with the command to run, if pyspark, pyarrow or Java is missing, and for a session
    with spark.speculation.
    """
    from nsqtools.spark.properties import is_local, refuse_speculation
    from nsqtools.spark.requirements import require_spark

    require_spark()
    refuse_speculation(spark.conf.get("spark.speculation", "false"))

    context: SparkContext | None = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context and is_local(context.master or "") and "PYSPARK_PYTHON" not in os.environ:
        # Otherwise Spark runs python3 from PATH, and cannot import this package unless its
        # virtual environment is activated.
        context.pythonExec = sys.executable
    from nsqtools.spark.source.datasource import NsqDataSource

    spark.dataSource.register(NsqDataSource)
