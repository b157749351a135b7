"""``nsqtools sandbox``: an embedded nsqd and nsqlookupd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nsqtools.cli.options import Command, options
from nsqtools.config.sandbox import NsqdOptions, SandboxOptions

if TYPE_CHECKING:
    from nsqtools.sandbox import Sandbox


@click.command(
    "sandbox",
    cls=Command,
    essential="host port seed_topic rate msg_timeout max_msg_size tls_cert tls_key "
    "auth_secret_file",
)
@options()
def sandbox(*, options: SandboxOptions, nsqd: NsqdOptions) -> None:
    """Run an embedded nsqd and nsqlookupd, in memory.

    They speak the protocols of the real servers, for demonstrations and for tests of consumers and
    producers without Go. They lack HTTPS, auth servers, text stats, /config and /debug. They run
    until SIGINT or SIGTERM; their messages are then lost.
    """

    from nsqtools.cli.service import until_signal
    from nsqtools.tasks import run_loop

    run_loop(until_signal(_serve(options, nsqd)))


async def _serve(options: SandboxOptions, nsqd: NsqdOptions) -> None:
    import asyncio

    from nsqtools.sandbox import Sandbox

    async with Sandbox(options, nsqd) as running:
        click.echo(addresses(running) if options.port == 0 else _welcome(running, options))
        await asyncio.Event().wait()


def addresses(running: Sandbox) -> str:
    """The addresses of the servers, as a line of JSON."""
    import json

    found = {
        "nsqd_tcp_address": running.nsqd.tcp,
        "nsqd_http_address": running.nsqd.http,
        "lookupd_tcp_address": running.lookupd.tcp,
        "lookupd_http_address": running.lookupd.http,
    }
    return json.dumps({name: str(address) for name, address in found.items()})


def _welcome(running: Sandbox, options: SandboxOptions) -> str:
    lines = [
        f"nsqd        {running.nsqd.tcp}, HTTP {running.nsqd.http}",
        f"nsqlookupd  {running.lookupd.tcp}, HTTP {running.lookupd.http}",
    ]
    if options.seed_topic:
        lines.append(f"{options.rate:g} events a second go to the topic {options.seed_topic}.")
    lines.append("Messages are kept in memory only. Ctrl-C ends the sandbox.")
    return "\n".join(lines)
