"""Checks before the start of Spark, because the start takes seconds."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError, NSQError, PeerError
from nsqtools.names import Address
from nsqtools.net.connection import Connection
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark.lake.inputs import expanded
from nsqtools.spark.properties import is_local
from nsqtools.spark.source.depths import Depths
from nsqtools.spark.source.sourceoptions import parse_sink, parse_source, with_secret
from nsqtools.stores import stored
from nsqtools.stores.places import is_named, is_pattern, local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsqtools.config.connection import ClientConfig

log = logging.getLogger(__name__)


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of ``--lock``, if given.

    Entering raises LockedError if another process holds it, ConfigError if the file cannot be
    locked.
    """
    with ExitStack() as held:
        if path:
            try:
                held.enter_context(Lock(path, keep=True))
            except OSError as error:
                raise ConfigError(f"--lock {path}: {error.strerror}") from error
        yield


def check_free(path: str) -> None:
    """Raise LockedError if another process holds this local lock. The job takes it later."""
    if os.path.exists(path):
        with Lock(path, keep=True):
            pass


def check_inputs(inputs: Iterable[str]) -> list[str]:
    """Return the inputs and the matches of their patterns.

    Raises ConfigError for an input that does not exist or cannot be listed.
    """
    found: list[str] = []
    for text in inputs:
        places = list(expanded([text]))
        found += places
        if is_pattern(text) or is_named(text):
            continue
        store, path = stored(*places)
        try:
            if local(text) is not None or not store.list(path):
                store.stat(path)
        except OSError as error:
            raise ConfigError(f"--input {text}: {error.strerror}") from error
    return found


async def waiting(options: Mapping[str, str], master: str, *, creates: bool) -> int:
    """The number of messages waiting for a source with these options.

    Raises NSQError if no nsqd has a topic, but not with ``creates``: fixed nsqds then create it.
    Raises UnreachableError or another PeerError if no nsqd can be asked, or if all would refuse
    executors on this machine. Raises ConfigError for wrong options.
    """
    settings = replace(parse_source(options), wait_for_servers=False)
    asked = Depths(settings, creates=creates)
    depths = await asked.ask()
    if asked.missing and not creates:
        raise NSQError(f"no nsqd has topic {min(asked.missing)}: check the name")
    if is_local(master):
        found = {Address.parse(nsqd) for _, nsqd in depths}
        await _greet(sorted(found), with_secret(settings))
    return sum(depths.values())


async def silent(options: Mapping[str, str]) -> list[str]:
    """Describe the servers with an unknown number of messages waiting for the source."""
    asked = Depths(replace(parse_source(options), wait_for_servers=True), creates=False)
    await asked.ask()
    return asked.unknown


async def check_sink(options: Mapping[str, str], master: str) -> None:
    """Raise a PeerError if all nsqds of a sink would refuse executors on this machine."""
    settings = parse_sink(options)
    if is_local(master):
        await _greet(settings.nsqds, with_secret(settings))


async def _greet(nsqds: Sequence[Address], config: ClientConfig) -> None:
    """Connect to each nsqd. Raises the first error if all refuse."""
    errors = [each for each in await asyncio.gather(*(_try(n, config) for n in nsqds)) if each]
    if errors and len(errors) == len(nsqds):
        raise errors[0]
    for error in errors:
        log.warning("nsqd %s", error)


async def _try(nsqd: Address, config: ClientConfig) -> PeerError | None:
    try:
        connection = await Connection.open(nsqd, config, auth_secret=config.auth_secret)
    except PeerError as error:
        return error
    await connection.close(drain=0)
    return None
