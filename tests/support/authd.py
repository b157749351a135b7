"""The HTTP server that nsqd asks about an AUTH secret (``-auth-http-address``)."""

import json
from urllib.parse import parse_qsl, urlsplit

from tests.support.webserver import Answer, Request, WebServer


class Authd(WebServer):
    """Lets those with a secret that was granted do all, and refuses others with 403."""

    def __init__(self) -> None:
        super().__init__(self._judge)
        self._identities: dict[str, str] = {}

    def grant(self, secret: str, *, identity: str = "tester") -> None:
        self._identities[secret] = identity

    @property
    def queries(self) -> list[dict[str, str]]:
        """The parameters of each request: remote_ip, tls, secret, common_name."""
        return [_query(request) for request in self.requests]

    def nsqd_args(self) -> list[str]:
        return [f"-auth-http-address={self.address}"]

    def _judge(self, request: Request) -> Answer:
        identity = self._identities.get(_query(request).get("secret", ""))
        if identity is None:
            return Answer(status=403, body=b'{"message": "FORBIDDEN"}')
        may = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
        url = f"http://{identity}.test/" if identity else ""
        who = {"identity": identity, "identity_url": url}
        body = json.dumps({"ttl": 3600, **who, "authorizations": [may]})
        return Answer(body=body.encode())


def _query(request: Request) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(request.target).query, keep_blank_values=True))
