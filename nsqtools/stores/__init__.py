"""Stores: the files below a place on a mounted disk, on HDFS or in an object store.

Nothing is renamed and nothing is written twice: a file appears with its whole content or not at
all. Every kind of store offers this guarantee, and the staging of messages needs no other.
"""

from __future__ import annotations

import errno
import functools
import posixpath
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from nsqtools.errors import ConfigError, OutputError
from nsqtools.stores.interface import THREADS, UNNAMED, reason
from nsqtools.stores.mounted import LocalStore
from nsqtools.stores.objectstore import open_objects
from nsqtools.stores.places import HADOOP, local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsqtools.stores.interface import Store

T = TypeVar("T")
R = TypeVar("R")

_PATIENCE = 30.0
"""Timeout in seconds for a probe: longer than the retries of refused connections."""


def open_store(place: str, flag: str = "staging", retries: int | None = None) -> Store:
    """Return the store of a path or URL; ``flag`` names it in errors.

    An object store repeats failed requests ``retries`` times after growing delays. By default it
    retries refused connections for at most half a minute. Raises ConfigError for an unsupported
    scheme, and for a missing library.
    """
    parts = urlsplit(place)
    scheme = parts.scheme.lower()
    if (path := local(place)) is not None:
        if scheme == "file" and parts.netloc:
            raise ConfigError(f"{flag} {place!r}: expected an absolute path, or file:///path")
        return LocalStore(posixpath.normpath(path))
    if scheme in HADOOP:
        from nsqtools.stores.hadoop import open_hadoop  # pyarrow takes a tenth of a second

        return open_hadoop(place, flag)
    if found := open_objects(place, flag, retries):
        return found
    raise ConfigError(
        f"{flag} {place}: the scheme {scheme} is not supported: give a path, or a URL of file, "
        "hdfs, s3, gs, az or abfss"
    )


def stored(path: str) -> tuple[Store, str]:
    """Return the store for the path or URL of a file, and the file's path there.

    Raises ConfigError as ``open_store`` does.
    """
    if (mounted := local(path)) is not None:
        return LocalStore("/"), str(mounted)[1:]
    scheme, _, rest = path.partition("://")
    authority, _, below = rest.partition("/")
    return _whole_store(f"{scheme}://{authority}/"), below


@functools.cache
def _whole_store(place: str) -> Store:
    return open_store(place, "--input")


def in_threads(work: Callable[[T], R], items: Iterable[T], threads: int = THREADS) -> list[R]:
    """Return the results for all items; threads let requests to stores wait in parallel."""
    items = list(items)
    if min(threads, len(items)) < 2:
        return list(map(work, items))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def probe(store: Store, flag: str = "staging") -> None:
    """Check that a store is writable and refuses to create a file twice.

    Raises ConfigError, or OutputError if the disk is full.
    """
    path = f"{UNNAMED}probe-{uuid4().hex}"
    store.patience = _PATIENCE
    try:
        exclusive = store.put_if_absent(path, b"1") and not store.put_if_absent(path, b"2")
        store.delete(path)
    except OSError as error:
        text = f"{flag} {store.place}: {reason(error)}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(text) from error
        local_one = isinstance(store, LocalStore)
        advice = ": choose a directory that this user can write to" if local_one else ""
        raise ConfigError(text + advice) from error
    finally:
        store.patience = None
    if not exclusive:
        raise ConfigError(
            f"{flag} {store.place}: the store does not refuse to create a file twice "
            "(If-None-Match), so messages would not be safe there: choose another one"
        )
