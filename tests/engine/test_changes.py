"""What is asked of whom to change a topic or channel everywhere."""

from typing import Any

import pytest

from nsqtools.engine.changes import (
    Holding,
    Loss,
    Registry,
    Stages,
    Survey,
    Target,
    Verb,
    find_producer,
    loss,
    plan,
)
from nsqtools.engine.cluster import Node
from nsqtools.errors import HTTPError
from nsqtools.names import Address
from nsqtools.net.http.replies import TopicStats
from tests.support.staging import channel, events, producer

EVENTS = Target("events")
ARCHIVE = Target("events", "c")
DEAD = HTTPError("connection refused", Address("dead", 4151))


def holding(
    host: str,
    topic: TopicStats | None = None,
    *,
    given: bool = False,
    error: HTTPError | None = None,
    listed: tuple[str, ...] = (),
) -> Holding:
    name = f"{host}:4151"
    node = Node(name, f"http://{name}", Address(host, 4150), topics=dict.fromkeys(listed, False))
    return Holding(node, given, topic, error)


def registry(*topics: str, channels: tuple[str, ...] = (), **rest: Any) -> Registry:
    return Registry("lookup:4161", "lookup:4161", topics, channels, **rest)


def words(stages: Stages) -> list[str]:
    """Of each stage the hosts; ``!`` marks an error, ``=`` that there is nothing to do."""
    return [
        " ".join(
            f"{step.name.partition(':')[0]}{'!' * bool(step.error)}{'=' * bool(step.note)}"
            for step in steps
        )
        for steps in stages
    ]


NSQDS = (
    holding("one", events()),
    holding("two", events(channel(), paused=True)),
    holding("given", given=True),
    holding("none"),
    holding("mute", error=DEAD, listed=("events",)),
    holding("deaf", error=DEAD, given=True),
    holding("dead", error=DEAD, listed=("other",)),
)


@pytest.mark.parametrize(
    ("verb", "target", "stages"),
    [
        ("delete", EVENTS, ["lookup", "one two mute! deaf!"]),
        ("delete", ARCHIVE, ["lookup", "two mute! deaf!"]),
        ("create", EVENTS, ["lookup=", "given mute! deaf!"]),
        ("create", ARCHIVE, ["lookup=", "one two= mute! deaf!"]),
        ("pause", EVENTS, ["one two= mute! deaf!"]),
        ("unpause", EVENTS, ["one= two mute! deaf!"]),
        ("empty", ARCHIVE, ["two mute! deaf!"]),
    ],
)
def test_who_has_it_or_may_have_it_is_asked_and_nsqlookupds_before_nsqds(
    verb: Verb, target: Target, stages: list[str]
) -> None:
    planned = plan(verb, target, Survey((registry("events", channels=("c",)),), NSQDS))
    assert words(planned) == stages
    assert {step.path for steps in planned for step in steps} == {f"{target.kind}/{verb}"}


def test_nsqlookupds_are_asked_whether_they_know_it_or_not() -> None:
    unknown, silent = registry("other"), registry(error=DEAD)
    assert words(plan("delete", EVENTS, Survey((unknown, silent), ()))) == ["lookup= lookup!", ""]
    assert words(plan("create", EVENTS, Survey((unknown, silent), ()))) == ["lookup lookup!", ""]


def test_the_loss_of_a_topic_is_that_of_all_its_channels() -> None:
    nsqds = [
        holding("a", events(channel(depth=5, in_flight=2, client_count=1), depth=7)),
        holding("b", events(channel(depth=1, deferred=3), channel("other", depth=10))),
        holding("c"),
    ]
    lost = loss("channels", EVENTS, nsqds)
    assert lost == Loss(depth=23, in_flight=2, deferred=3, channels=2, clients=1, nsqds=2)
    assert lost.messages == 28
    assert loss("messages", EVENTS, nsqds) == Loss(depth=7, nsqds=2)
    assert loss("messages", ARCHIVE, nsqds) == Loss(6, 2, 3, channels=1, clients=1, nsqds=2)


@pytest.mark.parametrize(
    ("host", "names"),
    [("a", ["a:4151", "a:4150", "a"]), ("b", ["web2"]), (None, ["shared", "a:9999", "nobody"])],
)
def test_an_nsqd_is_found_by_an_address_or_a_host_of_its_own(
    host: str | None, names: list[str]
) -> None:
    hostnames = {"a": "shared", "b": "web2", "c": "shared"}
    known = tuple(producer(each, hostname=name) for each, name in hostnames.items())
    for text in names:
        named = find_producer(text, Survey((registry(producers=known),), ()))
        assert (named and named.broadcast_address) == host
