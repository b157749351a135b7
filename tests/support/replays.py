"""What tests of ``replay`` share."""

from tests.support.process import Cli
from tests.support.raw import unprefixed
from tests.support.servers import Nsqd, empty

HOSTILE = [bytes(range(256)), b"a\nb\n", b"\0" * 9, "schön".encode(), b" "]


def nothing(*_: object) -> None:
    """A report that nobody reads."""


class Taken:
    """The bodies that are in the topic, in their order."""

    def __init__(self, cli: Cli, nsqd: Nsqd, topic: str) -> None:
        self._cli, self._nsqd, self._topic = cli, nsqd, topic

    def __call__(self) -> list[bytes]:
        tailed = self._cli(
            *("tail", "--topic", self._topic, "--channel", "c", "--length-prefix"),
            *empty(self._nsqd),
        )
        assert tailed.code == 0, tailed
        return unprefixed(tailed.stdout)
