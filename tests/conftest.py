"""Fixtures for all tests, and what the run says of the programs it found or missed."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import signal
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support import binaries
from tests.support.authd import Authd
from tests.support.process import Cli
from tests.support.servers import Nsqd, Nsqlookupd, SandboxNsqd, SandboxNsqlookupd
from tests.support.spark import SHARED
from tests.support.tls import Certificates, make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.servers import MakeNsqd, MakeNsqlookupd


IN_SPARK = "tests/spark/in_session/"
CONFORMANCE = "tests/conformance/"
SLOW = (
    *(IN_SPARK, "tests/live/test_pipeline", "tests/fuzz/", "tests/cli/test_examples.py"),
    *("tests/test_readme.py", "tests/live/", "tests/spark/", "tests/sinks/"),
)
"""What is begun first, so that at the end of a run no process waits for one of the others."""


def pytest_configure(config: pytest.Config) -> None:
    # A shell's background job, or nohup, ignores these, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="nsqtools-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ[SHARED] = folder.name
    config.addinivalue_line("markers", "live: talks to an nsqd or nsqlookupd (automatic)")
    config.addinivalue_line(
        "markers", "one_server(reason): not with the sandbox where there is an nsqd"
    )
    config.addinivalue_line(
        "markers", "nsqd_only(reason): wants what the sandbox does not have, so there is no variant"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test is run with the real servers, if there are any; conformance with both kinds."""
    if "server" in metafunc.fixturenames:
        build = not metafunc.config.option.collectonly
        kinds = ["nsqd", "sandbox"] if binaries.expect_nsq(build=build) else ["sandbox"]
        if metafunc.definition.get_closest_marker("nsqd_only"):
            kinds = ["nsqd"]
        if not metafunc.definition.nodeid.startswith(CONFORMANCE):
            kinds = kinds[:1]
        metafunc.parametrize("server", kinds, indirect=True, scope="module")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"nsq", "server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("live")
    items[:] = [item for item in items if not _has_no_such_variant(item)]
    items.sort(key=_turn)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Processes share nothing: one has the Spark session, and a module's servers are in one."""

    class ByModule(LoadScopeScheduling):  # type: ignore[misc] # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return IN_SPARK if nodeid.startswith(IN_SPARK) else nodeid.partition("::")[0]

    return ByModule(config, log)


def _turn(item: pytest.Item) -> int:
    return next((n for n, each in enumerate(SLOW) if item.nodeid.startswith(each)), len(SLOW))


def _has_no_such_variant(item: pytest.Item) -> bool:
    """Whether a mark on a parameter, which is not seen before, rules the sandbox out."""
    found = getattr(item, "callspec", None)
    sandbox = found is not None and found.params.get("server") == "sandbox"
    return sandbox and item.get_closest_marker("nsqd_only") is not None


def pytest_report_header() -> str:
    return f"nsq: {binaries.describe_nsq()}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist tells what it missed."""
    if output := getattr(session.config, "workeroutput", None):
        output["missing"] = binaries.missing


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for program, tests in getattr(node, "workeroutput", {}).get("missing", {}).items():
        for lost in tests:
            binaries.remember(program, lost)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if binaries.missing:
        terminalreporter.section("missing programs")
        for program, lost in sorted(binaries.missing.items()):
            terminalreporter.line(f"{program} would have tested: {'; '.join(lost)}")


@pytest.fixture(scope="session")
def nsq() -> binaries.Nsq:
    """The NSQ programs; a test without them is skipped, or fails where they are required."""
    return binaries.require_nsq()


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> str:
    """Which servers a test talks to: ``nsqd`` for the real ones, or ``sandbox``."""
    kind: str = request.param
    return kind


@pytest.fixture(scope="module")
def nsqd_class(server: str) -> type[Nsqd]:
    return Nsqd if server == "nsqd" else SandboxNsqd


@pytest.fixture
def make_nsqlookupd(server: str, tmp_path: Path) -> Iterator[MakeNsqlookupd]:
    numbers = itertools.count(1)
    kind = Nsqlookupd if server == "nsqd" else SandboxNsqlookupd
    with ExitStack() as running:

        def make(*args: str) -> Nsqlookupd:
            folder = tmp_path / f"nsqlookupd-{next(numbers)}"
            return running.enter_context(kind(folder, *args))

        yield make


@pytest.fixture
def make_nsqd(nsqd_class: type[Nsqd], tmp_path: Path) -> Iterator[MakeNsqd]:
    numbers = itertools.count(1)
    with ExitStack() as running:

        def make(*args: str, lookupds: Sequence[Nsqlookupd] = ()) -> Nsqd:
            folder = tmp_path / f"nsqd-{next(numbers)}"
            return running.enter_context(nsqd_class(folder, *args, lookupds=lookupds))

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
