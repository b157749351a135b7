"""The HTTP server that nsqd asks about an AUTH secret (``-auth-http-address``)."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, urlsplit

from nsqtools.names import Address

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL = ("subscribe", "publish")


class Authd:
    """Knows the secrets that were granted, refuses all others, and records what nsqd asked.

    ``queries`` holds the parameters of each request: remote_ip, tls, secret, common_name. What is
    said to a secret is in ``replies``; to None, as to one that is not there, it is 403.
    """

    def __init__(self) -> None:
        self.queries: list[dict[str, str]] = []
        self.replies: dict[str, Any] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.address = Address("127.0.0.1", self._server.server_port)

    def grant(
        self,
        secret: str,
        *,
        topic: str = ".*",
        channels: Sequence[str] = (".*",),
        permissions: Sequence[str] = ALL,
        identity: str = "tester",
        ttl: int = 3600,
    ) -> None:
        """Set what a secret may do; ``topic`` and ``channels`` are regular expressions.

        nsqd asks again after ``ttl`` seconds, and takes no ttl below 1.
        """
        self.replies[secret] = {
            "ttl": ttl,
            "identity": identity,
            "identity_url": f"http://{identity}.test/",
            "authorizations": [
                {"topic": topic, "channels": list(channels), "permissions": list(permissions)}
            ],
        }

    def nsqd_args(self) -> list[str]:
        return [f"-auth-http-address={self.address}"]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        authd = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
                authd.queries.append(query)
                reply = authd.replies.get(query.get("secret", ""))
                body = json.dumps({"message": "FORBIDDEN"} if reply is None else reply).encode()
                self.send_response(403 if reply is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
