"""The data source ``nsq``, by its name. Spark imports this module in every session of a Python
that has nsqtools installed, so it loads the rest of the package only where a topic is meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from nsqtools.spark.source.sink import NsqStreamWriter, NsqWriter
    from nsqtools.spark.source.source import NsqStreamReader
    from nsqtools.spark.source.stagingreader import StagingReader

SCHEMA = (
    "topic string, channel string, nsqd string, message_id string, "
    "timestamp timestamp_ltz, timestamp_ns bigint, attempts int, body binary"
)
"""``rows.ROW_SCHEMA`` in SQL."""


class NsqDataSource(DataSource):
    """The data source ``format("nsq")``; see ``source.options`` for its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nsq"

    def schema(self) -> str:
        """Return the schema of all rows; raises ConfigError for invalid options, to fail early."""
        from nsqtools.spark.source.sourceoptions import parse_source

        if "provider" in self.options:
            raise ConfigError(
                "source nsq: Spark does not pass the options of a table on: use CREATE TEMPORARY "
                "VIEW, not TABLE"
            )
        if not self._names_staging_alone:
            parse_source(self.options)
        return SCHEMA

    def streamReader(self, schema: StructType) -> NsqStreamReader:  # noqa: N802
        """Return the reader for ``readStream``; raises ConfigError."""
        from nsqtools.spark.source.source import NsqStreamReader
        from nsqtools.spark.source.sourceoptions import parse_source

        given = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in schema)
        if given != SCHEMA.replace("timestamp_ltz", "timestamp"):
            raise ConfigError(
                "source nsq: its columns are fixed: omit .schema() and use select after load()"
            )
        return NsqStreamReader(parse_source(self.options))

    def reader(self, schema: StructType) -> StagingReader:
        """Return the reader of a staging, for ``read`` with stagingLocation alone.

        Raises ConfigError for other options, which would read from nsqd.
        """
        if not self._names_staging_alone:
            raise ConfigError(
                "source nsq: a batch read would consume messages at each load(): use readStream "
                "with trigger(availableNow=True), or nsqtools pipeline; to read what is staged, "
                "give stagingLocation alone"
            )
        from nsqtools.spark.source.stagingreader import StagingReader

        return StagingReader(self.options["stagingLocation"])

    @property
    def _names_staging_alone(self) -> bool:
        return [name.lower() for name in self.options] == ["staginglocation"]

    def writer(self, schema: StructType, overwrite: bool) -> NsqWriter:
        """Return the writer for ``write``; raises ConfigError or UnreachableError."""
        from nsqtools.spark.source.sink import NsqWriter

        return NsqWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:  # noqa: N802
        """Return the writer for ``writeStream``; raises ConfigError or UnreachableError."""
        from nsqtools.spark.source.sink import NsqStreamWriter

        return NsqStreamWriter(self.options, schema, overwrite)
