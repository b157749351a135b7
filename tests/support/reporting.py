"""Filling clusters that commands are asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.servers import Nsqd, Nsqlookupd


def http(nsqds: Iterable[Nsqd]) -> list[str]:
    return [word for nsqd in nsqds for word in ("--nsqd-http-address", str(nsqd.http))]


def lookup(lookupds: Iterable[Nsqlookupd]) -> list[str]:
    return [word for each in lookupds for word in ("--lookupd-http-address", str(each.http))]


def fill(nsqd: Nsqd, topic: str, channel: str = "c", count: int = 3) -> None:
    """Create them, and publish so many messages that then are in the channel."""
    nsqd.create(topic, channel)
    nsqd.publish(topic, [b"x"] * count)
    eventually(lambda: nsqd.channel(topic, channel)["depth"] == count)


def registered(topic: str, lookupds: Iterable[Nsqlookupd], count: int = 1) -> None:
    """Wait until each of them lists the topic at so many nsqds."""
    for lookupd in lookupds:
        eventually(lambda lookupd=lookupd: len(lookupd.lookup(topic)) == count)  # type: ignore[misc]
