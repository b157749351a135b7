"""Fixtures that several files share: for tests of ``to-http`` and of whole clusters."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.archives import Archiver
from tests.support.binaries import expect_nsq
from tests.support.consuming import make_known
from tests.support.posting import Posting
from tests.support.process import Cli
from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd, Nsqlookupd, SandboxNsqd


@pytest.fixture(scope="session")
def known_channels(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Nsqd, list[str]]]:
    """An nsqd that looks at all its channels ten times a second, and topics for a test each.

    Where there is no real one it is the sandbox's: what endpoints do need not be seen with both.
    """
    folder = tmp_path_factory.mktemp("known-channels")
    topics = [f"topic{number}" for number in range(100)]
    real = request.config.option.server != "sandbox" and expect_nsq(build=True)
    scan = f"-queue-scan-selection-count={len(topics)}"
    with Nsqd(folder, scan) if real else SandboxNsqd(folder) as nsqd:
        make_known(nsqd, *topics)
        yield nsqd, topics


@pytest.fixture
def posting(nsqtools_cli: Cli, known_channels: tuple[Nsqd, list[str]], tmp_path: Path) -> Posting:
    """A topic of this test's own on an nsqd that tests share."""
    nsqd, topics = known_channels
    return Posting(nsqtools_cli, nsqd, topics.pop(), tmp_path)


@pytest.fixture
def archiver(nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path) -> Archiver:
    """``to-file`` on a topic with a channel of an nsqd of this test's own."""
    made = Archiver(nsqtools_cli, nsqd, topic, tmp_path)
    made.create()
    return made


@pytest.fixture
def lookupds(make_nsqlookupd: MakeNsqlookupd) -> list[Nsqlookupd]:
    return [make_nsqlookupd(), make_nsqlookupd()]


@pytest.fixture
def nsqds(make_nsqd: MakeNsqd, lookupds: list[Nsqlookupd]) -> list[Nsqd]:
    """One is known to either nsqlookupd, and one to both."""
    return [make_nsqd(lookupds=some) for some in (lookupds[:1], lookupds, lookupds[1:])]
