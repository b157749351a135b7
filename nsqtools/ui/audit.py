"""Tells of every change: to the audit log, and as nsqadmin does to an HTTP endpoint."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from io import FileIO
from socket import gethostname
from typing import TYPE_CHECKING, Any

from nsqtools.errors import OutputError
from nsqtools.net.http.api import post_json
from nsqtools.net.http.client import DialError
from nsqtools.net.http.wire import ReplyError
from nsqtools.sinks.files.disk import named_option

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqtools.config.ui import UiOptions

log = logging.getLogger(__name__)

_TIMEOUT = 5.0


class Audit:
    """Writes an entry per change.

    Raises ConfigError if the audit log cannot be written.
    """

    def __init__(self, options: UiOptions) -> None:
        self._path = os.path.abspath(options.audit_log) if options.audit_log else ""
        self._endpoint = options.notification_http_endpoint
        if self._path:
            with named_option("--audit-log", self._path):
                self._open().close()

    def record(self, request: Request, action: str, **facts: Any) -> None:
        """Append an entry: who did what, when, from where, and the ``facts``.

        Raises OutputError; call this before a change, so that no change goes without an entry.
        """
        entry = {
            "at": round(time.time(), 3),
            "user": request.state.visitor.name,
            "remote": request.client.host if request.client else "",
            "action": action,
            **facts,
        }
        log.info("%s", json.dumps(entry))
        if not self._path:
            return
        try:
            with self._open() as file:
                file.write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise OutputError(f"--audit-log {self._path}: {error.strerror}") from error

    def _open(self) -> FileIO:
        return FileIO(self._path, "ab", opener=lambda path, flags: os.open(path, flags, 0o640))

    async def notify(self, request: Request, action: str, **names: str) -> None:
        """Send nsqadmin's AdminAction (nsqadmin/notify.go) to the endpoint; a failure is logged."""
        if not self._endpoint:
            return
        body = {
            "action": action,
            **{name: value for name, value in names.items() if value},
            "timestamp": int(time.time()),
            "user": request.state.visitor.name,
            "remote_ip": request.client.host if request.client else "",
            "user_agent": request.headers.get("user-agent", ""),
            "url": str(request.url),
            "via": gethostname(),
        }
        try:
            async with asyncio.timeout(_TIMEOUT):
                status = await post_json(self._endpoint, json.dumps(body).encode())
        except (DialError, ReplyError, TimeoutError) as error:
            text = str(error) or "no response"
            log.error("--notification-http-endpoint %s: %s", self._endpoint, text)
            return
        if not 200 <= status < 300:
            log.error("--notification-http-endpoint %s: status %d", self._endpoint, status)
