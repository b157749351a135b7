"""Tables, whose format owns the commit: tasks write files, and the driver commits their list."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

    from nsqtools.spark.lake.write import PartFile


_CAUSED = re.compile(r"\(Caused by .*\[Errno -?\d+\] ([^'\")]+)")


class Token(NamedTuple):
    """The id of a query and the number of a batch of it; a table takes such a batch once."""

    query: str
    number: int


class TableColumn(NamedTuple):
    """A column of a table: its spelling, and its type as the format writes it."""

    name: str
    type: str


class LakeTable(ABC):
    """A table of a format, called ``name`` in errors; it may not exist yet.

    With ``evolve`` it gets the columns that it lacks. Methods raise OutputError if the table or its
    store fails.
    """

    def __init__(self, name: str, *, evolve: bool) -> None:
        self._name = name
        self._evolve = evolve

    def check(self, schema: StructType) -> None:
        """Raise ConfigError if the table cannot take rows of this schema."""
        wanted = {each.name: self._type(each) for each in schema}
        self.verify()
        known = self._columns
        if known is None:
            return
        for name, kind in wanted.items():
            column = known.get(name.lower())
            if column and column.type != kind:
                raise ConfigError(
                    f"--output {self._name}: the table has {name} as {column.type}, not {kind}: "
                    "cast it, or select another column"
                )
            if not column:
                self._check_evolve(name)

    def spelled(self, rows: DataFrame) -> DataFrame:
        """Return rows with the table's spelling of columns, which differs in case only."""
        known = self._columns or {}
        names = [
            known[name.lower()].name if name.lower() in known else name for name in rows.columns
        ]
        return rows.toDF(*names)

    def _check_evolve(self, column: str) -> None:
        """Raise ConfigError unless the table may get a column that it lacks."""
        if not self._evolve:
            raise ConfigError(
                f"--output {self._name}: the table lacks {column}: select other columns, or add "
                "--evolve to add it to the table"
            )

    @abstractmethod
    def has(self, token: Token) -> bool:
        """Whether the table has a batch; it is durable then."""

    @abstractmethod
    def prepare(
        self, rows: DataFrame, schema: StructType, partitions: Sequence[str]
    ) -> tuple[str, DataFrame, Sequence[str]]:
        """Return the place for files of rows, the rows, and the columns for their directories.

        ``schema`` has the columns for the table. One that does not exist is partitioned by
        ``partitions``, any other one has its own.
        """

    @abstractmethod
    def commit(
        self,
        files: Iterable[PartFile],
        schema: StructType,
        partitions: Sequence[str],
        token: Token | None = None,
    ) -> None:
        """Add files of rows of a schema durably, unless the table has their batch.

        The files are below the place and in directories of the columns that ``prepare`` returned.
        """

    @abstractmethod
    def verify(self) -> None:
        """Load the newest version. Raise ConfigError for a table that cannot take files."""

    @property
    @abstractmethod
    def _columns(self) -> Mapping[str, TableColumn] | None:
        """The columns of the version loaded last, by their names in lower case; None for none."""

    @abstractmethod
    def _type(self, column: StructField) -> str:
        """The type of a column of rows in this format. Raises ConfigError if there is none."""


def unsupported(name: str, column: str, kind: str) -> ConfigError:
    """Return the error for a column of a type that a format does not have."""
    return ConfigError(
        f"--output {name}: {column} is of type {kind}, which a table cannot have: cast it to "
        "another type"
    )


def not_installed(form: str, package: str) -> ConfigError:
    """Return the error for a format whose package is missing."""
    return ConfigError(
        f"tables of the format {form} need the package {package}: run {sys.executable} -m pip "
        f"install 'nsqtools[{form}]'"
    )


def reason_of(error: Exception) -> str:
    """Return the text of a library's error without the lines of its causes.

    Of a server that cannot be reached, requests' text has the reason at its end.
    """
    text = next(iter(str(error).splitlines()), "").strip() or type(error).__name__
    found = _CAUSED.search(text)
    return found[1] if found else text
