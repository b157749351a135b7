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
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark.lake.folders import sync_file
from nsqtools.spark.lake.snapshots import DELTA, Maintained, TableFiles, TableSchema
from nsqtools.spark.lake.write import NULL
from nsqtools.stores.interface import StoredFile, as_output_error
from nsqtools.stores.mounted import sync_directory
from nsqtools.stores.places import below, local, s3_server

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction, RemoveAction
    from pyspark.sql.types import StructField, StructType

    from nsqtools.spark.lake.write import PartFile

_PARTITION_TYPES = frozenset({"string", "date", "tinyint", "smallint", "int", "bigint"})
"""Types of partitions for which a directory's name has the value as Delta Lake writes it."""
_FOREIGN = re.compile(r"\b(void|interval|char|varchar)\b")
_READABLE = frozenset({"appendOnly", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features of tables whose Parquet files have exactly the rows of the table."""
_MAPPING, _MODE = "columnMapping", "delta.columnMapping.mode"


class DeltaOutput:
    """A table at a path or URL; with ``evolve`` it gets the columns that it lacks.

    Its methods raise OutputError if the table or its store fails, and ConfigError without delta-rs.
    """

    def __init__(self, place: str, *, evolve: bool = False) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError:
            raise ConfigError(
                f"--format delta needs the package deltalake: run {sys.executable} -m pip install "
                "'nsqtools[delta]'"
            ) from None
        self._place = place
        self._evolve = evolve
        path = local(place)
        self._folder = None if path is None else str(path)
        self._url, self._options = _location(place)
        self._table: DeltaTable | None = None

    def check(self, schema: StructType) -> None:
        """Raise ConfigError if the table cannot take rows of this schema."""
        table = self._load()
        if table is None:
            _as_delta(self._place, schema)
            return
        constraints = table.metadata().configuration.keys()
        if any(name.startswith("delta.constraints.") for name in constraints):
            raise ConfigError(
                f"--output {self._place}: the table has constraints, which would not be checked: "
                "write to a table without them"
            )
        known = _columns(table)
        for name in table.metadata().partition_columns:
            found = known[name.lower()].dataType.simpleString()
            if found not in _PARTITION_TYPES:
                raise ConfigError(
                    f"--output {self._place}: the table is partitioned by {name}, of type {found}: "
                    f"expected one of {', '.join(sorted(_PARTITION_TYPES))}"
                )
        for each in schema:
            column, wanted = known.get(each.name.lower()), each.dataType.simpleString()
            found = column.dataType.simpleString() if column else ""
            if found and found != wanted:
                raise ConfigError(
                    f"--output {self._place}: the table has {each.name} as {found}, not {wanted}: "
                    "change --select"
                )
            if not found and not self._evolve:
                raise ConfigError(
                    f"--output {self._place}: the table lacks {each.name}: change --select, or add "
                    "--evolve to add the column to the table"
                )

    def has(self, query: str, number: int) -> bool:
        """Whether the table has a batch of a query; it is durable then."""
        table = self._load()
        newest = table.transaction_version(query) if table else None
        if newest is None or newest < number:
            return False
        self._sync(0)  # the run that has committed it may have been killed before it could
        return True

    def names(self, columns: Sequence[str]) -> list[str]:
        """Return the table's spelling of these columns, which differs from Spark's in case only."""
        known = {} if self._table is None else _columns(self._table)
        return [known[name.lower()].name if name.lower() in known else name for name in columns]

    def partitions(self, otherwise: Sequence[str]) -> Sequence[str]:
        """Return the columns that the table is partitioned by; a new one is by ``otherwise``."""
        return otherwise if self._table is None else self._table.metadata().partition_columns

    def commit(
        self,
        files: Iterable[PartFile],
        schema: StructType,
        partitions: Sequence[str],
        query: str,
        number: int,
    ) -> None:
        """Add the files of a batch durably, in one commit, unless the table has the batch."""
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.exceptions import CommitFailedError

        numbers = {each.name for each in schema if each.dataType.simpleString().endswith("int")}
        added: list[AddAction | RemoveAction] = [
            _action(each, partitions, numbers) for each in files
        ]
        if not added:
            return
        batch = CommitProperties(app_transactions=[Transaction(query, number)])
        wanted = _as_delta(self._place, schema)
        with _explained(self._place):
            if self._table is None:
                self._table = DeltaTable.create(
                    *(self._url, wanted, "ignore", list(partitions)), storage_options=self._options
                )
            before, known = self._table.version(), _columns(self._table)
            if missing := [each for each in wanted.fields if each.name.lower() not in known]:
                self._table.alter.add_columns(missing)
            try:
                self._table.create_write_transaction(
                    added, "append", wanted, list(partitions), commit_properties=batch
                )
            except CommitFailedError:
                if not self.has(query, number):
                    raise
            self._sync(before)

    def _load(self) -> DeltaTable | None:
        """The newest version of the table; None if there is none."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with _explained(self._place), contextlib.suppress(TableNotFoundError):
            if self._table is None:
                self._table = DeltaTable(self._url, storage_options=self._options)
            else:
                self._table.update_incremental()
        return self._table

    def _sync(self, first: int) -> None:
        """Make the commits of a local table durable from version ``first`` on."""
        if self._folder is None:
            return
        with as_output_error(self._place):
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


def _columns(table: DeltaTable) -> Mapping[str, StructField]:
    """The columns by their names in lower case; Delta Lake writes a schema as Spark does."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    return {each.name.lower(): each for each in schema}


def _as_delta(place: str, schema: StructType) -> Schema:
    """The schema for a table, in which any value may be missing. Raises ConfigError."""
    from deltalake import Schema

    for each in schema:
        if found := _FOREIGN.search(each.dataType.simpleString()):
            raise ConfigError(
                f"--output {place}: {each.name} is of type {found[0]}, which a table cannot have: "
                "cast it to another type"
            )
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
    return AddAction(file.path, file.length, values, round(time.time() * 1000), True, stats)


@contextlib.contextmanager
def _explained(place: str) -> Iterator[None]:
    """Raise delta-rs' errors as OutputError."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        raise OutputError(f"{place}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """The text of an error of delta-rs without the lines of its causes."""
    return next(iter(str(error).splitlines()), type(error).__name__).strip()


def read_table(place: str) -> TableFiles:
    """Return the current files of a table, for Spark's file source.

    Raises ConfigError for a table whose Parquet files have other rows or columns than the table.
    """
    table = _readable(place)
    with _explained(place):
        partitions = tuple(table.metadata().partition_columns)
        schema = TableSchema(table.schema().to_json(), partitions)
        files = _current(place, table)
    return TableFiles(schema, files)


def optimize(place: str, file_size: int) -> Maintained:
    """Merge small files, and delete files that were replaced before the table's retention.

    Raises as ``read_table`` does.
    """
    table = _readable(place)
    with _explained(place):
        before, old = table.version(), _current(place, table)
        done = table.optimize.compact(target_size=file_size)
        made = {*_current(place, table)} - {*old}
    output = DeltaOutput(place)
    if output._folder is not None:
        with as_output_error(place):
            for path, *_ in made:
                sync_file(path)
            for folder in {posixpath.dirname(path) for path, *_ in made}:
                sync_directory(folder)
    output._sync(before)
    with _explained(place):
        deleted = table.vacuum(dry_run=False)
    return Maintained(done["numFilesRemoved"], done["numFilesAdded"], len(deleted))


def _current(place: str, table: DeltaTable) -> list[StoredFile]:
    actions = table.get_add_actions()
    partitions = table.metadata().partition_columns
    paths, sizes = (actions[each].to_pylist() for each in ("path", "size_bytes"))
    return sorted(
        StoredFile(_placed(place, path, partitions), size, 0)
        for path, size in zip(paths, sizes, strict=True)
    )


def _readable(place: str) -> DeltaTable:
    table = DeltaOutput(place)._load()
    if table is None:
        raise ConfigError(f"--input {place}: {DELTA} has no table")
    features = {*(table.protocol().reader_features or ())} - {*_READABLE, _MAPPING}
    if table.metadata().configuration.get(_MODE, "none") != "none":
        features.add(_MAPPING)
    if features:
        raise ConfigError(
            f"--input {place}: the table uses {', '.join(sorted(features))}, so its files cannot be"
            " read alone: read it with Spark's package of Delta Lake"
        )
    return table


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
