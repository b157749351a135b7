"""All of these run on the virtual clock, and reach nsqds in memory."""

from collections.abc import AsyncIterator

import pytest

from tests.support.clock import VirtualLoop
from tests.support.scripted import Network, ScriptedNsqd, undisturbed


def pytest_asyncio_loop_factories() -> dict[str, type[VirtualLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    async with undisturbed():
        yield Network()


@pytest.fixture
async def nsqd(network: Network) -> ScriptedNsqd:
    return network.nsqd()
