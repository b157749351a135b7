"""``stats --serve`` on three nsqds and two nsqlookupds, scraped as Prometheus does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.metrics import Serving
from tests.support.raw import Raw
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


def test_every_number_is_what_its_nsqd_says(
    export: Export, nsqds: list[Nsqd], lookupds: list[Nsqlookupd], topic: str
) -> None:
    nsqds[1].create(topic, "second")
    for nsqd, count in zip(nsqds, (5, 3, 0), strict=True):
        nsqd.publish(topic, [b"x" * 100] * count)
    nsqds[2].pause(topic, "c")
    with Raw(nsqds[0].tcp) as client:
        client.subscribe(topic, ready=3)
        held = [client.message() for _ in range(3)]
        client.send("RDY 0")
        client.send(f"REQ {held[0].id} 60000")
        client.settle()
        eventually(lambda: nsqds[0].channel(topic, "c")["deferred_count"] == 1)
        eventually(lambda: nsqds[1].channel(topic, "second")["depth"] == 3)
        exporter = export(*http(nsqds[:1]), *lookup(lookupds))
        found = exporter.all()
    for nsqd, numbers, paused in zip(
        nsqds, ((2, 2, 1, 5), (3, 0, 0, 3), (0, 0, 0, 0)), (0, 0, 1), strict=True
    ):
        name = str(nsqd.http)
        names = ("depth", "in_flight", "deferred", "messages_total", "paused")
        told = [found[f"nsq_channel_{each}", "c", name, topic] for each in names]
        assert told == [*numbers, paused]
        assert found["nsq_topic_message_bytes_total", name, topic] == 100 * numbers[-1]
        assert found["nsq_nsqd_start_time_seconds", name] == nsqd.stats()["start_time"]
        assert found["nsq_nsqd_healthy", name] == 1
    assert len([key for key in found if key[0] == "nsq_channel_depth"]) == 4
    assert set(up(exporter)) == {str(each.http) for each in (*nsqds, *lookupds)}
    assert exporter.end() == 0
