"""The position of a replay: a file that is replaced after each batch."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, OutputError
from nsqtools.sinks.files.disk import sync_directory
from nsqtools.spark.mounted import replace_json

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ReplayState", "forget", "load", "save"]

_NAME = "replay.json"
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


def load(root: str, wanted: Mapping[str, Any]) -> ReplayState | None:
    """Return the state in a directory; None without one.

    Raises ConfigError if it belongs to other settings or is invalid, OutputError if it cannot be
    read.
    """
    path = os.path.join(root, _NAME)
    try:
        with open(path, "rb") as file:
            found = json.load(file)
        if found.pop("format") != _FORMAT:
            raise ValueError
        parts = [(str(name), int(rows)) for name, rows in found.pop("parts")]
        state = ReplayState(**found, parts=parts)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ConfigError(
            f"{path}: is not a readable state of replay: remove it to replay from the beginning"
        ) from None
    if state.settings != wanted:
        raise ConfigError(
            f"{root}: has a replay with other inputs or options, of which {state.passed} of "
            f"{state.rows} rows are done: run that replay again, or remove the directory"
        )
    return state


def save(root: str, state: ReplayState) -> None:
    """Replace the state durably."""
    replace_json(os.path.join(root, _NAME), {"format": _FORMAT, **asdict(state)})


def forget(root: str) -> None:
    """Remove the state, because all staged rows are done."""
    os.unlink(os.path.join(root, _NAME))
    sync_directory(root)
