"""Messages on their way through ``relay`` between real servers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.servers import at, empty

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from tests.support.process import Cli, Result
    from tests.support.servers import Nsqd

CHANNEL = "nsq_to_nsq"


def to(*nsqds: Nsqd) -> tuple[str, ...]:
    """Options for these destinations."""
    return tuple(
        word for nsqd in nsqds for word in ("--destination-nsqd-tcp-address", str(nsqd.tcp))
    )


def published(nsqd: Nsqd, topic: str, bodies: Sequence[bytes]) -> None:
    """Messages that wait on relay's channel."""
    nsqd.create(topic, CHANNEL)
    nsqd.publish(topic, bodies)


def arrived(cli: Cli, nsqd: Nsqd, topic: str) -> Counter[bytes]:
    """All that an nsqd got of a topic since it was started."""
    count = nsqd.topic(topic)["message_count"]
    tailed = cli("tail", "--topic", topic, "--channel", "c", "--count", str(count), *at(nsqd))
    assert tailed.code == 0, tailed.stderr
    return Counter(tailed.stdout.splitlines())


@dataclass(frozen=True, slots=True)
class Relay:
    """``relay`` of a topic from one nsqd to another."""

    cli: Cli
    source: Nsqd
    goal: Nsqd
    topic: str

    def command(self, *options: str) -> tuple[str, ...]:
        return ("relay", "--topic", self.topic, *to(self.goal), *options)

    def publish(self, *bodies: bytes) -> None:
        published(self.source, self.topic, bodies)

    def run(self, *options: str) -> Result:
        """Relay until the source is empty, unless options say when to end."""
        end = at(self.source) if "--count" in options else empty(self.source)
        return self.cli(*self.command(*options, *end))

    def good(self, *options: str) -> str:
        """What is said of a run that succeeds."""
        ended = self.run(*options)
        assert (ended.code, ended.stdout) == (0, b""), ended.stderr
        return ended.stderr

    def start(self, *options: str, **streams: Any) -> subprocess.Popen[bytes]:
        return self.cli.start(*self.command(*options, *at(self.source)), **streams)

    def arrived(self, topic: str = "") -> Counter[bytes]:
        return arrived(self.cli, self.goal, topic or self.topic)
