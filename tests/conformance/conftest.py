"""One server for the tests of a module, and connections that are closed after the test."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support import wire
from tests.support.raw import Connect, Raw
from tests.support.servers import Nsqd, Nsqlookupd, SandboxNsqlookupd


@pytest.fixture(scope="module")
def nsqd(nsqd_class: type[Nsqd], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with nsqd_class(tmp_path_factory.mktemp("nsqd")) as running:
        yield running


@pytest.fixture(scope="module")
def nsqlookupd(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqlookupd]:
    kind = Nsqlookupd if server == "nsqd" else SandboxNsqlookupd
    with kind(tmp_path_factory.mktemp("nsqlookupd")) as running:
        yield running


@pytest.fixture
def connect(nsqd: Nsqd) -> Iterator[Connect]:
    usual = nsqd
    with ExitStack() as opened:

        def connect(nsqd: Nsqd | None = None, magic: bytes = wire.MAGIC) -> Raw:
            return opened.enter_context(Raw((nsqd or usual).tcp, magic))

        yield connect


@pytest.fixture
def client(connect: Connect) -> Raw:
    """A connection that has sent the magic and nothing else."""
    return connect()
