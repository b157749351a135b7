"""Hours of everything going wrong, in virtual time; then nothing is lost, stuck or exceeded."""

import asyncio
from collections.abc import Iterable
from random import Random

import pytest

from nsqtools.engine.handler import Batch
from nsqtools.names import Address
from tests.support import wire
from tests.support.clock import elapse, run_virtual
from tests.support.scripted import Network, Recorder, ScriptedNsqd, consume, running


class Moody(Recorder):
    """A handler that does what the bodies say."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.done: set[bytes] = set()
        self._random = random

    async def handle(self, batch: Batch) -> None:
        await elapse(self._random.choice([0, 0, 0, 0.1, 3]))
        for message in batch:
            kind = message.body.split()[0]
            if kind == b"bad" and message.attempts < 3:
                raise ValueError
            if kind == b"again" and message.attempts < 2:
                batch.requeue([message], delay=self._random.random() * 5, backoff=False)
            elif kind == b"slow" and message.attempts < 2:
                await elapse(self._random.choice([10, 40, 100]))
            elif kind == b"held":
                asyncio.get_running_loop().call_later(7, self.settle, batch, message)
                batch.hold()
            self.done.add(message.body)
        if batch.held:
            batch.finish([m for m in batch if not m.body.startswith(b"held")])

    def settle(self, batch: Batch, message: object) -> None:
        batch.finish([m for m in batch if m is message])


async def disturb(random: Random, nsqd: ScriptedNsqd) -> None:
    match random.randrange(9):
        case 0:
            nsqd.break_off()
        case 1:
            nsqd.hang_up()
        case 2:
            nsqd.down = not nsqd.down
        case 3:
            nsqd.silent = not nsqd.silent
        case 4:
            nsqd.hole = not nsqd.hole
        case 5:
            nsqd.send(random.choice([b"HTTP", random.randbytes(50), wire.error("E_INVALID")]))
        case 6:
            nsqd.one_by_one = not nsqd.one_by_one
        case 7:
            nsqd.send(wire.error("E_FIN_FAILED x") + wire.HEARTBEAT)
        case 8:
            nsqd.refuses = lambda text: "E_SUB_FAILED" if text.startswith("SUB") else None


async def live_through(seed: int, *, discovered: bool) -> None:
    """One random life of a consumer."""
    # size: the events of a life share its state
    random = Random(seed)
    network = Network()
    nsqds = [network.nsqd(name, msg_timeout=60_000) for name in "abc"[: random.randint(1, 3)]]
    nsqds[-1].old = random.random() < 0.3
    listed = list(nsqds)

    async def find(_: str) -> Iterable[Address]:
        return [nsqd.address for nsqd in listed]

    handler = Moody(random)
    consumer = consume(
        handler,
        *nsqds,
        find=find if discovered else None,
        max_in_flight=random.choice([1, 2, 7, 50]),
        max_in_flight_bytes=random.choice([300, 10_000, 1 << 20]),
        default_requeue_delay=random.choice([0, 1, 20]),
        max_attempts=0,
        max_backoff_duration=random.choice([0, 10, 120]),
        backoff_strategy=random.choice(["exponential", "full_jitter"]),
        heartbeat_interval=10,
        read_timeout=25,
    )
    bodies = []
    async with running(consumer):
        for step in range(150):
            for nsqd in nsqds:
                kinds = random.choices(
                    [b"good", b"bad", b"again", b"slow", b"held"], [60, 3, 5, 1, 5], k=5
                )
                new = [b"%s %d %d" % (kind, step, n) for n, kind in enumerate(kinds)]
                named = [body + str(nsqd.address).encode() for body in new]
                bodies += named
                nsqd.publish(*named)
            if random.random() < 0.3:
                await disturb(random, random.choice(nsqds))
            if random.random() < 0.1:
                consumer.set_max_in_flight(random.choice([0, 1, 2, 3, 20]))
            if random.random() < 0.1:
                random.shuffle(listed)
                del listed[1:]
            await elapse(random.choice([0, 0.01, 1, 10, 30]))
        listed[:] = nsqds
        for nsqd in nsqds:
            nsqd.down = nsqd.silent = nsqd.hole = False
            nsqd.refuses = lambda _: None
            for client in nsqd.clients[:]:
                if client.transport.is_closing():
                    nsqd.clients.remove(client)
        final = random.choice([1, 2, 9])  # 1 or 2 may be fewer than nsqds
        consumer.set_max_in_flight(final)
        await elapse(600)
        network.max_ready = final
        await elapse(30_000)
        assert consumer.stats().connections == len(nsqds)
        assert [(nsqd.depth, nsqd.in_flight) for nsqd in nsqds] == [(0, 0)] * len(nsqds)
        assert handler.done == set(bodies)
        assert consumer.stats().in_flight == 0
        assert [len(nsqd.clients) for nsqd in nsqds] == [1] * len(nsqds)
        for nsqd in nsqds:
            nsqd.publish(b"good last", b"good of all")
        await elapse(60)
        assert [(nsqd.depth, nsqd.in_flight) for nsqd in nsqds] == [(0, 0)] * len(nsqds)
        if not any(nsqd.old for nsqd in nsqds):
            assert sum(nsqd.ready for nsqd in nsqds) == final


more = pytest.mark.full("more lives of a consumer")


@pytest.mark.parametrize("discovered", [False, True], ids=["fixed", "discovered"])
@pytest.mark.parametrize("seed", [1, 3, *(pytest.param(n, marks=more) for n in range(4, 24))])
def test_a_consumer_lives_through_anything(seed: int, discovered: bool) -> None:
    run_virtual(live_through(seed, discovered=discovered), limit=10**6)
