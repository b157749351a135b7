"""What tests of Spark share, and what becomes of them where it is missing."""

from pathlib import Path

import pytest

from nsqtools.spark.jobs.replay import ReplaySettings
from tests.support.process import Cli
from tests.support.replays import Taken
from tests.support.servers import Nsqd
from tests.support.spark import SparkModule


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    module: pytest.Module = SparkModule.from_parent(parent, path=module_path)
    return module


@pytest.fixture
def replaying(nsqd: Nsqd, topic: str, tmp_path: Path) -> ReplaySettings:
    """A replay of ``lake`` into a topic that has a channel, by way of ``staging``."""
    from nsqtools.spark.jobs.replay import ReplaySettings

    nsqd.create(topic, "c")
    lake, staging = str(tmp_path / "lake"), str(tmp_path / "staging")
    return ReplaySettings((lake,), {"topic": topic, "nsqd.tcp.addresses": str(nsqd.tcp)}, staging)


@pytest.fixture
def taken(nsqd: Nsqd, topic: str, nsqtools_cli: Cli) -> Taken:
    """The bodies that are in the topic."""
    from tests.support.replays import Taken

    return Taken(nsqtools_cli, nsqd, topic)
