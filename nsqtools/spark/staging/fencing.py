"""Errors of the staging."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nsqtools.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator


class FencedError(OutputError):
    """Another attempt has taken over the partition; the entry was not put."""


class StaleError(FencedError):
    """The batch was committed; this task or driver is obsolete."""


def damaged(file: str) -> OutputError:
    """Return the error for an unusable file that has the only copy of messages."""
    return OutputError(
        f"{file}: missing or damaged, and its messages were finished in nsqd: restore the "
        "file, or continue without the batch with a new checkpoint directory"
    )


@contextlib.contextmanager
def as_output_error(place: str) -> Iterator[None]:
    """Convert OSErrors to OutputError; FileNotFoundError is left to the caller."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OutputError(f"{error.filename or place}: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    """Return the reason in one line."""
    return error.strerror or str(error).strip().partition("\n")[0]
