"""Values in a store that are replaced as a whole, by one run at a time."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
from typing import TYPE_CHECKING, Any

from nsqtools.errors import LockedError
from nsqtools.stores import in_threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsqtools.stores.interface import Store


class Versions:
    """The versions ``<folder>/<number>``, of which the last one counts.

    No store has to replace a file for it: a version is put if no other run has put it. All methods
    raise OSError.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder
        self.number = 0
        """The number of the version that was loaded or saved last; 0 without one."""

    @property
    def url(self) -> str:
        """The full name of the version that was loaded or saved last, for messages."""
        return self._store.url(self._path(self.number) if self.number else self._folder)

    def load(self) -> Any:
        """Return the value; raises FileNotFoundError without one, ValueError if it is damaged."""
        self.number = max(self._numbers(), default=0)
        if not self.number:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url)
        return json.loads(self._store.get(self._path(self.number)))

    def save(self, value: Mapping[str, Any]) -> None:
        """Replace the value durably; raises LockedError if another run has done so."""
        number = self.number + 1
        path = self._path(number)
        taken = self._store.put_if_absent(path, json.dumps(value).encode())
        known = self._numbers() if taken else []
        if taken and max(known, default=0) > number:  # which has removed one with this number
            self._store.delete(path)
            taken = False
        if not taken:
            raise LockedError(f"{self._store.url(path)}: another run has taken over")
        self.number = number
        for old in known:
            if old < number:
                self._store.delete(self._path(old))

    def is_newest(self) -> bool:
        """Whether no other run has saved one: it puts the next version, and removes this one."""
        with contextlib.suppress(FileNotFoundError):
            self._store.stat(self._path(self.number))
            try:
                self._store.stat(self._path(self.number + 1))
            except FileNotFoundError:
                return True
        return False

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._store.list(self._folder) if name.isdecimal()]

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:010d}"


class Shares:
    """Parts of a state by name, each replaced as a whole.

    The part at ``<folder>/<name>/<version>-<mark>`` with the highest version counts. Each step of
    the job has a version, so an obsolete run can only write parts that no longer count. ``mark`` is
    known from the listing: it tells whether a part has to be loaded. All methods raise OSError.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder

    @functools.cached_property
    def _there(self) -> dict[str, list[str]]:
        """The versions of each part, the newest last; one request lists a thousand."""
        found: dict[str, list[str]] = {}
        for each in sorted(self._store.files(self._folder)):
            name, version = each.path.split("/")[-2:]
            found.setdefault(name, []).append(version)
        return found

    def names(self) -> list[str]:
        """Return the names of all parts."""
        return list(self._there)

    def mark(self, name: str) -> str | None:
        """Return the mark of a part; None if there is no such part."""
        versions = self._there.get(name)
        return versions[-1].partition("-")[2] if versions else None

    def load(self, names: Iterable[str]) -> list[Any]:
        """Return the values of the parts that exist; raises ValueError if one is damaged."""
        paths = [self._path(name, self._there[name][-1]) for name in names if name in self._there]
        return [json.loads(each) for each in in_threads(self._store.get, paths)]

    def save(self, version: int, parts: Mapping[str, tuple[str, Any]]) -> None:
        """Replace parts durably, by name, each by its mark and value."""

        def replace(name: str) -> None:
            mark, value = parts[name]
            newest = f"{version:010d}-{mark}"
            self._store.put(self._path(name, newest), json.dumps(value).encode())
            for old in self._there.get(name, ()):
                if old != newest:
                    self._store.delete(self._path(name, old))
            self._there[name] = [newest]

        in_threads(replace, parts)

    def _path(self, name: str, version: str) -> str:
        return f"{self._folder}/{name}/{version}"
