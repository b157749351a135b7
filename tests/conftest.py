"""Fixtures for all tests, and what the run says of the programs it found or missed."""

import asyncio
import gc
import itertools
import logging
import os
import random
import re
import secrets
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from nsqtools.cli.exits import report_through
from tests.support import binaries, elsewhere
from tests.support.authd import Authd
from tests.support.examples import Stage
from tests.support.minio import Minio
from tests.support.process import Cli
from tests.support.sandboxed import OUT_OF_SCOPE
from tests.support.servers import (
    MakeNsqd,
    MakeNsqlookupd,
    Nsqd,
    Nsqlookupd,
    SandboxNsqd,
    SandboxNsqlookupd,
)
from tests.support.spark import SHARED
from tests.support.tls import Certificates, make_certificates
from tests.support.webserver import Request, WebServer

IN_SPARK = "tests/spark/in_session/"
CONFORMANCE = "tests/conformance/"
SLOW = (
    *(IN_SPARK, "tests/live/test_pipeline", "tests/proto/test_fuzz", "tests/test_guides.py"),
    *("tests/test_readme.py", "tests/live/", "tests/spark/", "tests/sinks/", "tests/golden/"),
)
"""Slow modules, scheduled first, so that workers finish together."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nsqtools")
    group.addoption("--full", action="store_true", help="also what takes long, at its full sizes")
    group.addoption("--server", choices=["nsqd", "sandbox"], help="what tests talk to")
    group.addoption("--seed", type=int, help="of all that is random, as an earlier run printed it")
    group.addoption("--lives", type=int, default=0, help="of each kind in the simulation")
    group.addoption("--date", help="on which to run, 2028-02-29T12:00:00, or any, anywhere")
    group.addoption("--update-golden", action="store_true", help="write what is said to its files")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # A shell's background job, or nohup, ignores these, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.pop("PYTHONUNBUFFERED", None)  # nothing that is started here flushes by luck
    if is_worker := hasattr(config, "workerinput"):
        vars(config.option).update(config.workerinput["options"])
    if config.option.seed is None:
        config.option.seed = secrets.randbelow(2**32)
    if config.option.date and not is_worker:  # a worker begins there
        config.option.date = elsewhere.go(config.option.date, config.option.seed)
        config.option.server = "sandbox"  # nsqd has this host's clock
    binaries.takes_time |= config.option.full
    if config.option.full and not is_worker:
        folder = tempfile.TemporaryDirectory(prefix="nsqtools-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ[SHARED] = folder.name
    hypothesis.settings.register_profile(
        "nsqtools",
        parent=hypothesis.settings.get_profile("default"),  # that of CI remembers nothing
        deadline=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("nsqtools")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process of pytest-xdist reads the command line anew, and would draw anew."""
    chosen = vars(node.config.option)
    node.workerinput["options"] = {name: chosen[name] for name in ("seed", "server")}


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer() -> Generator[None, object, object]:
    """At the time limit, also show where each asyncio task waits."""
    result = yield
    fail = signal.getsignal(signal.SIGALRM)
    if callable(fail):  # not where the limit is kept by a thread

        def handle(signum: int, frame: FrameType | None) -> None:
            with suppress(RuntimeError):  # no event loop runs
                for task in asyncio.all_tasks():
                    task.print_stack(file=sys.stderr)
            fail(signum, frame)

        signal.signal(signal.SIGALRM, handle)
    return result


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test is run with the real servers, if there are any; conformance with both kinds."""
    if "server" in metafunc.fixturenames:
        kinds = _servers(metafunc.config)
        if _why_nsqd_only(metafunc.definition) and not metafunc.config.option.server:
            kinds = ["nsqd"]
        if not metafunc.definition.nodeid.startswith(CONFORMANCE):
            kinds = kinds[:1]
        metafunc.parametrize("server", kinds, indirect=True, scope="module")


def _servers(config: pytest.Config) -> list[str]:
    if config.option.server:
        return [config.option.server]
    build = not config.option.collectonly
    return ["nsqd", "sandbox"] if binaries.expect_nsq(build=build) else ["sandbox"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, others, left_out = [], [], Counter[str]()
    for item in items:
        # A test that takes `full` also runs at full size, so it is part of `-m full`.
        if "full" in getattr(item, "fixturenames", ()):
            if config.option.full:
                item.add_marker("full")
            else:
                left_out["are shorter without --full"] += 1
        marker = item.get_closest_marker("full")
        if marker and not config.option.full:
            left_out[f"only with --full: {marker.args[0]}"] += 1
            others.append(item)
        elif config.option.date and "minio" in getattr(item, "fixturenames", ()):
            left_out["only without --date: MinIO has this host's clock"] += 1
            others.append(item)
        elif not (only := _wants_nsqd(item)):
            kept.append(item)
        elif _servers(config) == ["sandbox"]:
            left_out[f"not with the sandbox: {only}"] += 1
            others.append(item)
        test: Any = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        if hypothesis.is_hypothesis_test(test):
            # hypothesis.seed() would also take from it the database of what failed before.
            name = item.nodeid.partition("[")[0]
            test._hypothesis_internal_use_seed = f"{config.option.seed}/{name}"
    binaries.left_out.update(left_out)
    items[:] = sorted(kept, key=_turn)
    config.hook.pytest_deselected(items=others)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Processes share nothing: one has the Spark session, and a module's servers are in one."""

    class ByModule(LoadScopeScheduling):  # type: ignore[misc] # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return IN_SPARK if nodeid.startswith(IN_SPARK) else nodeid.partition("::")[0]

    return ByModule(config, log)


def _turn(item: pytest.Item) -> int:
    return next((n for n, each in enumerate(SLOW) if item.nodeid.startswith(each)), len(SLOW))


def _wants_nsqd(item: pytest.Item) -> str:
    """Why this is left out if it would run on the sandbox, else ""."""
    found = getattr(item, "callspec", None)
    sandbox = found is not None and found.params.get("server") == "sandbox"
    return _why_nsqd_only(item) if sandbox else ""


def _why_nsqd_only(item: Any) -> str:
    if marker := item.get_closest_marker("nsqd_only"):
        return str(marker.args[0])
    names = {item.originalname, *item.fixturenames}
    if call := getattr(item, "callspec", None):
        names.add(getattr(call.params.get("file"), "stem", ""))  # a dialogue
    return next((why for name, why in OUT_OF_SCOPE.items() if name in names), "")


def pytest_report_header(config: pytest.Config) -> str:
    text = f"nsq: {binaries.describe_nsq()}; to replay what is random: --seed {config.option.seed}"
    return f"{text}; on {config.option.date}" if config.option.date else text


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist tells what it left out; each collects all tests."""
    if output := getattr(session.config, "workeroutput", None):
        output["left out"] = binaries.left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    binaries.left_out.update(getattr(node, "workeroutput", {}).get("left out", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if binaries.left_out:
        terminalreporter.section("left out")
    for why, count in sorted(binaries.left_out.items()):
        terminalreporter.line(f"{count or ''} {why}".strip())


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether tests are run at their full sizes."""
    given: bool = request.config.option.full
    return given


@pytest.fixture(autouse=True)
def _process_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that is run in this process sets up logging and the garbage collector."""
    monkeypatch.setattr(logging, "raiseExceptions", True)
    root, own = logging.getLogger(), logging.getLogger("nsqtools")
    before, threshold = (root.handlers[:], root.level, own.level), gc.get_threshold()
    yield
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*threshold)
    root.handlers[:], level, own_level = before
    root.setLevel(level)
    own.setLevel(own_level)
    report_through(None)


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
    yield from _maker(Nsqlookupd if server == "nsqd" else SandboxNsqlookupd, tmp_path)


@pytest.fixture
def make_nsqd(nsqd_class: type[Nsqd], tmp_path: Path) -> Iterator[MakeNsqd]:
    yield from _maker(nsqd_class, tmp_path)


def _maker(kind: Any, folder: Path) -> Iterator[Any]:
    numbers = itertools.count(1)
    with ExitStack() as running:

        def make(*args: str, **options: Any) -> Any:
            data_path = folder / f"{kind.program}-{next(numbers)}"
            return running.enter_context(kind(data_path, *args, **options))

        yield make


@pytest.fixture
def nsqlookupd(make_nsqlookupd: MakeNsqlookupd) -> Nsqlookupd:
    return make_nsqlookupd()


@pytest.fixture
def nsqd(make_nsqd: MakeNsqd) -> Nsqd:
    return make_nsqd()


@pytest.fixture
def stage(tmp_path: Path, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd) -> Stage:
    """A folder to run command lines in, with servers of this test's own."""
    from tests.support.examples import Stage  # loads every command

    folder = tmp_path / "stage"
    folder.mkdir()
    return Stage(folder, make_nsqd(lookupds=[nsqlookupd]), nsqlookupd)


@pytest.fixture
def endpoint() -> Iterator[WebServer]:
    """An HTTP server that accepts /hook, and answers 400 to all else."""
    from tests.support.webserver import Answer, WebServer  # loads httpx

    def answer(request: Request) -> Answer:
        return Answer(status=200 if request.target == "/hook" else 400)

    with WebServer(answer) as server:
        yield server


@pytest.fixture
def no_such_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that nobody has are known to be that without asking any name server."""
    real = socket.getaddrinfo

    def find(host: str, *args: Any, **options: Any) -> Any:
        if str(host).endswith((".invalid", ".test")):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", find)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """What is drawn by chance; ``--seed`` of the run has it again."""
    return random.Random(f"{request.config.option.seed}/{request.node.nodeid}")


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


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    from tests.support.minio import Minio

    with Minio(tmp_path_factory.mktemp("minio"), "stores in S3") as server:
        yield server


@pytest.fixture
def bucket(minio: Minio, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket, which the environment gives access to."""
    for name, value in minio.environment.items():
        monkeypatch.setenv(name, value)
    return minio.bucket()
