"""The producer against scripted nsqds on the virtual clock."""

# size: every fault between a Producer and its nsqds

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from nsqtools.config.connection import ProducerConfig
from nsqtools.engine.producer import Producer
from nsqtools.errors import AuthError, PublishError, ServerError, UnreachableError
from nsqtools.net.connection import Connection
from tests.support import wire
from tests.support.clock import elapse
from tests.support.scripted import Network, ScriptedNsqd, flatten


@contextlib.asynccontextmanager
async def producing(*nsqds: ScriptedNsqd, **options: Any) -> AsyncIterator[Producer]:
    addresses = [nsqd.address for nsqd in nsqds]
    config = ProducerConfig(**options)
    async with Producer(addresses, config, rng=Random(1)) as made:
        yield made


def now() -> float:
    return asyncio.get_running_loop().time()


def refuse_bad(text: str) -> str | None:
    """As nsqd refuses a body: an MPUB whole."""
    if "PUB t" not in text or "bad" not in text:
        return None
    return "E_BAD_MESSAGE PUB message too big"


async def test_one_body_is_a_pub_and_more_are_one_mpub(nsqd: ScriptedNsqd) -> None:
    async with producing(nsqd) as producer:
        await producer.connect()  # once more, which does nothing
        await producer.publish("t", [b"one"])
        await producer.publish("t", [b"one", b"two"])
        await producer.publish("t", [])
    assert len(nsqd.dials) == 1
    assert nsqd.commands == ["PUB t b'one'", "MPUB t [b'one', b'two']", "end of stream"]


async def test_a_deferred_message_is_a_dpub_each(nsqd: ScriptedNsqd) -> None:
    async with producing(nsqd) as producer:
        await producer.publish("t", [b"one", b"two"], defer=1.5)
        await producer.publish("t", [b"three"], defer=0)
    assert nsqd.commands[:3] == ["DPUB t 1500 b'one'", "DPUB t 1500 b'two'", "DPUB t 0 b'three'"]


async def test_a_refused_deferred_message_costs_no_other(nsqd: ScriptedNsqd) -> None:
    nsqd.refuses = refuse_bad
    bodies = [b"0", b"1", b"bad", b"3", b"bad", b"bad", b"6"]
    async with producing(nsqd) as producer:
        with pytest.raises(PublishError, match="E_BAD_MESSAGE") as caught:
            await producer.publish("t", bodies, defer=1)
    assert caught.value.refused == [2, 4, 5]
    assert caught.value.permanent
    assert list(flatten(nsqd.published)) == [b"0", b"1", b"3", b"6"]


async def test_only_unanswered_deferred_messages_are_sent_again(nsqd: ScriptedNsqd) -> None:
    nsqd.answers = False
    async with producing(nsqd) as producer:
        first = asyncio.create_task(producer.publish("t", [b"a", b"b"], defer=1))
        second = asyncio.create_task(producer.publish("t", [b"c", b"d", b"e"], defer=1))
        third = asyncio.create_task(producer.publish("t", [b"f", b"g"]))
        await elapse(1)
        nsqd.send(wire.OK * 4)
        await first
        assert not second.done()
        nsqd.published.clear()
        nsqd.answers = True
        nsqd.break_off()
        await asyncio.gather(second, third)
    assert sorted(flatten(nsqd.published)) == [b"e", b"f", b"g"]


async def test_publishes_overlap_and_answers_belong_to_them_in_order(nsqd: ScriptedNsqd) -> None:
    nsqd.answers = False
    async with producing(nsqd) as producer:
        tasks = [asyncio.create_task(producer.publish("t", [b"%d" % n])) for n in range(4)]
        await elapse(1)
        assert list(flatten(nsqd.published)) == [b"0", b"1", b"2", b"3"]
        tasks[1].cancel()  # it still takes the second answer
        for done in ([1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]):
            nsqd.send(wire.OK)
            await elapse(0.01)
            assert [task.done() for task in tasks] == list(map(bool, done))


async def test_an_error_is_not_blamed_on_the_publish_behind(nsqd: ScriptedNsqd) -> None:
    nsqd.answers = False
    async with producing(nsqd) as producer:
        first, second = [asyncio.create_task(producer.publish("t", [b"x"])) for _ in range(2)]
        await elapse(1)
        first.cancel()
        await asyncio.sleep(0)
        nsqd.answers = True
        nsqd.send(wire.error("E_BAD_TOPIC first"))
        await second
    assert [len(bodies) for bodies in nsqd.published] == [1, 1, 1]


async def test_a_bug_in_dialling_fails_publishes_at_once_until_it_is_connected_anew(
    nsqd: ScriptedNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [KeyError("a bug")]

    async def dial(*arguments: Any, **options: Any) -> Connection:
        if len(nsqd.dials) == 1 and errors:
            raise errors.pop()
        return await Connection.open(*arguments, **options)

    config = ProducerConfig(publish_timeout=30.0)
    async with Producer([nsqd.address], config, rng=Random(1), dial=dial) as producer:
        nsqd.break_off()
        await asyncio.sleep(0)
        with pytest.raises(KeyError, match="a bug"):
            await producer.publish("t", [b"x"])
        assert now() < 1
        assert [record.exc_info is not None for record in caplog.records[-1:]] == [True]
        await producer.close()
        await producer.connect()
        await producer.publish("t", [b"y"])
        assert list(flatten(nsqd.published)) == [b"y"]


@pytest.mark.parametrize(("mode", "is_enough"), [("round-robin", True), ("all", False)])
async def test_a_producer_is_connected_while_it_can_publish_at_once(
    network: Network, mode: str, is_enough: bool
) -> None:
    nsqds = [network.nsqd(name) for name in "ab"]
    async with producing(*nsqds, mode=mode) as producer:
        found = [producer.is_connected]
        for nsqd in nsqds:
            nsqd.down = True
            nsqd.break_off()
            await elapse(0.01)
            found.append(producer.is_connected)
    assert found == [True, is_enough, False]


async def test_with_one_nsqd_a_batch_waits_for_it_to_come_back(nsqd: ScriptedNsqd) -> None:
    async with producing(nsqd) as producer:
        nsqd.down = True
        nsqd.break_off()
        task = asyncio.create_task(producer.publish("t", [b"x"]))
        await elapse(20)
        assert not task.done()
        nsqd.down = False
        await task
        assert nsqd.published == [[b"x"]]
        assert [round(at, 2) for at in nsqd.dials][-3:] == [7.75, 15.75, 23.75]
        nsqd.break_off()
        await elapse(0.3)  # the delays begin again
        assert len(nsqd.clients) == 1


@pytest.mark.parametrize("nsqds", [1, 2])
async def test_a_refused_batch_is_halved_until_the_culprits_stand_alone(
    network: Network, nsqds: int
) -> None:
    all_nsqds = [network.nsqd(name) for name in "ab"[:nsqds]]
    for nsqd in all_nsqds:
        nsqd.refuses = refuse_bad
    bodies = [b"%d" % n for n in range(100)]
    for n in (0, 17, 99):
        bodies[n] = b"bad %d" % n
    async with producing(*all_nsqds) as producer:
        with pytest.raises(PublishError, match="E_BAD_MESSAGE") as caught:
            await producer.publish("t", bodies)
    assert caught.value.refused == [0, 17, 99]
    assert caught.value.permanent
    published = [body for nsqd in all_nsqds for body in flatten(nsqd.published)]
    assert sorted(published) == sorted(body for body in bodies if not body.startswith(b"bad"))


async def test_a_timeout_while_halving_reports_only_what_was_not_taken(nsqd: ScriptedNsqd) -> None:
    def refuse(text: str) -> str | None:
        nsqd.answers = "[b'd', b'e', b'f', b'g']" not in text
        return refuse_bad(text)

    nsqd.refuses = refuse
    bodies = [b"a", b"b", b"c", b"bad", b"d", b"e", b"f", b"g"]
    async with producing(nsqd, publish_timeout=30) as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish("t", bodies)
        assert now() == pytest.approx(30)
    assert caught.value.refused == [3, 4, 5, 6, 7]
    assert not caught.value.permanent


@pytest.mark.parametrize("error", ["E_BAD_TOPIC PUB topic", "E_UNAUTHORIZED AUTH failed for PUB"])
async def test_what_every_nsqd_would_refuse_is_refused_at_once(
    network: Network, error: str
) -> None:
    nsqds = [network.nsqd(name) for name in "ab"]
    for nsqd in nsqds:
        nsqd.refuses = lambda text: error if "PUB" in text else None
    async with producing(*nsqds) as producer:
        with pytest.raises(PublishError, match=error) as caught:
            await producer.publish("t", [b"1", b"2", b"3"])
        assert now() < 1
    assert caught.value.refused == [0, 1, 2]
    assert caught.value.permanent


async def test_a_temporary_error_is_tried_elsewhere_and_then_again(network: Network) -> None:
    nsqds = [network.nsqd(name) for name in "ab"]
    for nsqd in nsqds:
        nsqd.refuses = lambda text: "E_PUB_FAILED exiting" if "PUB" in text else None
    async with producing(*nsqds) as producer:
        task = asyncio.create_task(producer.publish("t", [b"x"]))
        await elapse(10)
        assert not task.done()
        tries = sum(text.startswith("PUB") for nsqd in nsqds for _, text in nsqd.log)
        assert 2 < tries < 100
        for nsqd in nsqds:
            nsqd.refuses = lambda _: None
        await task


async def test_what_nobody_takes_is_given_up_with_what_went_wrong(nsqd: ScriptedNsqd) -> None:
    async with producing(nsqd, publish_timeout=30) as producer:

        async def give_up(why: str) -> None:
            began = now()
            with pytest.raises(PublishError, match=f"30s: {why}") as caught:
                await producer.publish("t", [b"1", b"2"])
            assert now() == pytest.approx(began + 30)
            assert (caught.value.refused, caught.value.permanent) == ([0, 1], False)

        nsqd.answers = False
        await give_up("nsqd:4150: ")
        nsqd.down = True
        nsqd.break_off()
        await elapse(0)
        await give_up("no nsqd")
        nsqd.down = False
        nsqd.refuses = lambda text: "E_MPUB_FAILED exiting" if "PUB" in text else None
        await give_up("nsqd:4150: E_MPUB_FAILED exiting")


async def test_in_mode_all_a_lost_nsqd_is_waited_for(network: Network) -> None:
    good, bad = network.nsqd("good"), network.nsqd("bad")
    async with producing(good, bad, mode="all") as producer:
        bad.down = True
        bad.break_off()
        task = asyncio.create_task(producer.publish("t", [b"x"]))
        await elapse(5)
        assert not task.done()
        bad.down = False
        await task
    assert good.published == bad.published == [[b"x"]]


async def test_in_mode_all_what_one_nsqd_did_not_take_is_refused(network: Network) -> None:
    good, bad = network.nsqd("good"), network.nsqd("bad")
    bad.refuses = refuse_bad
    async with producing(good, bad, mode="all") as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish("t", [b"1", b"bad"])
    assert caught.value.refused == [1]
    assert list(flatten(good.published)) == [b"1", b"bad"]
    assert list(flatten(bad.published)) == [b"1"]


async def test_batches_stay_under_the_size_of_a_body_to_the_byte(nsqd: ScriptedNsqd) -> None:
    async with producing(nsqd, max_msg_size=100, max_body_size=4 + 3 * (4 + 20)) as producer:
        bodies = [b"%020d" % n for n in range(7)]
        await producer.publish("t", bodies)
        assert [len(part) for part in nsqd.published] == [3, 3, 1]
        assert list(flatten(nsqd.published)) == bodies
        nsqd.published.clear()
        await producer.publish("t", [*bodies[:2], b"x" * 21, b"y"])
        assert [len(part) for part in nsqd.published] == [2, 2]


async def test_a_body_nobody_takes_is_refused_without_being_sent(nsqd: ScriptedNsqd) -> None:
    async with producing(nsqd, max_msg_size=10) as producer:
        with pytest.raises(PublishError, match="11 bytes") as caught:
            await producer.publish("t", [b"1", b"x" * 11, b"x" * 10, b"", b"2"])
        assert caught.value.refused == [1, 3]
        assert caught.value.permanent
    assert nsqd.published == [[b"1", b"x" * 10, b"2"]]


async def test_connecting_fails_only_if_nobody_can_be_reached(network: Network) -> None:
    good, bad = network.nsqd("good"), network.nsqd("bad")
    bad.down = True
    async with producing(good, bad) as producer:
        await producer.publish("t", [b"1"])
        await producer.publish("t", [b"2"])
        assert list(flatten(good.published)) == [b"1", b"2"]
        bad.down = False
        await elapse(10)
        await producer.publish("t", [b"3"])
        await producer.publish("t", [b"4"])
        assert len(bad.published) == 1
    good.down = bad.down = True
    with pytest.raises(UnreachableError, match="good:4150"):
        async with producing(good, bad):
            raise AssertionError


async def test_an_nsqd_that_hangs_at_the_start_delays_nobody_and_joins_later(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    nsqds = [network.nsqd("hung"), network.nsqd("well")]
    nsqds[0].silent = True
    began = now()
    async with producing(*nsqds) as producer:
        assert now() - began == pytest.approx(2)
        assert "hung:4150" in caplog.text
        await producer.publish("t", [b"one"])
        assert now() - began == pytest.approx(2)
        assert nsqds[1].published == [[b"one"]]
        began = now()
    assert now() - began < 1


async def test_in_mode_all_an_nsqd_that_hangs_at_the_start_is_an_error(network: Network) -> None:
    nsqds = [network.nsqd("well"), network.nsqd("hung")]
    nsqds[1].silent = True
    began = now()
    with pytest.raises(UnreachableError, match=r"hung:4150.*dial_timeout"):
        async with producing(*nsqds, mode="all"):
            pass
    assert now() - began == pytest.approx(2)
    await elapse(0.1)
    assert not nsqds[0].clients


@pytest.mark.parametrize("mode", ["round-robin", "hostpool", "epsilon-greedy"])
async def test_an_nsqd_that_hangs_later_does_not_collect_the_batches(
    network: Network, mode: str
) -> None:
    nsqds = [network.nsqd("hung"), network.nsqd("well")]
    async with producing(*nsqds, mode=mode) as producer:
        nsqds[0].silent = True
        began = now()
        stuck = [asyncio.create_task(producer.publish("t", [b"x"])) for _ in range(4)]
        await elapse(1)
        for _ in range(100):
            await producer.publish("t", [b"y"])
        assert now() - began < 2
        assert sum(not task.done() for task in stuck) <= 2
        await asyncio.gather(*stuck)  # another nsqd gets them


async def test_connecting_that_was_cancelled_can_be_tried_again(network: Network) -> None:
    nsqds = [network.nsqd(name) for name in ("a", "hole")]
    nsqds[1].hole = True
    producer = Producer([nsqd.address for nsqd in nsqds], ProducerConfig())
    connecting = asyncio.create_task(producer.connect())
    await elapse(0.1)
    connecting.cancel()
    await asyncio.wait([connecting])
    nsqds[1].hole = False
    async with producer:
        await producer.publish("t", [b"x"])


async def test_closing_fails_what_is_under_way_and_reconnects_to_nobody(network: Network) -> None:
    nsqd, away = network.nsqd("nsqd"), network.nsqd("away")
    away.down = True
    nsqd.answers = False
    async with producing(nsqd, away) as producer:
        waiting = asyncio.create_task(producer.publish("t", [b"1"]))
        await elapse(1)
        await producer.close()
        with pytest.raises(PublishError, match="not connected") as caught:
            await waiting
        assert caught.value.refused == [0]
        assert not caught.value.permanent
        with pytest.raises(PublishError, match="not connected"):
            await producer.publish("t", [b"2"])
        assert now() < 5
        dials = len(away.dials)
        await elapse(100)
        assert len(away.dials) == dials
        assert len(nsqd.dials) == 1
        assert nsqd.clients == []


POOLS = pytest.mark.parametrize("mode", ["hostpool", "epsilon-greedy"])


@POOLS
async def test_a_pool_leaves_an_nsqd_that_fails_alone_for_half_a_minute(
    network: Network, mode: str
) -> None:
    good, bad = network.nsqd("good"), network.nsqd("bad")
    bad.refuses = lambda text: "E_PUB_FAILED exiting" if "PUB" in text else None
    async with producing(good, bad, mode=mode, reconnect_delay=100) as producer:
        for number in range(1000):
            await producer.publish("t", [b"%d" % number])
            await elapse(0.025)
        assert len(good.published) == 1000
        assert sum(text.startswith("PUB") for _, text in bad.log) == 1


async def test_a_refusal_blames_bodies_only_if_nothing_else_is_to_blame(nsqd: ScriptedNsqd) -> None:
    async with producing(nsqd, max_msg_size=10) as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish("t", [b"x" * 11])
        assert caught.value.__cause__ is None
        nsqd.refuses = refuse_bad
        with pytest.raises(PublishError) as caught:
            await producer.publish("t", [b"bad", b"x" * 11, b"good"])
        assert isinstance(caught.value.__cause__, ServerError)
        assert caught.value.__cause__.code == "E_BAD_MESSAGE"
        nsqd.refuses = lambda text: "E_UNAUTHORIZED no" if "PUB" in text else None
        with pytest.raises(PublishError) as caught:
            await producer.publish("t", [b"x" * 11, b"good"])
        assert isinstance(caught.value.__cause__, AuthError)
        assert caught.value.permanent
