"""Tables of Delta Lake: tasks write Parquet files, and delta-rs commits the list of them.

A commit carries the id of the query and the number of the batch (the action ``txn`` of the
protocol). So a batch that a killed run has committed is not committed again, and readers see all of
a batch or nothing. Spark needs no jar for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from nsqtools.clock import wall
from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark.lake.folders import sync_file
from nsqtools.spark.lake.snapshots import DELTA, Maintained, TableFiles, TableSchema
from nsqtools.spark.lake.tables import (
    LakeTable,
    TableColumn,
    not_installed,
    reason_of,
    unsupported,
)
from nsqtools.spark.lake.write import NULL
from nsqtools.stores.interface import StoredFile, as_output_error
from nsqtools.stores.pinned import sync_directory
from nsqtools.stores.places import below, local, s3_server

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    import deltalake
    from deltalake import Schema
    from deltalake.transaction import AddAction, RemoveAction
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

    from nsqtools.spark.lake.tables import Token
    from nsqtools.spark.lake.write import PartFile

_PARTITION_TYPES = frozenset({"string", "date", "tinyint", "smallint", "int", "bigint"})
"""Types of partitions for which a directory's name has the value as Delta Lake writes it."""
_FOREIGN = re.compile(r"\b(void|interval|char|varchar)\b")
_READABLE = frozenset({"appendOnly", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features of tables whose Parquet files have exactly the rows of the table."""
_MAPPING, _MODE = "columnMapping", "delta.columnMapping.mode"


class DeltaTable(LakeTable):
    """A table of Delta Lake at a path or URL. Raises ConfigError without delta-rs."""

    def __init__(self, place: str, *, evolve: bool = False) -> None:
        super().__init__(place, evolve=evolve)
        try:
            import deltalake  # noqa: F401
        except ImportError:
            raise not_installed("delta", "deltalake") from None
        path = local(place)
        self._folder = None if path is None else str(path)
        self._url, self._options = _location(place)
        self._table: deltalake.DeltaTable | None = None

    def check(self, schema: StructType) -> None:
        """Raise ConfigError if the table cannot take rows of this schema."""
        super().check(schema)
        names = {each.name.lower() for each in schema}
        for name in self._table.metadata().partition_columns if self._table else ():
            if name.lower() not in names:
                raise ConfigError(
                    f"--output {self._name}: the table is partitioned by {name}, which the rows "
                    "lack: select it too"
                )

    def has(self, token: Token) -> bool:
        """Whether the table has a batch; it is durable then."""
        if not _has(self._load(), token):
            return False
        self._sync(0)  # the run that has committed it may have been killed before it could
        return True

    def prepare(
        self, rows: DataFrame, schema: StructType, partitions: Sequence[str]
    ) -> tuple[str, DataFrame, Sequence[str]]:
        """As ``LakeTable`` has it: the files of a table are beside its log."""
        if self._table:
            partitions = self._table.metadata().partition_columns
        return self._name, rows, partitions

    def commit(
        self,
        files: Iterable[PartFile],
        schema: StructType,
        partitions: Sequence[str],
        token: Token | None = None,
    ) -> None:
        """Add files of rows of a schema durably, unless the table has their batch."""
        import deltalake
        from deltalake.exceptions import CommitFailedError

        numbers = {each.name for each in schema if each.dataType.simpleString().endswith("int")}
        added: list[AddAction | RemoveAction] = [
            _action(each, partitions, numbers) for each in files
        ]
        if not added:
            return
        properties = deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(*token)] if token else None
        )
        wanted = _as_delta(schema)
        with _explained(self._name):
            if self._table is None:
                self._table = deltalake.DeltaTable.create(
                    *(self._url, wanted, "ignore", list(partitions)), storage_options=self._options
                )
            before, known = self._table.version(), _described(self._table)
            if missing := [each for each in wanted.fields if each.name.lower() not in known]:
                self._check_evolve(missing[0].name)
                self._table.alter.add_columns(missing)
            try:
                # Another run may have made the table, or have committed before the columns came.
                if token and _has(self._table, token):
                    raise CommitFailedError
                self._table.create_write_transaction(
                    added, "append", wanted, list(partitions), commit_properties=properties
                )
            except CommitFailedError:
                if token is None or not self.has(token):
                    raise
            self._sync(before)

    def verify(self) -> None:
        """Refuse constraints, and partitions whose values directories write differently."""
        table = self._load()
        if table is None:
            return
        constraints = table.metadata().configuration.keys()
        if any(name.startswith("delta.constraints.") for name in constraints):
            raise ConfigError(
                f"--output {self._name}: the table has constraints, which would not be checked: "
                "write to a table without them"
            )
        known = _described(table)
        for name in table.metadata().partition_columns:
            found = known[name.lower()].type
            if found not in _PARTITION_TYPES:
                raise ConfigError(
                    f"--output {self._name}: the table is partitioned by {name}, of type {found}: "
                    f"expected one of {', '.join(sorted(_PARTITION_TYPES))}"
                )

    @property
    def _columns(self) -> dict[str, TableColumn] | None:
        return None if self._table is None else _described(self._table)

    def _type(self, column: StructField) -> str:
        kind = column.dataType.simpleString()
        if found := _FOREIGN.search(kind):
            raise unsupported(self._name, column.name, found[0])
        return kind

    def files(self) -> TableFiles:
        """Return the current files of the table, for Spark's file source.

        Raises ConfigError for a table whose Parquet files have other rows or columns than it.
        """
        table = self._readable()
        with _explained(self._name):
            partitions = tuple(table.metadata().partition_columns)
            schema = TableSchema(table.schema().to_json(), partitions)
            return TableFiles(schema, self._current(table))

    def optimize(self, file_size: int) -> Maintained:
        """Merge small files, and delete files that were replaced before the table's retention.

        Raises as ``files`` does.
        """
        table = self._readable()
        with _explained(self._name):
            before, old = table.version(), self._current(table)
            done = table.optimize.compact(target_size=file_size)
            made = [path for path, *_ in {*self._current(table)} - {*old}]
        if self._folder is not None:
            with as_output_error(self._name):
                for path in made:
                    sync_file(path)
                for folder in {posixpath.dirname(path) for path in made}:
                    sync_directory(folder)
        self._sync(before)
        with _explained(self._name):
            deleted = table.vacuum(dry_run=False)
        return Maintained(done["numFilesRemoved"], done["numFilesAdded"], len(deleted))

    def _readable(self) -> deltalake.DeltaTable:
        """The newest version of the table. Raises ConfigError if its files are not its rows."""
        table = self._load()
        if table is None:
            raise ConfigError(f"--input {self._name}: {DELTA} has no table")
        features = {*(table.protocol().reader_features or ())} - {*_READABLE, _MAPPING}
        if table.metadata().configuration.get(_MODE, "none") != "none":
            features.add(_MAPPING)
        if features:
            raise ConfigError(
                f"--input {self._name}: the table uses {', '.join(sorted(features))}, so its files "
                "cannot be read alone: read it with Spark's package of Delta Lake"
            )
        return table

    def _current(self, table: deltalake.DeltaTable) -> list[StoredFile]:
        """The files of a version."""
        actions = table.get_add_actions()
        partitions = table.metadata().partition_columns
        paths, sizes = (actions[each].to_pylist() for each in ("path", "size_bytes"))
        return sorted(
            StoredFile(_placed(self._name, path, partitions), size, 0)
            for path, size in zip(paths, sizes, strict=True)
        )

    def _load(self) -> deltalake.DeltaTable | None:
        """The newest version of the table; None if there is none."""
        import deltalake
        from deltalake.exceptions import TableNotFoundError

        with _explained(self._name), contextlib.suppress(TableNotFoundError):
            if self._table is None:
                self._table = deltalake.DeltaTable(self._url, storage_options=self._options)
            else:
                self._table.update_incremental()
        return self._table

    def _sync(self, first: int) -> None:
        """Make the commits of a local table durable from version ``first`` on."""
        if self._folder is None:
            return
        with as_output_error(self._name):
            log = posixpath.join(self._folder, DELTA)
            for path in _commits(log, first):
                sync_file(path)
            sync_directory(log)
            sync_directory(self._folder)


def _commits(log: str, first: int) -> Iterator[str]:
    for name in os.listdir(log):
        number, _, suffix = name.partition(".")
        if suffix == "json" and number.isdecimal() and int(number) >= first:
            yield posixpath.join(log, name)


def _location(place: str) -> tuple[str, dict[str, str]]:
    """The URL of a table for delta-rs, and its options beside AWS_* and other variables."""
    if (path := local(place)) is not None:
        return str(path), {}
    scheme, _, rest = place.partition("://")
    if scheme.lower() not in ("s3", "s3a", "s3n"):
        return place, {}
    endpoint, region = s3_server()
    options = {"AWS_REGION": region} if region else {}
    if endpoint:
        options |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    return f"s3://{rest}", options


def _has(table: deltalake.DeltaTable | None, token: Token) -> bool:
    newest = table.transaction_version(token.query) if table else None
    return newest is not None and newest >= token.number


def _described(table: deltalake.DeltaTable) -> dict[str, TableColumn]:
    """The columns by their names in lower case; Delta Lake writes a schema as Spark does."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    return {
        each.name.lower(): TableColumn(each.name, each.dataType.simpleString()) for each in schema
    }


def _as_delta(schema: StructType) -> Schema:
    """The schema for a table, in which any value may be missing."""
    from deltalake import Schema

    return Schema.from_json(json.dumps(_nullable(schema.jsonValue())))


def _nullable(value: Any) -> Any:
    if isinstance(value, list):
        return [_nullable(each) for each in value]
    if not isinstance(value, dict):
        return value
    flags = dict.fromkeys(value.keys() & {"nullable", "containsNull", "valueContainsNull"}, True)
    return {key: _nullable(each) for key, each in value.items()} | flags


def _action(file: PartFile, partitions: Sequence[str], numbers: Container[str]) -> AddAction:
    """The entry of the log for a file; the partitions in ``numbers`` are integers."""
    from deltalake.transaction import AddAction

    values: dict[str, str | None] = {}
    for piece in file.path.split("/")[:-1]:
        key, _, value = piece.partition("=")
        if key in partitions:
            text = unquote(value)
            values[key] = None if value == NULL else str(int(text)) if key in numbers else text
    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.length, values, round(wall() * 1000), True, stats)


@contextlib.contextmanager
def _explained(place: str) -> Iterator[None]:
    """Raise delta-rs' errors as OutputError."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        raise OutputError(f"{place}: {reason_of(error)}") from error


def _placed(place: str, path: str, partitions: Iterable[str]) -> str:
    """Return the path or URL of a file from its name in the log, which is a relative URL."""
    relative = unquote(path)
    folders = {each.partition("=")[0] for each in relative.split("/")[:-1]}
    if "://" in path or path.startswith("/") or not folders.issuperset(partitions):
        raise ConfigError(
            f"--input {place}: {relative} is in another place, or not in directories named by the "
            "table's partitions: read the table with Spark's package of Delta Lake"
        )
    return below(place, relative)
