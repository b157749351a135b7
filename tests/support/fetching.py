"""One GET, as an ordinary client does it."""

import asyncio

from nsqtools.names import Address
from nsqtools.net.http.client import Connections
from nsqtools.net.http.wire import Reply, render


async def fetch(address: Address, target: str) -> Reply:
    client = Connections(None, connect_timeout=60, max_body=1 << 20)
    try:
        async with asyncio.timeout(60):
            request = render("GET", target.encode(), b"Host: h\r\n")
            return await client.exchange(("http", *address), "GET", request)
    finally:
        client.close()
