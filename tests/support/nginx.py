"""A real nginx on loopback that answers every request the same."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import urlopen

from tests.support.binaries import needs
from tests.support.eventually import eventually
from tests.support.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONFIGURATION = """\
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log {access_log};
    keepalive_requests 10000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    log_format ids '$http_x_nsq_id $status';
    server {{
        listen 127.0.0.1:{port};
        location / {{ {location} }}
    }}
}}
"""


def find_nginx() -> str:
    """Path of the program, or else the test ends here."""
    found = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    return shutil.which("nginx", path=found) or needs("nginx", "delivery to nginx")


@contextmanager
def nginx(folder: Path, location: str = 'return 200 "ok";', *, log: bool = False) -> Iterator[str]:
    """Its URL, ending in a slash; ``location`` is its configuration of /.

    With ``log`` the file access.log gets the X-NSQ-Id and the status of each request.
    """
    program = find_nginx()
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    file = folder / "nginx.conf"
    access_log = f"{folder}/access.log ids" if log else "off"
    file.write_text(
        _CONFIGURATION.format(folder=folder, port=port, location=location, access_log=access_log)
    )
    process = subprocess.Popen([program, "-c", str(file)], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/"
    try:
        eventually(lambda: urlopen(url, timeout=5).status)
        yield url
    finally:
        process.terminate()
        process.wait()
