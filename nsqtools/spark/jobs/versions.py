"""A value in a store that is replaced as a whole, by one run at a time."""

from __future__ import annotations

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

    No store has to replace a file for it: a version is put if no other run has put it. ``first`` is
    the file that version 0.1 replaced, if any. All methods raise OSError.
    """

    def __init__(self, store: Store, folder: str, first: str = "") -> None:
        self.path = first
        self._store = store
        self._folder = folder
        self._number = 0

    @property
    def url(self) -> str:
        """The full name of the version that was loaded or saved last, for messages."""
        return self._store.url(self.path or self._folder)

    def load(self) -> Any:
        """Return the value; raises FileNotFoundError without one, ValueError if it is damaged."""
        if newest := self._newest():
            self._number, self.path = newest, self._path(newest)
        if not self.path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url)
        return json.loads(self._store.get(self.path))

    def save(self, value: Mapping[str, Any]) -> None:
        """Replace the value durably; raises LockedError if another run has done so."""
        number = self._number + 1
        path = self._path(number)
        taken = self._store.put_if_absent(path, json.dumps(value).encode())
        if taken and self._newest() > number:  # which has removed one with this number
            self._store.delete(path)
            taken = False
        if not taken:
            raise LockedError(f"{self._store.url(path)}: another run has taken over")
        if self.path:
            self._store.delete(self.path)
        self._number, self.path = number, path

    def remove(self) -> None:
        """Remove the value."""
        self._store.delete(self.path)
        self._store.delete(self._folder)

    def _newest(self) -> int:
        names = self._store.list(self._folder)
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:010d}"
