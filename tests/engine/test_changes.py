"""What is asked of whom to change a topic or channel everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.engine.changes import (
    Holding,
    Loss,
    Registry,
    Survey,
    Target,
    find_producer,
    loss,
    plan,
)
from nsqtools.engine.cluster import Node
from nsqtools.errors import HTTPError
from nsqtools.names import Address
from tests.support.staging import channel, events, producer

if TYPE_CHECKING:
    from nsqtools.engine.changes import Stages, Verb
    from nsqtools.net.http.replies import TopicStats

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


def words(stages: Stages) -> list[list[str]]:
    return [
        [
            f"{step.name} {step.path}{f' ({step.note})' if step.note else ''}"
            f"{' failed' if step.error else ''}"
            for step in steps
        ]
        for steps in stages
    ]


def test_a_topic_is_deleted_where_it_is_looked_up_before_where_it_is() -> None:
    for known, said in (
        (registry("events"), ""),
        (registry("other"), " (does not exist)"),
        (registry(error=DEAD), " failed"),
    ):
        survey = Survey((known,), (holding("a", events()), holding("b")))
        assert words(plan("delete", EVENTS, survey)) == [
            [f"lookup:4161 topic/delete{said}"],
            ["a:4151 topic/delete"],
        ]


@pytest.mark.parametrize("verb", ["pause", "unpause", "empty"])
def test_only_nsqds_that_have_it_are_asked_to_do_the_rest(verb: Verb) -> None:
    survey = Survey((registry("events"),), (holding("a"), holding("b", events(paused=True))))
    (steps,) = plan(verb, EVENTS, survey)
    assert [(step.name, step.path) for step in steps] == [("b:4151", f"topic/{verb}")]


def test_a_topic_is_made_on_nsqlookupds_and_on_given_nsqds_alone() -> None:
    survey = Survey((registry(),), (holding("given", given=True), holding("listed")))
    assert words(plan("create", EVENTS, survey)) == [
        ["lookup:4161 topic/create"],
        ["given:4151 topic/create"],
    ]


def test_a_channel_is_made_on_all_nsqds_that_have_the_topic() -> None:
    having = (holding("a", events()), holding("b", events(channel())))
    others = (holding("given", given=True), holding("c"))
    survey = Survey((registry("events", channels=("c",)),), (*having, *others))
    assert words(plan("create", ARCHIVE, survey)) == [
        ["lookup:4161 channel/create (already exists)"],
        ["a:4151 channel/create", "b:4151 channel/create (already exists)"],
    ]


def test_a_silent_nsqd_has_failed_if_it_is_listed_with_the_topic_or_was_given() -> None:
    listed = holding("listed", error=DEAD, listed=("events",))
    given = holding("given", error=DEAD, given=True)
    another = holding("another", error=DEAD, listed=("other",))
    (steps,) = words(plan("pause", EVENTS, Survey((), (listed, given, another))))
    assert steps == ["listed:4151 topic/pause failed", "given:4151 topic/pause failed"]


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
