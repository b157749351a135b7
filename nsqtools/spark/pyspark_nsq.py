"""``format("nsq")`` in every Spark session: Spark imports modules ``pyspark_*`` of its Python.

The wheel has this file at its top level.
"""

# size: only an alias for a class of another module

from nsqtools.spark.source.datasource import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
