"""``nsqtools sandbox``: an embedded nsqd and nsqlookupd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nsqtools.cli.exits import Exit
from nsqtools.cli.options import Command, options
from nsqtools.config import NsqdOptions, SandboxOptions

if TYPE_CHECKING:
    from nsqtools.sandbox import Sandbox


@click.command(
    "sandbox",
    cls=Command,
    guide="sandbox",
)
@options(where=SandboxOptions, nsqd=NsqdOptions)
def sandbox(*, where: SandboxOptions, nsqd: NsqdOptions) -> int:
    """Run an embedded nsqd and nsqlookupd, in memory.

    They behave as the real ones do, so it serves for demonstrations and for tests of consumers and
    producers, without Go. What is published is gone when it ends. It runs until SIGINT or SIGTERM.
    """
    import asyncio

    return asyncio.run(_serve(where, nsqd))


async def _serve(where: SandboxOptions, nsqd: NsqdOptions) -> int:
    from signal import SIGINT

    from nsqtools.cli.signals import first_signal
    from nsqtools.sandbox import Sandbox

    ended = first_signal()
    async with Sandbox(where, nsqd) as running:
        click.echo(_addresses(running) if where.port == 0 else _welcome(running, where))
        return Exit.INTERRUPTED if await ended is SIGINT else Exit.DONE


def _addresses(running: Sandbox) -> str:
    import json

    found = {
        "nsqd_tcp_address": running.nsqd_tcp_address,
        "nsqd_http_address": running.nsqd_http_address,
        "nsqd_https_address": running.nsqd.https,
        "lookupd_tcp_address": running.lookupd_tcp_address,
        "lookupd_http_address": running.lookupd_http_address,
    }
    return json.dumps({name: str(address) for name, address in found.items() if address})


def _welcome(running: Sandbox, where: SandboxOptions) -> str:
    https = f", HTTPS {running.nsqd.https}" if running.nsqd.https else ""
    lines = [
        f"nsqd        {running.nsqd_tcp_address}, HTTP {running.nsqd_http_address}{https}",
        f"nsqlookupd  {running.lookupd_tcp_address}, HTTP {running.lookupd_http_address}",
    ]
    if where.seed_topic:
        lines.append(f"{where.rate:g} events a second go to the topic {where.seed_topic}.")
    lines.append("All is in memory and ends with this program; Ctrl-C ends it.")
    return "\n".join(lines)
