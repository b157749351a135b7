"""A real nginx on loopback."""

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

from tests.support.binaries import needs
from tests.support.eventually import eventually
from tests.support.servers import free_port
from tests.support.tls import Certificates

_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_CONFIGURATION = """\
daemon off; worker_processes 1; pid {folder}/pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
    log_format ids '$http_x_nsq_id $status $ssl_client_verify';
    {temporary}
    server {{
        {listen}
        location / {{ {location} }}
    }}
}}
"""
_PLAIN = "listen 127.0.0.1:{port}; access_log off; keepalive_requests 10000000;"
_TLS = """
    listen 127.0.0.1:{port} ssl;
    access_log {folder}/access.log ids;
    keepalive_requests 7;
    ssl_certificate {certificates.server.cert};
    ssl_certificate_key {certificates.server.key};
    ssl_client_certificate {certificates.ca};
    ssl_verify_client optional;
"""


def find_nginx() -> str:
    """Path of the program, or else the test ends here."""
    found = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    return shutil.which("nginx", path=found) or needs("nginx", "delivery to nginx")


class Nginx:
    """``with Nginx(folder) as nginx``: it answers all requests as ``location`` says.

    With certificates it speaks TLS, notes every request, and seven of them end a connection.
    """

    def __init__(
        self,
        folder: Path,
        location: str = 'return 200 "ok";',
        certificates: Certificates | None = None,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.scheme = "https" if certificates else "http"
        listen = _TLS if certificates else _PLAIN
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "nginx.conf").write_text(
            _CONFIGURATION.format(
                folder=folder,
                temporary="".join(f"{kind}_temp_path {folder}/{kind};" for kind in _TEMPORARY),
                listen=listen.format(port=self.port, folder=folder, certificates=certificates),
                location=location,
            )
        )

    def __enter__(self) -> Self:
        command = [find_nginx(), "-c", str(self.folder / "nginx.conf"), "-e", "stderr"]
        with (self.folder / "stderr").open("ab") as stderr:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr)
        eventually(self._is_up)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(100)

    def _is_up(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port)):
            return True

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/"

    def answers(self) -> list[list[str]]:
        """Id, status and state of the client's certificate of each request."""
        return [line.split() for line in (self.folder / "access.log").read_text().splitlines()]
