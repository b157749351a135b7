"""What tests of the engine share."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.support.staging import Stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack)
