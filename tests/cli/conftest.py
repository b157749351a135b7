"""Fixtures for the tests of the command line."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from nsqtools.cli.exits import report_through

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _logging_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that is run in this process sets up logging; later tests must not be mute."""
    monkeypatch.delenv("NSQTOOLS_DEBUG", raising=False)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    root, own = logging.getLogger(), logging.getLogger("nsqtools")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], level, own_level = before
    root.setLevel(level)
    own.setLevel(own_level)
    report_through(None)
