"""``stats --check`` on three nsqds and two nsqlookupds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.nagios import read
from tests.support.raw import Raw
from tests.support.reporting import fill, http, lookup, registered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.nagios import Output
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd


@dataclass(slots=True)
class Watched:
    """A cluster whose nsqds all have a topic with the channel c, and how to check it."""

    cli: Cli
    nsqds: Sequence[Nsqd]
    lookupds: Sequence[Nsqlookupd]
    topic: str

    @property
    def given(self) -> list[str]:
        return http(self.nsqds)

    @property
    def listed(self) -> list[str]:
        return lookup(self.lookupds)

    def check(self, *args: str, where: Sequence[str] = ()) -> Output:
        """What it prints for the topic; the exit status says the same."""
        given = where or self.given
        ended = self.cli("stats", "--check", "--topic", self.topic, *given, *args)
        output = read(ended.stdout.decode())
        assert (ended.code, ended.stderr) == (output.code, "")
        return output

    def value(self, output: Output, label: str) -> float | None:
        return output.data[f"{self.topic}{label}"].value


@pytest.fixture
def watched(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, lookupds: list[Nsqlookupd], topic: str
) -> Watched:
    nsqds = [make_nsqd(lookupds=lookupds) for _ in range(3)]
    for nsqd in nsqds:
        nsqd.create(topic, "c")
    registered(topic, lookupds, 3)
    return Watched(nsqtools_cli, nsqds, lookupds, topic)


def test_depths_and_clients_are_those_of_all_nsqds_together(watched: Watched) -> None:
    fill(watched.nsqds[0], watched.topic, count=5)
    fill(watched.nsqds[1], watched.topic, count=7)
    with Raw(watched.nsqds[2].tcp) as client:
        client.subscribe(watched.topic)
        for where in (watched.given, watched.listed, [*watched.given, *watched.listed]):
            output = watched.check("--depth-warn", "11", "--depth-crit", "12", where=where)
            assert output.state == "WARNING"
            assert watched.value(output, "/c:depth") == 12
            assert watched.value(output, "/c:clients") == 1
            assert output.data["nsqds"].value == 3
        assert watched.check("--depth-warn", "12", "--clients-min", "1").state == "OK"
        critical = watched.check("--depth-crit", "11", "--clients-min", "2")
    assert [line.partition(":")[0] for line in critical.more] == ["CRITICAL", "CRITICAL"]
