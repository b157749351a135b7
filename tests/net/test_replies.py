"""Whatever a server sends, a decoder answers or says which field is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.names import Address
from nsqtools.net.http import parse_url
from nsqtools.net.replies import (
    Producer,
    decode_info,
    decode_lookup,
    decode_nodes,
    decode_stats,
    decode_texts,
    show,
    union_producers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NODE: dict[str, Any] = {
    "remote_address": "10.0.0.1:5000",
    "hostname": "host",
    "broadcast_address": "nsqd.test",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}

CHANNEL: dict[str, Any] = {
    "channel_name": "c",
    "depth": 1,
    "backend_depth": 2,
    "in_flight_count": 3,
    "deferred_count": 4,
    "message_count": 5,
    "requeue_count": 6,
    "timeout_count": 7,
    "client_count": 8,
    "clients": None,
    "paused": True,
}

TOPIC: dict[str, Any] = {
    "topic_name": "t",
    "depth": 1,
    "backend_depth": 2,
    "message_count": 3,
    "paused": False,
    "channels": [CHANNEL],
}

FIELDS = [*NODE, *CHANNEL, *TOPIC, "topics", "tombstones", "producers", "start_time"]

DECODERS: list[Callable[[Any], object]] = [
    decode_lookup,
    decode_nodes,
    decode_info,
    decode_stats,
    lambda data: decode_texts(data, "topics"),
]


def nested(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    good = st.sampled_from([NODE, TOPIC, CHANNEL])
    changed = st.builds(lambda entry, name, new: {**entry, name: new}, good, names, value)
    dropped = st.builds(
        lambda entry, name: {key: entry[key] for key in entry if key != name}, good, names
    )
    return changed | dropped | st.lists(value, max_size=3) | st.dictionaries(names, value)


names = st.sampled_from(FIELDS)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(scalars, nested, max_leaves=20)


@given(anything)
def test_any_json_is_decoded_or_refused_in_one_line(data: object) -> None:
    for decode in DECODERS:
        complaint = ""
        try:
            decode(data)
        except ValueError as error:
            complaint = str(error)
        assert complaint.isprintable()


def test_a_node_keeps_what_nsqlookupd_said() -> None:
    entry = {**NODE, "topics": ["a", "b"], "tombstones": [False, True]}
    (producer,) = decode_nodes({"producers": [entry]})
    assert producer == Producer(
        "nsqd.test", "host", "10.0.0.1:5000", 4150, 4151, "1.3.0", ("a", "b"), (False, True)
    )
    assert producer.tcp == Address("nsqd.test", 4150)
    assert producer.http == Address("nsqd.test", 4151)


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"tcp_port": "4150"}, "'tcp_port' is \"4150\", expected a whole number"),
        ({"tcp_port": True}, "'tcp_port' is true, expected a whole number"),
        ({"tcp_port": None}, "'tcp_port' is null"),
        ({"tcp_port": 0}, "'tcp_port' is 0, expected 1 to 65535"),
        ({"http_port": 65536}, "'http_port' is 65536"),
        ({"broadcast_address": ""}, "'broadcast_address'"),
        ({"broadcast_address": "a\x1b[m"}, "'broadcast_address'"),
        ({"broadcast_address": "a b"}, "'broadcast_address'"),
        ({"broadcast_address": "http://a"}, "'broadcast_address'"),
        ({"broadcast_address": "a:1"}, "'broadcast_address'"),
        ({"hostname": ["x"]}, "'hostname' is a list, expected text"),
        ({"topics": None}, "'topics' is null, expected a list"),
        ({"topics": [1]}, "'topics'"),
        ({"topics": ["a"], "tombstones": []}, "'tombstones'"),
        ({"topics": ["a"], "tombstones": [0]}, "'tombstones'"),
    ],
)
def test_a_node_of_another_shape_is_refused_by_field(changes: dict[str, Any], culprit: str) -> None:
    with pytest.raises(ValueError, match=r"^'") as raised:
        decode_nodes({"producers": [{**NODE, **changes}]})
    assert culprit in str(raised.value)


@pytest.mark.parametrize("missing", ["broadcast_address", "tcp_port", "http_port"])
def test_a_node_without_an_address_is_refused(missing: str) -> None:
    entry = {name: value for name, value in NODE.items() if name != missing}
    with pytest.raises(ValueError, match=f"'{missing}' is missing"):
        decode_nodes({"producers": [entry]})


@pytest.mark.parametrize("host", ["a", "a_b.test", "10.0.0.1", "::1", "bücher.test"])
def test_addresses_of_a_node_read_back_from_their_text(host: str) -> None:
    (producer,) = decode_nodes({"producers": [{**NODE, "broadcast_address": host}]})
    assert Address.parse(str(producer.tcp)) == producer.tcp
    assert parse_url(str(producer.http)).address == producer.http


def test_stats_are_told_apart() -> None:
    (topic,) = decode_stats({"topics": [TOPIC]})
    assert (topic.name, topic.depth, topic.backend_depth, topic.message_count) == ("t", 1, 2, 3)
    (channel,) = topic.channels
    assert (channel.depth, channel.backend_depth) == (1, 2)
    assert (channel.in_flight, channel.deferred, channel.message_count) == (3, 4, 5)
    assert (channel.requeue_count, channel.timeout_count, channel.client_count) == (6, 7, 8)
    assert (topic.paused, channel.paused) == (False, True)


def test_gos_empty_lists_in_stats_are_empty() -> None:
    assert decode_stats({"topics": None}) == []
    (topic,) = decode_stats({"topics": [{**TOPIC, "channels": None}]})
    assert topic.channels == ()


def test_clients_are_counted_where_nsqd_gives_no_count() -> None:
    channel = {**CHANNEL, "clients": [{}, {}, {}]}
    del channel["client_count"]
    (topic,) = decode_stats({"topics": [{**TOPIC, "channels": [channel]}]})
    assert topic.channels[0].client_count == 3


def node(host: str, **topics: bool) -> Producer:
    return Producer(host, "", "", 4150, 4151, "", tuple(topics), tuple(topics.values()))


def test_producers_are_united_by_broadcast_address_and_tcp_port() -> None:
    united = union_producers([[node("a"), node("b")], [node("b"), node("c")], []])
    assert list(united) == [Address("a", 4150), Address("b", 4150), Address("c", 4150)]


def test_a_topic_is_tombstoned_only_if_all_who_list_it_say_so() -> None:
    answers = [
        [node("a", one=True, two=True, three=False)],
        [node("a", one=True, two=False, four=True)],
        [node("a")],
    ]
    (producer,) = union_producers(answers).values()
    found = dict(zip(producer.topics, producer.tombstones, strict=True))
    assert found == {"one": True, "two": False, "three": False, "four": True}


@given(st.text() | st.binary())
def test_foreign_text_is_shown_short_and_on_one_line(text: str | bytes) -> None:
    assert show(text).isprintable()
    assert len(show(text)) <= 100
