"""Metrics as a scraper sees them: asked for over HTTP and read by prometheus_client."""

import re
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from nsqtools.names import Address
from tests.support.eventually import eventually
from tests.support.process import Cli

Values = dict[tuple[str, ...], float]


async def get(
    address: Address, path: str = "/metrics", method: str = "GET", **more: Any
) -> httpx.Response:
    """One request, on a connection of its own."""
    async with httpx.AsyncClient(trust_env=False, timeout=120.0) as client:
        return await client.request(method, f"http://{address}{path}", **more)


def values(text: str) -> Values:
    """Values by name and the labels' values in order of the labels' names."""
    found: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def scrape(url: str) -> Values:
    """What a process tells now; raises ConnectionError if it does not listen."""
    try:
        reply = httpx.get(url, trust_env=False, timeout=120.0)
    except httpx.TransportError as error:
        raise ConnectionError(str(error)) from error
    assert reply.status_code == 200, reply.text
    return values(reply.text)


class Serving:
    """A command that serves metrics at a free port, which it logs: ``args`` say so."""

    def __init__(self, cli: Cli, folder: Path, *args: str, **options: Any) -> None:
        self.log = folder / "stderr"
        with self.log.open("wb") as stderr:
            self.process = cli.start(*args, "-v", stderr=stderr, **options)
        found = eventually(lambda: re.search(r"http://127\.\S+/metrics", self.log.read_text()))
        self.url = found[0] if found else ""

    def all(self) -> Values:
        return scrape(self.url)

    def end(self) -> int:
        """The exit code after SIGTERM."""
        self.process.terminate()
        return self.process.wait(100)
