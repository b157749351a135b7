"""``nsqtools ui``: the cluster in a browser."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from nsqtools.cli.options import Command, options
from nsqtools.config.admin import ClusterOptions
from nsqtools.config.connection import ClientConfig
from nsqtools.config.ui import UiOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


@click.command(
    "ui",
    cls=Command,
    essential="lookupd_http_address nsqd_http_address address allow_changes password_file "
    "acl_http_header admin_user dead_letter_dir audit_log",
)
@options()
def ui(*, servers: ClusterOptions, page: UiOptions, config: ClientConfig) -> None:
    """Show the cluster in a browser.

    The page shows topics, channels, consumers and messages, with charts of the last hour, and
    updates itself. It is read-only without --allow-changes. ui prints its address, and serves until
    SIGINT or SIGTERM.
    """

    from nsqtools.cli.service import until_signal
    from nsqtools.tasks import run_loop

    run_loop(until_signal(_serve(servers, page, config)))


async def _serve(servers: ClusterOptions, page: UiOptions, config: ClientConfig) -> None:
    from nsqtools.cli.remotes import (
        client_limits,
        nsqds_of,
        open_cluster,
        warn_if_public,
        with_secret,
    )
    from nsqtools.cli.service import allow_many_files, supervised
    from nsqtools.engine.administration import Servers
    from nsqtools.names import listening_address
    from nsqtools.net.systemd import Notifier
    from nsqtools.records.bodies.decoders import make_decoder
    from nsqtools.tasks import beside

    _require()
    from nsqtools.engine.clusterwatch import ClusterWatch
    from nsqtools.redrive.republication import Republications
    from nsqtools.ui.application import application
    from nsqtools.ui.audit import Audit
    from nsqtools.ui.site import Site
    from nsqtools.ui.webserver import PageServer

    if page.password_file:
        warn_if_public(page.password_file)
    address = listening_address(page.address)
    assert address
    limits: Mapping[str, Any] = client_limits(servers)
    addresses = Servers(servers.lookupd_http_address, nsqds_of(servers), limits, servers.timeout)
    decoder = make_decoder(page.decode)
    allow_many_files()
    async with open_cluster(servers) as cluster:
        watch = ClusterWatch(cluster, page.interval)
        config, audit = with_secret(config), Audit(page)
        again = Republications(config, page.dead_letter_dir, _log_bug)
        site = Site(watch, page, addresses, config, audit, again, decoder)
        server = PageServer(address, application(site))
        notifier = Notifier()
        try:
            await watch.poll()
            click.echo(f"http://{server.address}{page.base_path}")
            sys.stdout.flush()
            async with (
                supervised(notifier, watch.status, None, list),  # without metrics
                beside(server.serve(), server.stop),
            ):
                notifier.ready()
                await watch.run()  # its end ends the streams, before the server waits for them
        finally:
            notifier.stopping()
            server.close()
            await site.close()
            await again.close()
            await audit.close()
            if decoder:
                decoder.close()
            await watch.close()


def _log_bug(error: BaseException) -> None:
    from logging import getLogger

    getLogger(__name__).error("publishing again has failed", exc_info=error)


def _require() -> None:
    """Raise ConfigError if the packages of the extra ``ui`` are missing."""
    from importlib.util import find_spec

    from nsqtools.errors import ConfigError

    missing = [name for name in ("starlette", "uvicorn", "jinja2") if not find_spec(name)]
    if missing:
        install = f"{sys.executable} -m pip install 'nsqtools[ui]'"
        raise ConfigError(f"ui needs the package {missing[0]}: run {install}")
