"""``format("nsq")`` in every Spark session: Spark imports modules ``pyspark_*`` of its Python.

The wheel has this file at its top level.
"""

# size: a name for what another module defines

from nsqtools.spark.source.datasource import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
