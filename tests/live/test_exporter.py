"""``stats --serve`` on three nsqds and two nsqlookupds, scraped as Prometheus does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.metrics import Serving
from tests.support.reporting import http, lookup, registered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd

    Export = Callable[..., Serving]


@pytest.fixture
def export(nsqtools_cli: Cli, tmp_path: Path) -> Export:
    """Starts the command with these arguments and variables."""

    def start(*args: str, **env: str) -> Serving:
        return Serving(nsqtools_cli, tmp_path, "stats", "--serve", ":0", *args, env=env)

    return start


def up(exporter: Serving) -> dict[str, float]:
    """By address, nsqds and nsqlookupds alike."""
    ups = ("nsq_up", "nsq_nsqlookupd_up")
    return {key[1]: value for key, value in exporter.all().items() if key[0] in ups}


@pytest.fixture
def nsqds(make_nsqd: MakeNsqd, lookupds: list[Nsqlookupd], topic: str) -> list[Nsqd]:
    """Three that both nsqlookupds know, with the topic and a channel c."""
    made = [make_nsqd(lookupds=lookupds) for _ in range(3)]
    for nsqd in made:
        nsqd.create(topic, "c")
    registered(topic, lookupds, 3)
    return made


def test_a_number_is_what_its_nsqd_says_of_the_topic_and_channel_asked_for(
    export: Export, nsqds: list[Nsqd], lookupds: list[Nsqlookupd], topic: str
) -> None:
    nsqds[0].create(topic, "d")
    nsqds[0].create("other", "c")
    depths = {
        ("c", str(nsqd.http), topic): count for nsqd, count in zip(nsqds, (5, 3, 0), strict=True)
    }
    for nsqd, count in zip(nsqds, depths.values(), strict=True):
        nsqd.publish(topic, [b"x"] * count)
    eventually(lambda: [each.channel(topic, "c")["depth"] for each in nsqds] == [5, 3, 0])
    narrowed = ("--topic", topic, "--channel", "c")
    exporter = export(*http(nsqds[:1]), *lookup(lookupds), *narrowed)
    found = {
        key[1:]: value for key, value in exporter.all().items() if key[0] == "nsq_channel_depth"
    }
    assert found == depths
    assert set(up(exporter)) == {str(each.http) for each in (*nsqds, *lookupds)}
    assert exporter.end() == 0
