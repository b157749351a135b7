"""What is asked of servers for a diagnosis, where a scripted one shows more than a live one."""

import json
import time
from email.utils import formatdate
from typing import Any

import pytest

from nsqtools.config.connection import ConsumerConfig
from nsqtools.engine.doctor import diagnose
from nsqtools.engine.doctor.examine import Question, examine
from nsqtools.engine.doctor.facts import Facts
from nsqtools.engine.doctor.snapshot import SavedSnapshot
from nsqtools.names import Address
from tests.support.scripted_http import CHANNEL, reply, serving
from tests.support.servers import free_port
from tests.support.staging import Stage


@pytest.fixture(autouse=True)
def moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look comes soon."""
    monkeypatch.setattr("nsqtools.engine.doctor.examine.MOMENT", 0.01)


async def examined(**question: Any) -> Facts:
    """The facts of the whole cluster, or of a topic."""
    nothing: dict[str, Any] = {"topic": "", "channel": "", "nsqds": (), "lookupds": (), "urls": ()}
    return await examine(Question(**{**nothing, **question}), ConsumerConfig())


@pytest.mark.parametrize("off", [3600, -3600, None])
async def test_the_clock_of_nsqd_is_that_of_its_http_replies(off: int | None) -> None:
    tcp = Address("127.0.0.1", free_port())
    at = {"broadcast_address": tcp.host, "tcp_port": tcp.port, "http_port": 4151}
    said = json.dumps({"version": "1.3.0", "topics": [], **at})
    date = formatdate(time.time() + off, usegmt=True) if off else "yesterday"
    async with serving(reply(said, headers=f"Date: {date}\r\n")) as server:
        facts = await examined(topic="t", urls=(str(server.address),))
    (nsqd,) = facts.nsqds
    assert nsqd.skew == (pytest.approx(off, abs=60) if off else None)
    assert (nsqd.tcp, nsqd.given) == (tcp, True)
    assert nsqd.tcp_error


async def test_an_nsqd_whose_tcp_port_nobody_knows_is_asked_over_http() -> None:
    async with serving(reply('{"version": "1.3.0", "topics": []}')) as server:
        (nsqd,) = (await examined(topic="t", urls=(str(server.address),))).nsqds
    assert (nsqd.tcp, nsqd.version, nsqd.topic, nsqd.http_error) == (None, "1.3.0", None, None)


async def test_a_whole_cluster_takes_one_request_of_each_nsqd_and_look(stage: Stage) -> None:
    nsqds = [await stage.nsqd(*(f"t{n}" for n in range(1000))) for _ in range(2)]
    for nsqd in nsqds:
        for topic in nsqd.answers["/stats"]["topics"]:
            topic["channels"] = [{**CHANNEL, "channel_name": name} for name in "cd"]
    lookupd = await stage.lookupd(*nsqds)
    names = [f"t{n}" for n in range(1000)]
    lookupd.answers |= {"/topics": {"topics": [*names, "gone"]}, "/info": {"version": "1.3.0"}}
    lookupd.answers["/channels"] = {"channels": ["c", "d"] * 1000}
    found = diagnose(await examined(lookupds=(lookupd.name,)))
    assert [each.topic for each in found if each.code == "NSQ025"] == ["gone"]
    assert [nsqd.count("/stats") for nsqd in nsqds] == [2, 2]
    assert len(lookupd.asked) == 4


async def test_nsqds_too_many_to_be_examined_may_have_what_is_listed_for_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nsqtools.engine.doctor.examine.MAX_NSQDS", 1)
    lookupd = await stage.lookupd(await stage.nsqd("a"), await stage.nsqd("b"))
    lookupd.answers |= {"/topics": {"topics": ["a", "b", "gone"]}, "/info": {"version": "1.3.0"}}
    lookupd.answers["/channels"] = {"channels": ["c"]}
    facts = await examined(lookupds=(lookupd.name,))
    found = {(each.topic, each.channel) for each in diagnose(facts) if each.code == "NSQ025"}
    assert found == {("gone", ""), ("a", "c")}
    assert (len(facts.nsqds), facts.maybe) == (1, {"b"})
    assert "only the first 1" in caplog.text


async def test_an_nsqd_is_saved_by_its_broadcast_address(stage: Stage) -> None:
    """So that later looks know it again, whatever address they were given."""
    nsqd = await stage.nsqd("t")
    given = Address("127.0.0.1", nsqd.port - 1)
    saved = SavedSnapshot.of(await examined(nsqds=(given,)), ())
    assert list(saved.stats) == [f"127.0.0.1:{nsqd.answers['/info']['tcp_port']}"]


async def test_nsqds_with_one_broadcast_address_are_all_examined_and_saved(stage: Stage) -> None:
    """As containers that broadcast the name of their host."""
    first, second = await stage.nsqd("t"), await stage.nsqd("u")
    info = first.answers["/info"]
    second.answers["/info"] = {**info, "hostname": "other"}
    again = f"localhost:{first.port}"  # the first one, in another spelling
    facts = await examined(urls=(first.name, second.name, again))
    found = diagnose(facts)
    (shared,) = (each for each in found if each.code == "NSQ029")
    assert all(name in shared.text for name in (first.name, second.name))
    assert {each.topic for each in found if each.code == "NSQ033"} == {"t", "u"}
    assert set(SavedSnapshot.of(facts, ()).stats) == {first.name, second.name}


class Moving(dict[str, Any]):
    """Answers of an nsqd that has sent one more message at each look."""

    def __getitem__(self, path: str) -> Any:
        found = super().__getitem__(path)
        if path == "/stats":
            found["topics"][0]["channels"][0]["message_count"] += 1
        return found


@pytest.mark.parametrize(("in_flight", "is_again"), [(4, False), (5, True), (6, True)])
async def test_consumers_that_can_take_nothing_are_looked_at_again(
    stage: Stage, in_flight: int, is_again: bool
) -> None:
    nsqd = await stage.nsqd("t")
    client = {"ready_count": 5, "in_flight_count": in_flight}
    channel = {**CHANNEL, "message_count": 6, "clients": [client]}
    nsqd.answers["/stats"]["topics"][0]["channels"] = [channel]
    nsqd.answers = Moving(nsqd.answers)
    (found,) = (await examined(topic="t", channel="c", urls=(nsqd.name,))).nsqds
    looks = [look.channels[0].message_count for look in (found.topic, found.later) if look]
    assert looks == [7, 8][: 1 + is_again]
