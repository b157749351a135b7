"""Messages on their way through ``relay`` between real servers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.support.servers import empty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.process import Cli
    from tests.support.servers import Nsqd

CHANNEL = "nsq_to_nsq"


def to(*nsqds: Nsqd) -> tuple[str, ...]:
    """Options for these destinations."""
    return tuple(
        word for nsqd in nsqds for word in ("--destination-nsqd-tcp-address", str(nsqd.tcp))
    )


def numbered(count: int) -> list[bytes]:
    return [b'{"n":%d}' % number for number in range(count)]


def published(nsqd: Nsqd, topic: str, bodies: Sequence[bytes]) -> None:
    """Messages that wait on relay's channel."""
    nsqd.create(topic, CHANNEL)
    nsqd.publish(topic, bodies)


def held(cli: Cli, nsqd: Nsqd, topic: str) -> Counter[bytes]:
    """What channel c of a topic holds, and no longer does then."""
    nsqd.create(topic, "c")
    tailed = cli("tail", "--topic", topic, "--channel", "c", *empty(nsqd))
    assert tailed.code == 0, tailed.stderr
    return Counter(tailed.stdout.splitlines())
