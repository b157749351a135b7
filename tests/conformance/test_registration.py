"""What an nsqd and an nsqlookupd have to do with each other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.raw import Raw, http_ask
from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqlookupd, SandboxNsqlookupd


@pytest.fixture(params=[Nsqlookupd, SandboxNsqlookupd])
def nsqlookupd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nsqlookupd]:
    """Of the same kind as nsqd, and of the other."""
    with request.param(tmp_path / "nsqlookupd") as running:
        yield running


def ask(lookupd: Nsqlookupd, request: str) -> Any:
    found = http_ask(lookupd.http, request)
    assert found.status == 200
    return found.json if found.body else None


@pytest.mark.parametrize("how", ["tcp", "http"])
def test_an_nsqd_asks_for_the_channels_of_a_new_topic_before_it_answers(
    how: str, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    for channel in ("archive", "metrics", "passing#ephemeral"):
        quoted = channel.replace("#", "%23")
        ask(nsqlookupd, f"POST /channel/create?topic={topic}&channel={quoted}")
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    eventually(lambda: ask(nsqlookupd, "GET /nodes")["producers"])
    if how == "http":
        nsqd.publish(topic, [b"x"])
    else:
        with Raw(nsqd.tcp) as client:
            assert client.ask(f"PUB {topic}", b"x") == b"OK"
    names = [each["channel_name"] for each in nsqd.topic(topic)["channels"]]
    assert names == ["archive", "metrics"]
    eventually(lambda: all(nsqd.channel(topic, name)["depth"] == 1 for name in names))


def test_an_nsqd_registers_again_with_an_nsqlookupd_that_was_away(
    make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> None:
    lookupd = make_nsqlookupd()
    nsqd = make_nsqd(lookupds=[lookupd])
    nsqd.create(topic, "c")
    eventually(lambda: lookupd.lookup(topic))
    lookupd.kill()
    lookupd.start()
    nsqd.create(f"{topic}.one")  # it finds that the connection is gone
    nsqd.create(f"{topic}.two")  # and dials again
    eventually(lambda: lookupd.lookup(topic) == {nsqd.tcp}, timeout=30)
    assert ask(lookupd, f"GET /channels?topic={topic}")["channels"] == ["c"]
    eventually(lambda: lookupd.lookup(f"{topic}.two") == {nsqd.tcp})


def test_an_nsqd_keeps_nsqlookupds_told_that_it_hears_of_while_it_runs(
    make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    nsqd = make_nsqd()
    nsqd.create(topic, "c")

    def use(*lookupds: str) -> None:
        body = json.dumps(lookupds).encode()
        nsqd.request("PUT", "/config/nsqlookupd_tcp_addresses", body)

    def channels() -> list[str]:
        return sorted(ask(nsqlookupd, f"GET /channels?topic={topic}")["channels"])

    use(str(nsqlookupd.tcp))
    eventually(lambda: nsqlookupd.lookup(topic) == {nsqd.tcp})
    (found,) = ask(nsqlookupd, f"GET /lookup?topic={topic}")["producers"]
    assert (found["http_port"], found["version"]) == (nsqd.http.port, "1.3.0")
    nsqd.create(topic, "d#ephemeral")
    eventually(lambda: channels() == ["c", "d#ephemeral"])
    nsqd.delete(topic, "d#ephemeral")
    eventually(lambda: channels() == ["c"])
    nsqd.create(f"{topic}.other")
    nsqd.delete(topic)
    eventually(lambda: nsqlookupd.lookup(topic) == set())
    eventually(lambda: nsqlookupd.lookup(f"{topic}.other") == {nsqd.tcp})
    use()
    eventually(lambda: nsqlookupd.lookup(f"{topic}.other") == set())
