"""A value in a store that is replaced as a whole, by one run at a time."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from typing import TYPE_CHECKING, Any

from nsqtools.errors import LockedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqtools.stores.interface import Store


class Versions:
    """The versions ``<folder>/<number>``, of which the last one counts.

    No store has to replace a file for it: a version is put if no other run has put it. All methods
    raise OSError.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._number = 0

    @property
    def url(self) -> str:
        """The full name of the version that was loaded or saved last, for messages."""
        return self._store.url(self._path(self._number) if self._number else self._folder)

    def load(self) -> Any:
        """Return the value; raises FileNotFoundError without one, ValueError if it is damaged."""
        self._number = max(self._numbers(), default=0)
        if not self._number:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url)
        return json.loads(self._store.get(self._path(self._number)))

    def save(self, value: Mapping[str, Any]) -> None:
        """Replace the value durably; raises LockedError if another run has done so."""
        number = self._number + 1
        path = self._path(number)
        taken = self._store.put_if_absent(path, json.dumps(value).encode())
        known = self._numbers() if taken else []
        if taken and max(known, default=0) > number:  # which has removed one with this number
            self._store.delete(path)
            taken = False
        if not taken:
            raise LockedError(f"{self._store.url(path)}: another run has taken over")
        self._number = number
        for old in known:
            if old < number:
                self._store.delete(self._path(old))

    def is_newest(self) -> bool:
        """Whether no other run has saved one: it puts the next version, and removes this one."""
        with contextlib.suppress(FileNotFoundError):
            self._store.stat(self._path(self._number))
            try:
                self._store.stat(self._path(self._number + 1))
            except FileNotFoundError:
                return True
        return False

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._store.list(self._folder) if name.isdecimal()]

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:010d}"
