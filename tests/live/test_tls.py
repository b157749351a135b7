"""TLS and compression with a real nsqd, both ways, byte for byte."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from nsqtools.config.connection import ProducerConfig
from nsqtools.engine.handler import Batch
from nsqtools.engine.producer import Producer
from tests.support.eventually import eventually_async
from tests.support.process import Cli
from tests.support.scripted import Recorder, consume, running, undisturbed
from tests.support.servers import MakeNsqd, Nsqd, at, drained
from tests.support.tls import Certificates

SIZES = (1, 2, 100, 4096, 65_535, 65_536, 65_537, 300_000, 1 << 20)


def bodies_of_many_sizes() -> list[bytes]:
    """Compressible ones, and ones that no compression makes smaller."""
    random = Random(5)
    return [random.randbytes(size) for size in SIZES] + [
        (b"nsq " * size)[:size] for size in SIZES[1:]
    ]


class Keeper(Recorder):
    def __init__(self) -> None:
        super().__init__(self.keep)
        self.bodies: Counter[bytes] = Counter()

    async def keep(self, batch: Batch) -> None:
        self.bodies.update(message.body for message in batch)


async def carry(nsqd: Nsqd, topic: str, bodies: list[bytes], **options: Any) -> dict[str, Any]:
    """Publish and consume over such connections; returns what /stats says of the consumer's."""
    nsqd.create(topic, "c")
    keeper = Keeper()
    async with undisturbed(), Producer([nsqd.tcp], ProducerConfig(**options)) as producer:
        for body in bodies[::2]:
            await producer.publish(topic, [body])
        await producer.publish(topic, bodies[1::2])
    async with running(consume(keeper, nsqd.tcp, topic=topic, max_in_flight=5, **options)):
        await eventually_async(lambda: drained(nsqd, topic, "c"))
        (client,) = nsqd.channel(topic, "c")["clients"]
    assert keeper.bodies == Counter(bodies)
    assert "reset by peer" not in nsqd.log.read_text()
    found: dict[str, Any] = client
    return found


@pytest.fixture
def secure(make_nsqd: MakeNsqd, certificates: Certificates) -> Nsqd:
    """An nsqd that offers TLS to whoever asks."""
    return make_nsqd(*certificates.server.nsqd_args())


@pytest.fixture
def trusting(certificates: Certificates) -> dict[str, Any]:
    return {"tls_v1": True, "tls_root_ca_file": str(certificates.ca)}


@pytest.mark.parametrize(("tls", "compression"), [(False, "snappy"), (True, "deflate"), (True, "")])
async def test_bodies_of_1_byte_to_1_mib_pass_unchanged_both_ways(
    tls: bool, compression: str, secure: Nsqd, trusting: dict[str, Any], topic: str
) -> None:
    options: dict[str, Any] = {compression: True} if compression else {}
    if tls:
        options |= trusting
    client = await carry(secure, topic, bodies_of_many_sizes(), **options)
    assert (client["tls"], client["snappy"], client["deflate"]) == (
        tls,
        compression == "snappy",
        compression == "deflate",
    )


async def test_tls_options_without_tls_v1_connect_in_clear_with_a_warning(
    secure: Nsqd, certificates: Certificates, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await carry(secure, topic, [b"x"], tls_root_ca_file=str(certificates.ca))
    assert not client["tls"]
    (warning,) = {each for each in caplog.messages if "tls-root-ca-file" in each}
    assert "--tls-v1" in warning


def test_a_refused_tail_is_not_told_what_it_would_take(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.publish(topic, [b"one"])
    command = ("tail", "--topic", topic, *at(nsqd), "--nsqd-http-address", str(nsqd.http))
    refused = nsqtools_cli(*command, "-n", "1", "--tls-v1")
    assert (refused.code, refused.stderr.count("\n")) == (3, 1)
    taken = nsqtools_cli(*command, "-n", "1")
    assert (taken.code, taken.stdout) == (0, b"one\n")
    assert "takes the 1 message waiting" in taken.stderr
