"""Tells of every change: to the audit log, and as nsqadmin does to an HTTP endpoint."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from nsqtools.clock import wall
from nsqtools.net.http.api import post_json
from nsqtools.sinks.files.disk import named_option
from nsqtools.tasks import Tasks

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqtools.config.ui import UiOptions

log = logging.getLogger(__name__)


class Audit:
    """Writes an entry before and after each change.

    Raises ConfigError if the audit log cannot be written.
    """

    def __init__(self, options: UiOptions) -> None:
        self._path = os.path.abspath(options.audit_log) if options.audit_log else ""
        self._endpoint = options.notification_http_endpoint
        self._telling = Tasks(partial(log.error, "--notification-http-endpoint: %s"))
        if self._path:
            with named_option("--audit-log", self._path):
                self._append(b"")

    async def record(self, request: Request, action: str, state: str, **facts: Any) -> None:
        """Append an entry: who did what, when, from where, and the ``facts``; raises HTTPException.

        The ``state`` is "begun" before a change, which is not made without an entry, then "done".
        """
        entry = {
            "at": round(wall(), 3),
            "user": request.state.visitor.name,
            "remote": request.client.host if request.client else "",
            "action": action,
            "state": state,
            **facts,
        }
        text = json.dumps(entry)
        log.info("%s", text)
        try:
            if self._path:
                await asyncio.to_thread(self._append, f"{text}\n".encode())
        except OSError as error:
            done = "nothing was done" if state == "begun" else "it was done, but not logged"
            text = f"{done}: --audit-log {self._path}: {error.strerror}"
            raise HTTPException(500, text) from None

    def _append(self, line: bytes) -> None:
        with open(self._path, "ab", opener=partial(os.open, mode=0o640)) as file:
            file.write(line)

    def notify(self, request: Request, action: str, **names: str) -> None:
        """Begin to send nsqadmin's AdminAction (nsqadmin/notify.go) to the endpoint."""
        if not self._endpoint:
            return
        body = {
            "action": action,
            **{name: value for name, value in names.items() if value},
            "timestamp": int(wall()),
            "user": request.state.visitor.name,
            "remote_ip": request.client.host if request.client else "",
            "user_agent": request.headers.get("user-agent", ""),
            "url": str(request.url),
            "via": gethostname(),
        }
        self._telling.begin(post_json(self._endpoint, json.dumps(body).encode()))

    async def close(self) -> None:
        """Wait a moment for the endpoint's answers."""
        await self._telling.wait(within=1)
