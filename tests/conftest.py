"""Fixtures for all tests, and what the run says of the programs it found or missed."""

from __future__ import annotations

import itertools
import re
import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support import binaries
from tests.support.authd import Authd
from tests.support.process import Cli
from tests.support.servers import Nsqd, Nsqlookupd
from tests.support.tls import Certificates, make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.servers import MakeNsqd, MakeNsqlookupd


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "live: talks to a real nsqd or nsqlookupd (automatic)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "nsq" in getattr(item, "fixturenames", ()):
            item.add_marker("live")


def pytest_report_header() -> str:
    return f"nsq: {binaries.describe_nsq()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if binaries.missing:
        terminalreporter.section("missing programs")
        for program, lost in sorted(binaries.missing.items()):
            terminalreporter.line(f"{program} would have tested: {'; '.join(lost)}")


@pytest.fixture(scope="session")
def nsq() -> binaries.Nsq:
    """The NSQ programs; a test without them is skipped, or fails where they are required."""
    return binaries.require_nsq()


@pytest.fixture
def make_nsqlookupd(nsq: binaries.Nsq, tmp_path: Path) -> Iterator[MakeNsqlookupd]:
    numbers = itertools.count(1)
    with ExitStack() as running:

        def make(*args: str) -> Nsqlookupd:
            folder = tmp_path / f"nsqlookupd-{next(numbers)}"
            return running.enter_context(Nsqlookupd(folder, *args))

        yield make


@pytest.fixture
def make_nsqd(nsq: binaries.Nsq, tmp_path: Path) -> Iterator[MakeNsqd]:
    numbers = itertools.count(1)
    with ExitStack() as running:

        def make(*args: str, lookupds: Sequence[Nsqlookupd] = ()) -> Nsqd:
            folder = tmp_path / f"nsqd-{next(numbers)}"
            return running.enter_context(Nsqd(folder, *args, lookupds=lookupds))

        yield make


@pytest.fixture
def nsqlookupd(make_nsqlookupd: MakeNsqlookupd) -> Nsqlookupd:
    return make_nsqlookupd()


@pytest.fixture
def nsqd(make_nsqd: MakeNsqd) -> Nsqd:
    return make_nsqd()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of this test's own."""
    return f"{re.sub(r'[^a-zA-Z0-9_]', '_', request.node.name)[:40]}.{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def authd() -> Iterator[Authd]:
    with Authd() as running:
        yield running


@pytest.fixture
def nsqtools_cli(tmp_path: Path) -> Iterator[Cli]:
    """Runs the command line in a process, in ``tmp_path``."""
    cli = Cli(tmp_path)
    yield cli
    cli.close()
