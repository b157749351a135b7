"""Shows requests instead of sending them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx

from nsqtools.records.writers import escape_controls
from nsqtools.sinks.http.requests import render

if TYPE_CHECKING:
    from nsqtools.sinks.stdout import Output


class DryRun(httpx.AsyncBaseTransport):
    """Writes each request, and an empty line after it, as it would go out; 200 is the answer.

    ``escape`` is for terminals. Raises OutputError.
    """

    def __init__(self, output: Output, *, escape: bool) -> None:
        self._output = output
        self._escape = escape
        self._turn = asyncio.Lock()
        self._is_open = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Write it."""
        data = b"%b\n\n" % render(request).replace(b"\r\n", b"\n", request_lines(request))
        async with self._turn:
            if not self._is_open:
                await self._output.open()
                self._is_open = True
            await self._output.write([escape_controls(data) if self._escape else data])
        return httpx.Response(200, stream=httpx.ByteStream(b""), request=request)

    async def aclose(self) -> None:
        """Leave the output as it was found."""
        self._output.close()


def request_lines(request: httpx.Request) -> int:
    """Of the head."""
    return len(request.headers.raw) + 2
