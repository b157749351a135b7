"""Whatever a server sends, a decoder answers or says which field is wrong."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.net.http.daemons import union_producers
from nsqtools.net.http.replies import (
    LeftOut,
    ProcessingLatency,
    Registration,
    decode_info,
    decode_lookup,
    decode_names,
    decode_nodes,
    decode_report,
)
from tests.support.scripted_http import CHANNEL, NODE, TOPIC

CLIENT: dict[str, Any] = {
    "client_id": "id",
    "hostname": "host",
    "user_agent": "agent/1",
    "remote_address": "10.0.0.1:5000",
    "state": 3,
    "ready_count": 1,
    "in_flight_count": 2,
    "message_count": 3,
    "finish_count": 4,
    "requeue_count": 5,
    "connect_ts": 6,
    "tls": True,
    "snappy": False,
    "deflate": True,
    "authed": True,
}

LATENCY: dict[str, Any] = {
    "count": 7,
    "percentiles": [{"quantile": 0.99, "value": 1_500_000_000}, {"quantile": 0.5, "value": 2.5e6}],
}

FIELDS = [
    *(*NODE, *CHANNEL, *TOPIC, *CLIENT, *LATENCY),
    *("topics", "tombstones", "producers", "start_time", "health"),
    *("e2e_processing_latency", "quantile", "value"),
]

DECODERS: list[Callable[[Any, LeftOut], object]] = [
    decode_lookup,
    decode_nodes,
    decode_info,
    decode_report,
    partial(decode_names, field="topics"),
]


def nodes_of(*entries: object) -> tuple[list[Registration], LeftOut]:
    """What is left of /nodes, and why the rest is not."""
    left_out: LeftOut = []
    return decode_nodes({"producers": list(entries)}, left_out), left_out


def nested(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    good = st.sampled_from([NODE, TOPIC, CHANNEL, CLIENT, LATENCY])
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
        complaints: LeftOut = []
        try:
            decode(data, complaints)
        except ValueError as error:
            complaints.append(str(error))
        assert all(complaint.isprintable() for complaint in complaints)


@pytest.mark.parametrize(
    "changes",
    [
        {"tcp_port": "4150"},
        {"tcp_port": True},
        {"tcp_port": None},
        {"tcp_port": 0},
        {"http_port": 65536},
        {"broadcast_address": ""},
        {"broadcast_address": "a\x1b[m"},
        {"broadcast_address": "a b"},
        {"broadcast_address": "a:1"},
        {"broadcast_address": "a,b"},
        {"broadcast_address": "a" * 64},
        {"hostname": ["x"]},
        {"topics": None},
        {"tombstones": []},
        {"tombstones": [0]},
    ],
)
def test_a_node_of_another_shape_alone_is_left_out(changes: dict[str, Any]) -> None:
    bad = {**NODE, "topics": ["a"], **changes}
    found, (text,) = nodes_of(NODE, bad, {**NODE, "broadcast_address": "b"})
    assert [each.host for each in found] == ["nsqd.test", "b"]
    assert repr(next(iter(changes))) in text
    assert NODE["remote_address"] in text


def test_of_a_topic_that_cannot_be_there_a_node_keeps_the_others() -> None:
    topics = ["a", "b\n", 7, "\ud800", "c"]
    marks = [True, False, False, False, False]
    (producer,), left_out = nodes_of({**NODE, "topics": topics, "tombstones": marks})
    assert (producer.topics, producer.tombstones) == (("a", "c"), (True, False))
    assert len(left_out) == 3


def test_only_the_first_of_what_is_left_out_are_described() -> None:
    found, left_out = nodes_of(*({**NODE, "tcp_port": 99999} for _ in range(1000)))
    assert not found
    assert 5 <= len(left_out) <= 20


def test_names_that_no_topic_can_have_are_left_out() -> None:
    left_out: LeftOut = []
    names = ["a", "", "a b", "a\n", "\ud800", "x" * 65, 5, None, "b"]
    assert decode_names({"topics": names}, left_out, field="topics") == ["a", "b"]
    assert len(left_out) == 7


@pytest.mark.parametrize(
    "changes", [{"depth": 10**4000}, {"depth": 1 << 64}, {"topic_name": "a b"}]
)
def test_a_topic_or_channel_with_nonsense_costs_itself(changes: dict[str, Any]) -> None:
    left_out: LeftOut = []
    of_channel = {key.replace("topic", "channel"): value for key, value in changes.items()}
    good = {**TOPIC, "channels": [{**CHANNEL, **of_channel}, {**CHANNEL, "channel_name": "d"}]}
    (topic,) = decode_report({"topics": [{**TOPIC, **changes}, good]}, left_out).topics
    assert [channel.name for channel in topic.channels] == ["d"]
    assert len(left_out) == 2


def test_stats_are_counted_in_seconds_and_without_control_characters() -> None:
    channel = {
        **CHANNEL,
        "clients": [{**CLIENT, "hostname": "a\x07b\ud800"}, {}, {}],
        "e2e_processing_latency": LATENCY,
    }
    del channel["client_count"]
    entry = {**TOPIC, "channels": [channel], "e2e_processing_latency": LATENCY, "message_bytes": 9}
    report = decode_report({"version": "1\n", "topics": [entry]}, [])
    assert report.version == "1\ufffd"
    (topic,) = report.topics
    expected = ProcessingLatency(7, ((0.99, 1.5), (0.5, 0.0025)))
    assert (topic.latency, topic.channels[0].latency, topic.message_bytes) == (
        expected,
        expected,
        9,
    )
    assert topic.channels[0].client_count == 3
    assert topic.channels[0].clients[0].hostname == "a\ufffdb\ufffd"


def test_gos_empty_lists_in_stats_are_empty() -> None:
    report = decode_report({"topics": None}, [])
    assert (report.topics, report.start_time) == ((), 0)
    (topic,) = decode_report({"topics": [{**TOPIC, "channels": None}]}, []).topics
    assert topic.channels == ()


@pytest.mark.parametrize("value", ["1", True, 10**400])
def test_a_latency_that_is_no_number_is_refused(value: object) -> None:
    said = {"count": 1, "percentiles": [{"quantile": 0.5, "value": value}]}
    left_out: LeftOut = []
    decode_report({"topics": [{**TOPIC, "e2e_processing_latency": said}]}, left_out)
    assert "'value'" in left_out[0]


def node(host: str, **topics: bool) -> Registration:
    marks = tuple(topics.values())
    return Registration(host, 4150, 4151, topics=tuple(topics), tombstones=marks)


def test_a_topic_is_tombstoned_only_if_all_who_list_it_say_so() -> None:
    answers = [
        [node("a", one=True, two=True, three=False, five=False)],
        [node("a", one=True, two=False, four=True, five=True)],
        [node("a")],
    ]
    (producer,) = union_producers(answers).values()
    found = dict(zip(producer.topics, producer.tombstones, strict=True))
    assert found == {"one": True, "two": False, "three": False, "four": True, "five": False}
