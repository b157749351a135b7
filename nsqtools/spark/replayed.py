"""How far a replay is: a file that is replaced after each batch."""

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
    """What is staged and how far it is published.

    ``settings`` say what was chosen; ``parts`` are files with their rows, of which those before
    ``row`` of the part at ``part`` are done. ``reason`` is why the first of the refused was.
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
        """Rows of all parts."""
        return sum(rows for _, rows in self.parts)

    @property
    def passed(self) -> int:
        """Rows before the place where to go on."""
        return sum(rows for _, rows in self.parts[: self.part]) + self.row


def load(root: str, wanted: Mapping[str, Any]) -> ReplayState | None:
    """The state in a directory; None without any.

    Raises ConfigError if it is of other settings than these or cannot be understood, OutputError if
    it cannot be read.
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
        raise ConfigError(f"{path}: is not a state of replay that can be read") from None
    if state.settings != wanted:
        raise ConfigError(
            f"{root}: has a replay of other inputs or options, of which {state.passed} of "
            f"{state.rows} rows are done: run that again, or remove the directory"
        )
    return state


def save(root: str, state: ReplayState) -> None:
    """Replace the state, and have it last."""
    replace_json(os.path.join(root, _NAME), {"format": _FORMAT, **asdict(state)})


def forget(root: str) -> None:
    """Remove the state: what was staged is done."""
    os.unlink(os.path.join(root, _NAME))
    sync_directory(root)
