"""Tables of Apache Iceberg: tasks write Parquet files, and pyiceberg commits the list of them.

A commit carries the id of the query and the number of the batch: in the summary of its snapshot for
people, and in a property of the table, because snapshots expire. Spark needs no jar for it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import random
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from nsqtools.errors import ConfigError, NSQError, OutputError
from nsqtools.spark.lake.bodies import date_of, hour_of
from nsqtools.spark.lake.snapshots import TableFiles, TableSchema
from nsqtools.spark.lake.tables import (
    LakeTable,
    TableColumn,
    not_installed,
    reason_of,
    unsupported,
)
from nsqtools.stores.interface import StoredFile
from nsqtools.stores.mounted import LocalStore
from nsqtools.stores.places import ICEBERG, below, local, s3_server

try:
    from pyarrow.fs import LocalFileSystem
    from pyiceberg import catalog as catalogs
    from pyiceberg import types as I  # noqa: N812 - beside Spark's
    from pyiceberg.exceptions import (
        CommitFailedException,
        NoSuchTableError,
        ServerError,
        ServiceUnavailableError,
    )
    from pyiceberg.io import AWS_REGION, PY_IO_IMPL, S3_ENDPOINT
    from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.transforms import HourTransform, IdentityTransform, Transform
    from pyiceberg.utils.config import Config
except ImportError:
    raise not_installed("iceberg", "pyiceberg") from None

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.io import OutputStream
    from pyiceberg.manifest import DataFile
    from pyspark.sql import Column, DataFrame

    from nsqtools.spark.lake.tables import Token
    from nsqtools.spark.lake.write import PartFile

# It warns of each column without statistics, such as bodies.
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)

_ATTEMPTS = 20
_PAUSE = 0.1
"""Commits of a batch if other writers commit, and the longest first pause in seconds."""
_RETRIES = "commit.retry.num-retries"
_DATA = "write.data.path"
_PREFIX = "nsqtools."
_PRIMITIVES: dict[type[T.DataType], I.PrimitiveType] = {
    T.BinaryType: I.BinaryType(),
    T.BooleanType: I.BooleanType(),
    T.DateType: I.DateType(),
    T.DoubleType: I.DoubleType(),
    T.FloatType: I.FloatType(),
    T.IntegerType: I.IntegerType(),
    T.ByteType: I.IntegerType(),
    T.ShortType: I.IntegerType(),
    T.LongType: I.LongType(),
    T.StringType: I.StringType(),
    T.TimestampNTZType: I.TimestampType(),
    T.TimestampType: I.TimestamptzType(),
}
_FORMATS = {"year": "yyyy", "month": "yyyy-MM", "day": "yyyy-MM-dd", "hour": "yyyy-MM-dd-HH"}
"""Partitions by time, and texts of which each partition has another one."""


class IcebergTable(LakeTable):
    """The table ``name``, NAMESPACE.TABLE, of a catalog in pyiceberg's configuration.

    Raises ConfigError for a catalog that is not configured, and OutputError for one that fails.
    """

    def __init__(self, catalog: str, name: str, *, evolve: bool = False) -> None:
        super().__init__(name, evolve=evolve)
        if "." not in name.strip("."):
            raise ConfigError(f"--output {name}: expected NAMESPACE.TABLE with --format iceberg")
        known: Any = Config().get_catalog_config(catalog)
        if known is None:
            raise ConfigError(
                f"the catalog {catalog} is not in pyiceberg's configuration: add it to "
                f".pyiceberg.yaml, or set PYICEBERG_CATALOG__{catalog.upper()}__URI"
            )
        try:
            self._catalog: Catalog = catalogs.load_catalog(catalog, **known)
        except (OSError, ServerError, ServiceUnavailableError) as error:
            raise OutputError(f"catalog {catalog}: {reason_of(error)}") from error
        except Exception as error:
            raise ConfigError(f"catalog {catalog}: {reason_of(error)}") from error
        warehouse = self._catalog.properties.get("warehouse", "")
        if warehouse.startswith(("file:", "/")):  # a REST catalog may call it by a name
            self._be_durable()
        self._know_s3()
        self._table: Table | None = None

    def has(self, token: Token) -> bool:
        """Whether the table has a batch; a catalog's answer is durable."""
        return _has(self._load(), token)

    def prepare(
        self, rows: DataFrame, schema: T.StructType, partitions: Sequence[str]
    ) -> tuple[str, DataFrame, Sequence[str]]:
        """As ``LakeTable`` has it: partitions are hidden, so the files have all columns.

        A table that does not exist is made, because its catalog chooses its place; it is
        partitioned by the hour of timestamps.
        """
        table = self._table or self._create(schema, partitions)
        if local(table.location()):
            self._be_durable()
        expressions = dict(self._directories(table, rows))
        return _place(table), rows.withColumns(expressions), list(expressions)

    def commit(
        self,
        files: Iterable[PartFile],
        schema: T.StructType,
        partitions: Sequence[str],
        token: Token | None = None,
    ) -> None:
        """Add files of rows of a schema durably, unless the table has their batch."""
        paths = [each.path for each in files]
        for attempt in range(_ATTEMPTS if paths else 0):
            time.sleep(random.uniform(0, _PAUSE * attempt))  # noqa: S311 - no secret
            with contextlib.suppress(CommitFailedException), self._explained():
                self._commit(paths, self._schema(schema), token)
                return
        if paths:
            raise OutputError(f"{self._name}: other writers were faster in {_ATTEMPTS} commits")

    def files(self) -> TableFiles:
        """Return the current files of the table, for Spark's file source.

        Raises ConfigError for a table whose Parquet files have other rows or columns than it.
        """
        table = self._load()
        if table is None:
            place = f"{ICEBERG}:{self._catalog.name}/{self._name}"
            raise ConfigError(f"--input {place}: there is no such table")
        if changed := _renamed(table):
            raise self._unreadable(f"column {changed} was renamed, or had another meaning before")
        columns = []
        for each in table.schema().fields:
            kind = _spark_type(each.field_type)
            if kind is None:
                raise self._unreadable(f"{each.name} is of type {_text(each.field_type)}")
            columns.append(T.StructField(each.name, kind))
        with self._explained():
            tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise self._unreadable("the table has deletion vectors or other files of deleted rows")
        files = [task.file for task in tasks]
        if others := {each.file_format.value for each in files} - {"PARQUET"}:
            raise self._unreadable(f"the table has files of the format {min(others)}")
        stored = [
            StoredFile(str(local(each.file_path) or each.file_path), each.file_size_in_bytes, 0)
            for each in files
        ]
        schema = TableSchema(T.StructType(columns).json(), hours=_hours(table, files))
        return TableFiles(schema, sorted(stored))

    def _unreadable(self, why: str) -> ConfigError:
        return ConfigError(
            f"--input {ICEBERG}:{self._catalog.name}/{self._name}: {why}: read it with Spark's "
            "package of Iceberg"
        )

    def _commit(self, paths: Sequence[str], schema: Schema, token: Token | None) -> None:
        """Try to commit once. Raises CommitFailedException if another writer has committed.

        The commit is refused if anything was committed after the token was looked for.
        """
        table = self._catalog.load_table(self._name)
        if token and _has(table, token):
            return
        names = {each.name.lower() for each in table.schema().fields}
        properties, summary = {}, {}
        if token:
            properties = {_PREFIX + token.query: str(token.number)}
            summary = {f"{_PREFIX}query": token.query, f"{_PREFIX}batch": str(token.number)}
        with _without_retries(table).transaction() as change:
            if lacking := [each for each in schema.fields if each.name.lower() not in names]:
                self._check_evolve(lacking[0].name)
                with change.update_schema() as columns:
                    columns.union_by_name(schema)
            change.set_properties(properties)
            urls = [below(_place(table), each) for each in paths]
            change.add_files(urls, summary, check_duplicate_files=False)

    def _be_durable(self) -> None:
        """Let tables that are loaded from now on have durable metadata, unless configured."""
        name = f"{__name__}.{DurableFileIO.__name__}"
        self._catalog.properties.setdefault(PY_IO_IMPL, name)

    def _know_s3(self) -> None:
        """Configure what pyiceberg does not take from AWS_* variables, unless the user did.

        Without a region it would ask AWS for the bucket's. The properties of a table, as a REST
        catalog returns them, have priority.
        """
        endpoint, region = s3_server()
        if endpoint:
            self._catalog.properties.setdefault(S3_ENDPOINT, endpoint)
        if region:
            self._catalog.properties.setdefault(AWS_REGION, region)

    def _load(self) -> Table | None:
        """The newest version of the table; None if there is none."""
        self._table = None
        with self._explained(), contextlib.suppress(NoSuchTableError):
            self._table = self._catalog.load_table(self._name)
        return self._table

    def _create(self, schema: T.StructType, partitions: Sequence[str]) -> Table:
        """Make the table, unless another run has just made it."""
        wanted = self._schema(schema)
        fields = []
        for number, name in enumerate(partitions, PARTITION_FIELD_ID_START):
            with contextlib.suppress(ValueError):  # the rows may lack the column
                source = wanted.find_field(name, case_sensitive=False)
                is_time = isinstance(source.field_type, I.TimestamptzType)
                how: Transform[Any, Any] = HourTransform() if is_time else IdentityTransform()
                name = f"{source.name}_hour" if is_time else source.name
                fields.append(PartitionField(source.field_id, number, how, name))
        with self._explained():
            self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            self._table = self._catalog.create_table_if_not_exists(
                self._name, wanted, partition_spec=PartitionSpec(*fields)
            )
        return self._table

    def verify(self) -> None:
        """Refuse columns that must have values."""
        table = self._load()
        for each in table.schema().fields if table else ():
            if each.required:
                raise ConfigError(
                    f"--output {self._name}: the table requires values of {each.name}, which may "
                    "be missing: make the column optional"
                )

    @property
    def _columns(self) -> dict[str, TableColumn] | None:
        if self._table is None:
            return None
        return {
            each.name.lower(): TableColumn(each.name, _text(each.field_type))
            for each in self._table.schema().fields
        }

    def _type(self, column: T.StructField) -> str:
        return _text(self._schema(T.StructType([column])).fields[0].field_type)

    def _schema(self, schema: T.StructType) -> Schema:
        """The schema for a table, in which any value may be missing. Raises ConfigError."""
        ids = itertools.count(1)

        def optional(name: str, kind: T.DataType) -> I.NestedField:
            return I.NestedField(next(ids), name, convert(kind), required=False)

        def convert(kind: T.DataType) -> I.IcebergType:
            if isinstance(kind, T.StructType):
                return I.StructType(*(optional(each.name, each.dataType) for each in kind))
            if isinstance(kind, T.ArrayType):
                element = convert(kind.elementType)
                return I.ListType(next(ids), element, element_required=False)
            if isinstance(kind, T.MapType):
                key, value = convert(kind.keyType), convert(kind.valueType)
                return I.MapType(next(ids), key, next(ids), value, value_required=False)
            if isinstance(kind, T.DecimalType):
                return I.DecimalType(kind.precision, kind.scale)
            if type(kind) not in _PRIMITIVES:
                raise _UnsupportedError(kind.simpleString())
            return _PRIMITIVES[type(kind)]

        fields = []
        for each in schema:
            try:
                fields.append(optional(each.name, each.dataType))
            except _UnsupportedError as error:
                raise unsupported(self._name, each.name, str(error)) from None
        return Schema(*fields)

    def _directories(self, table: Table, rows: DataFrame) -> Iterator[tuple[str, Column]]:
        """The names and values of directories of which each is within one partition."""
        types = {each.name: each.dataType for each in rows.schema}
        for field in table.spec().fields:
            source, how = table.schema().find_column_name(field.source_id), str(field.transform)
            if source not in types or how == "void":  # then it is null for all of our rows
                continue
            value = _value(source, types[source], how)
            if value is None:
                raise ConfigError(
                    f"--output {self._name}: the table is partitioned by {field.name}, {how} of "
                    f"{source}: expected identity, year, month, day or hour"
                )
            name = field.name
            while name in types:
                name = f"_{name}"
            yield name, value

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise errors as OutputError: catalogs raise what their clients raise."""
        try:
            yield
        except (CommitFailedException, NSQError):
            raise
        except Exception as error:
            raise OutputError(f"{self._name}: {reason_of(error)}") from error


class DurableFileIO(PyArrowFileIO):
    """Files of which local ones are durable before a catalog learns their names."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        path = local(location)
        if path is None:
            return super().new_output(location)
        return _LocalFile(location, str(path), LocalFileSystem())


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        return _DurableFile(self._path, replace=overwrite)


class _DurableFile(io.BytesIO):
    """The bytes of a file of metadata; they become a durable file when this is closed."""

    def __init__(self, path: str, *, replace: bool) -> None:
        super().__init__()
        self._path = path
        self._replace = replace

    def close(self) -> None:
        if self.closed:
            return
        folder, name = os.path.split(self._path)  # WAREHOUSE/NAMESPACE/TABLE/metadata
        store = LocalStore(folder.rsplit("/", 3)[0] or "/")
        path = os.path.relpath(os.path.join(folder, name), store.place)
        with store.create(path, replace=self._replace) as file:
            file.write(self.getvalue())
        super().close()


class _UnsupportedError(Exception):
    """A type of Spark that Iceberg does not have."""


def _has(table: Table | None, token: Token) -> bool:
    newest = table.properties.get(_PREFIX + token.query) if table else None
    return newest is not None and int(newest) >= token.number


def _place(table: Table) -> str:
    """The place of a table's new files."""
    return table.properties.get(_DATA) or below(table.location(), "data")


def _without_retries(table: Table) -> Table:
    """The same table, whose commits are tried once.

    pyiceberg would repeat a commit without asking whether another writer has committed its batch.
    """
    properties = {**table.metadata.properties, _RETRIES: "0"}
    metadata = table.metadata.model_copy(update={"properties": properties})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def _text(kind: I.IcebergType) -> str:
    """A type without the ids of its fields."""
    if isinstance(kind, I.StructType):
        return (
            f"struct<{', '.join(f'{each.name}: {_text(each.field_type)}' for each in kind.fields)}>"
        )
    if isinstance(kind, I.ListType):
        return f"list<{_text(kind.element_type)}>"
    if isinstance(kind, I.MapType):
        return f"map<{_text(kind.key_type)}, {_text(kind.value_type)}>"
    return str(kind)


def _spark_type(kind: I.IcebergType) -> T.DataType | None:
    """The type of Spark for the values of a column in Parquet; None if there is none."""
    if isinstance(kind, I.DecimalType):
        return T.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, I.ListType):
        element = _spark_type(kind.element_type)
        return T.ArrayType(element) if element else None
    if isinstance(kind, I.MapType):
        key, value = _spark_type(kind.key_type), _spark_type(kind.value_type)
        return T.MapType(key, value) if key and value else None
    if isinstance(kind, I.StructType):
        types = [(each.name, _spark_type(each.field_type)) for each in kind.fields]
        fields = [T.StructField(name, of) for name, of in types if of]
        return T.StructType(fields) if len(fields) == len(types) else None
    return next((of() for of, known in _PRIMITIVES.items() if known == kind), None)


def _renamed(table: Table) -> str:
    """A column whose name did not always mean the same; empty if there is none."""
    now = table.schema()
    names = {number: now.find_column_name(number) for number in now.field_ids}
    numbers = {name: number for number, name in names.items()}
    for schema in table.schemas().values():
        for number in schema.field_ids:
            name = schema.find_column_name(number)
            if names.get(number, name) != name or numbers.get(name, number) != number:
                return names.get(number) or name or ""
    return ""


def _hours(table: Table, files: Iterable[DataFile]) -> str:
    """Return the name of the directories with the hours of ``timestamp`` that all files are in.

    Other writers may name directories differently, or as a column, for which Spark would take it.
    Then the result is empty.
    """
    columns = {each.name.lower() for each in table.schema().fields}
    for number, field in enumerate(table.spec().fields):
        source = table.schema().find_column_name(field.source_id)
        if source == "timestamp" and isinstance(field.transform, HourTransform):
            for file in files:
                hour = file.partition[number] if file.spec_id == table.spec().spec_id else None
                text = field.transform.to_human_string(I.IntegerType(), hour)
                names = {each.partition("=")[0].lower() for each in file.file_path.split("/")}
                if f"/{field.name}={text}/" not in file.file_path or names & columns:
                    return ""
            return "" if columns & {"date", "hour"} else field.name
    return ""


def _value(source: str, kind: T.DataType, how: str) -> Column | None:
    """The value of a partition as the name of a directory; None for other transforms."""
    name = f"`{source.replace('`', '``')}`"
    if how == "identity":
        return F.col(name)
    if how not in _FORMATS:
        return None
    if not isinstance(kind, T.TimestampType):
        return F.date_format(name, _FORMATS[how])
    if how == "hour":
        return F.expr(f"concat({date_of(name)}, '-', lpad({hour_of(name)}, 2, '0'))")
    return F.date_format(F.expr(date_of(name)), _FORMATS[how])
