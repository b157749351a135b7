"""Tables as inputs of jobs: a table's own log lists its files, and its format merges them."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.errors import ConfigError
from nsqtools.stores import stored
from nsqtools.stores.places import ICEBERG, is_named, local

if TYPE_CHECKING:
    from nsqtools.stores.interface import StoredFile

DELTA = "_delta_log"
"""The directory that makes a place a table of Delta Lake."""


class TableSchema(NamedTuple):
    """The columns of a table as Spark's JSON; ``partitions`` are those in names of directories.

    ``hours`` names the directories with the hour of ``timestamp``, as in 2026-11-22-09, if all
    files are in such directories.
    """

    columns: str
    partitions: tuple[str, ...] = ()
    hours: str = ""


class TableFiles(NamedTuple):
    """The current files of a table by path or URL, with the time 0: they never change."""

    schema: TableSchema
    files: list[StoredFile]


class Maintained(NamedTuple):
    """The result for a table: small files that were ``merged``, files made, and files deleted."""

    merged: int
    files: int
    deleted: int


def is_table(place: str) -> bool:
    """Whether a place is a table. Raises ConfigError if it cannot be listed."""
    if is_named(place):
        return True
    path = local(place)
    if path is not None:
        return os.path.isdir(path / DELTA)
    store, folder = stored(place)
    try:
        return bool(store.list(posixpath.join(folder, DELTA)))
    except OSError as error:
        raise ConfigError(f"--input {place}: {error.strerror}") from error


def table_at(place: str) -> TableFiles | None:
    """Return the table at a place; None if there is none.

    Raises ConfigError for a place within a table, and for a table that needs more than reading its
    Parquet files; OutputError if its log cannot be read.
    """
    if is_named(place):
        from nsqtools.spark.lake.iceberg import IcebergTable  # pyiceberg is an extra

        return IcebergTable(*_named(place)).files()
    folder = place if "=" in posixpath.basename(place) else posixpath.dirname(place)
    while "=" in posixpath.basename(folder):
        folder = posixpath.dirname(folder)
        if "=" not in posixpath.basename(folder) and is_table(folder):
            raise ConfigError(
                f"--input {place}: is within the table {folder}, which may have replaced this file:"
                f" give --input {folder}, and choose rows by their date"
            )
    if not is_table(place):
        return None
    from nsqtools.spark.lake.delta import DeltaTable  # delta-rs is an extra

    return DeltaTable(place).files()


def compact_table(place: str, file_size: int) -> Maintained:
    """Merge the small files of a Delta table into files of about so many bytes, where they are.

    Also deletes files that were replaced before the table's retention. Other programs may read the
    table and append to it meanwhile. Raises errors of ``table_at``.
    """
    from nsqtools.spark.lake.delta import DeltaTable

    return DeltaTable(place).optimize(file_size)


def _named(place: str) -> tuple[str, str]:
    """The catalog and the name of a table. Raises ConfigError."""
    catalog, slash, name = place.partition(":")[2].partition("/")
    if not slash:
        raise ConfigError(f"--input {place}: expected {ICEBERG}:CATALOG/NAMESPACE.TABLE")
    return catalog, name
