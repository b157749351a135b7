"""A real nginx on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.binaries import needs
from tests.support.eventually import eventually
from tests.support.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.tls import Certificates

_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_CONFIGURATION = """\
daemon off; worker_processes {workers}; pid {folder}/pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
    log_format ids '$http_x_nsq_id $status $ssl_client_verify';
    access_log {access_log};
    {temporary}
    keepalive_requests {keepalive};
    server {{
        listen 127.0.0.1:{port};
        {tls}
        {locations}
    }}
}}
"""
_TLS = """
    listen 127.0.0.1:{port} ssl;
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
    """nginx with these ``locations`` of its configuration; with ``log`` it notes every request."""

    def __init__(
        self,
        folder: Path,
        locations: str,
        certificates: Certificates | None = None,
        *,
        log: bool = True,
        workers: int = 2,
        keepalive: int = 7,
    ) -> None:
        self._program = find_nginx()
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = folder
        self.port, self.tls_port = free_port(), free_port()
        tls = _TLS.format(port=self.tls_port, certificates=certificates) if certificates else ""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "nginx.conf").write_text(
            _CONFIGURATION.format(
                folder=folder,
                workers=workers,
                keepalive=keepalive,
                access_log=f"{folder}/access.log ids" if log else "off",
                temporary="".join(f"{kind}_temp_path {folder}/{kind};" for kind in _TEMPORARY),
                port=self.port,
                tls=tls,
                locations=locations,
            )
        )

    def start(self) -> None:
        command = [self._program, "-c", str(self.folder / "nginx.conf"), "-e", "stderr"]
        with (self.folder / "stderr").open("ab") as stderr:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr)
        eventually(self._is_up)

    def _is_up(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port)):
            return True

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process:
            self._process.send_signal(number)
            self._process.wait(100)
            self._process = None

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def secure_url(self, path: str) -> str:
        return f"https://localhost:{self.tls_port}{path}"

    def answers(self) -> list[list[str]]:
        """Id, status and state of the client's certificate of each request."""
        return [line.split() for line in (self.folder / "access.log").read_text().splitlines()]

    def accepted(self) -> Counter[str]:
        return Counter(row[0] for row in self.answers() if row[1].startswith("2"))


@contextmanager
def nginx(folder: Path, location: str = 'return 200 "ok";', *, log: bool = False) -> Iterator[str]:
    """The URL, ending in a slash, of one that answers all as ``location`` says."""
    made = Nginx(folder, f"location / {{ {location} }}", log=log, workers=1, keepalive=10**7)
    made.start()
    try:
        yield made.url()
    finally:
        made.stop()
