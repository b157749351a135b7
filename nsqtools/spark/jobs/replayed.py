"""The position of a replay: a file of a store that is replaced after each batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nsqtools.errors import ConfigError, OutputError
from nsqtools.stores.places import below

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqtools.spark.jobs.versions import Versions

__all__ = ["ReplayState", "load", "save"]

_FORMAT = "nsqtools replay 1"


@dataclass(slots=True)
class ReplayState:
    """The staged rows and the position in them.

    ``settings`` identify the selection. ``parts`` are files with their numbers of rows; rows before
    ``row`` of part number ``part`` are done. ``reason`` is the reason of the first refusal.
    """

    settings: dict[str, Any]
    parts: list[tuple[str, int]]
    part: int = 0
    row: int = 0
    published: int = 0
    refused: int = 0
    reason: str = ""

    @property
    def rows(self) -> int:
        """Number of rows in all parts."""
        return sum(rows for _, rows in self.parts)

    @property
    def passed(self) -> int:
        """Number of rows before the position."""
        return sum(rows for _, rows in self.parts[: self.part]) + self.row


def load(versions: Versions, staging: str, wanted: Mapping[str, Any]) -> ReplayState | None:
    """Return the state in a staging directory; None without one.

    Raises ConfigError if it belongs to other settings or is invalid, OutputError if it cannot be
    read.
    """
    try:
        found = versions.load()
        if found.pop("format") != _FORMAT:
            raise ValueError
        found.pop("run", None)
        parts = [(str(name), int(rows)) for name, rows in found.pop("parts")]
        state = ReplayState(**found, parts=parts)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"{error.filename or staging}: {error.strerror}") from error
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ConfigError(
            f"{below(staging, versions.path)}: is not a readable state of replay: remove it to "
            "replay from the beginning"
        ) from None
    if state.settings != wanted:
        raise ConfigError(
            f"{staging}: has a replay with other inputs or options, of which {state.passed} of "
            f"{state.rows} rows are done: run that replay again, or remove the directory"
        )
    return state


def save(versions: Versions, state: ReplayState) -> None:
    """Replace the state durably; raises OSError."""
    versions.save({"format": _FORMAT, "run": uuid4().hex, **asdict(state)})
