"""What can be known to fail before Spark is started, which takes seconds."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

from nsqtools.errors import PeerError
from nsqtools.names import Address
from nsqtools.net.connection import Connection
from nsqtools.net.nobody import Nobody
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark.depths import Depths
from nsqtools.spark.options import parse_sink, parse_source, with_secret
from nsqtools.spark.session import is_local

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from nsqtools.config import ClientConfig

log = logging.getLogger(__name__)


def locked(path: str) -> AbstractContextManager[object]:
    """Holds the lock of ``--lock``, if it is given.

    Entering raises LockedError if another process has it.
    """
    return Lock(path, keep=True) if path else nullcontext()


def check_free(path: str) -> None:
    """Raise LockedError if another process has this lock now, which a job takes later."""
    if os.path.exists(path):
        with locked(path):
            pass


async def waiting(options: Mapping[str, str], master: str) -> int:
    """How many messages wait for a source with these options.

    Raises UnreachableError, or another PeerError, if no nsqd can be asked, or if executors of this
    machine would be refused by all. ConfigError is for what the options name.
    """
    settings = parse_source(options)
    depths = await Depths(settings).ask()
    if is_local(master):
        found = {Address.parse(nsqd) for _, nsqd in depths}
        await _greet(sorted(found), with_secret(settings))
    return sum(depths.values())


def check_staging(staging: str) -> None:
    """Raise ConfigError or OutputError if the staging cannot be where it was asked for."""
    from nsqtools.spark.stores import make_store, probe

    probe(*make_store(staging))


async def check_sink(options: Mapping[str, str], master: str) -> None:
    """Raise a PeerError if executors of this machine would be refused by all nsqds of a sink."""
    settings = parse_sink(options)
    if is_local(master):
        await _greet(settings.nsqds, with_secret(settings))


async def _greet(nsqds: Sequence[Address], config: ClientConfig) -> None:
    """Connect to each; raises the first's error if none lets us in."""
    errors = [each for each in await asyncio.gather(*(_try(n, config) for n in nsqds)) if each]
    if errors and len(errors) == len(nsqds):
        raise errors[0]
    for error in errors:
        log.warning("nsqd %s", error)


async def _try(nsqd: Address, config: ClientConfig) -> PeerError | None:
    try:
        connection = await Connection.open(nsqd, config, Nobody(), auth_secret=config.auth_secret)
    except PeerError as error:
        return error
    await connection.close(drain=0)
    return None
