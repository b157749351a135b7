"""Fixtures for tests of ``to-http``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.posting import Posting, pool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.posting import Pool
    from tests.support.process import Cli


@pytest.fixture(scope="session")
def known_channels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with pool(tmp_path_factory.mktemp("known-channels"), 250) as made:
        yield made


@pytest.fixture
def posting(nsqtools_cli: Cli, known_channels: Pool, tmp_path: Path) -> Posting:
    """A topic of this test's own on an nsqd that tests share."""
    return Posting(nsqtools_cli, known_channels.nsqd, known_channels.take(), tmp_path)
