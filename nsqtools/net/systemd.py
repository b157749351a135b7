"""Notifies systemd (``sd_notify(3)``, ``sd_watchdog_enabled(3)``)."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

_STATUS_INTERVAL = 10.0
# Beats come at half the watchdog interval, as sd_watchdog_enabled(3) advises.
_BEAT = 0.5
# Three times the longest interval: a datagram may be lost, and the event loop may be late.
_EXTENSION = 3 * _STATUS_INTERVAL


class Notifier:
    """Sends datagrams to ``NOTIFY_SOCKET``; without this variable, methods do nothing.

    If a datagram cannot be sent, the error is logged at debug level.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._watchdog = _watchdog(environ) if self._address else None
        self._ready = False

    @property
    def interval(self) -> float | None:
        """Seconds between two calls of ``beat``; None if systemd does not listen."""
        if not self._address:
            return None
        return min(_STATUS_INTERVAL, self._watchdog or _STATUS_INTERVAL)

    def ready(self) -> None:
        """Report that the service is up; further calls do nothing."""
        if not self._ready:
            self._ready = True
            self._send("READY=1")

    def beat(self, status: str) -> None:
        """Report that the event loop is alive, with a status line.

        Before ``ready`` a beat also extends the start timeout, because recovery may take long.
        """
        lines = [f"STATUS={' '.join(status.splitlines())}"]
        if not self._ready:
            lines.insert(0, f"EXTEND_TIMEOUT_USEC={_EXTENSION * 1e6:.0f}")
        if self._watchdog:
            lines.insert(0, "WATCHDOG=1")
        self._send("\n".join(lines))

    def stopping(self) -> None:
        """Report that the service is stopping."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = f"\0{address[1:]}"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(text.encode(), os.fsencode(address))
        except (OSError, ValueError) as error:
            log.debug("NOTIFY_SOCKET %s: %s", self._address, error)


def _watchdog(environ: Mapping[str, str]) -> float | None:
    """Return the seconds between beats; None if systemd does not watch this process."""
    try:
        if int(environ.get("WATCHDOG_PID") or os.getpid()) != os.getpid():
            return None
        patience = int(environ.get("WATCHDOG_USEC", "0")) / 1e6
    except ValueError:
        return None
    return patience * _BEAT if patience > 0 else None
