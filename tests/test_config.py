"""Options: what their texts mean, go-nsq's names and bounds, and contradictions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqtools import __version__
from nsqtools.config import (
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    SourceOptions,
    StopOptions,
    TargetOptions,
)
from nsqtools.config.option import (
    Options,
    flag_name,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

MS, S, M, H, KIB, MIB = 0.001, 1.0, 60.0, 3600.0, 1 << 10, 1 << 20

DURATIONS = {
    "0": 0.0,
    "0s": 0.0,
    "1s": 1.0,
    "500ms": 0.5,
    "1.5s": 1.5,
    ".5s": 0.5,
    "1.h": 3600.0,
    "1h30m": 5400.0,
    "1h0m0.5s": 3600.5,
    "30m1h": 5400.0,
    "1d": 86400.0,
    "250us": 0.00025,
    "250\u00b5s": 0.00025,
    "7ns": 7e-9,
    " 2m ": 120.0,
}


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_a_duration_is_read_as_go_does(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", " ", "1000", "0.0", "1", "s", "-1s", "1 s", "1h 30m", "1S", "1x", "1h30", "1e3s"]
)
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="500ms or 1h30m"):
        parse_duration(text)


@settings(deadline=None)
@given(st.integers(0, 10**9))
def test_whole_milliseconds_read_as_they_are_shown(ms: int) -> None:
    assert parse_duration(format_duration(ms / 1000)) == pytest.approx(ms / 1000, abs=1e-9)


def test_a_duration_is_shown_short() -> None:
    shown = [format_duration(s) for s in (0, 0.25, 1, 60, 90, 3600, 5400, 3661.5, 86400)]
    assert shown == ["0s", "250ms", "1s", "1m", "1m30s", "1h", "1h30m", "1h1m1.5s", "24h"]


SIZES = {
    "0": 0,
    "65536": 65536,
    "64KiB": 65536,
    "64kib": 65536,
    "64K": 65536,
    "64KB": 64000,
    "5MB": 5_000_000,
    "1.5 MiB": 3 * MIB // 2,
    "1G": 1 << 30,
    "2TiB": 2 << 40,
    "12B": 12,
}


@pytest.mark.parametrize(("text", "count"), SIZES.items())
def test_a_size_is_read(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "K", "1e3", "1,5M", "1PB", "-5", "64KiBs", "0x10"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="65536, 64KiB or 5MB"):
        parse_size(text)


@settings(deadline=None)
@given(st.integers(0, 2**50) | st.builds(lambda n, by: n << by, *[st.integers(0, 40)] * 2))
def test_a_size_reads_as_it_is_shown(count: int) -> None:
    assert parse_size(format_size(count)) == count


# nsq.io's client configuration as go-nsq config.go declares it: default, minimum, maximum.
GO_NSQ: dict[str, tuple[object, object, object]] = {
    "dial_timeout": (1 * S, None, None),
    "read_timeout": (60 * S, 100 * MS, 5 * M),
    "write_timeout": (1 * S, 100 * MS, 5 * M),
    "local_addr": ("", None, None),
    "lookupd_poll_interval": (60 * S, 10 * MS, 5 * M),
    "lookupd_poll_jitter": (0.3, 0, 1),
    "lookupd_poll_timeout": (1 * M, None, None),
    "max_requeue_delay": (15 * M, 0, 60 * M),
    "default_requeue_delay": (90 * S, 0, 60 * M),
    "backoff_strategy": ("exponential", None, None),
    "max_backoff_duration": (2 * M, 0, 60 * M),
    "backoff_multiplier": (1 * S, 0, 60 * M),
    "max_attempts": (5, 0, 65535),
    "low_rdy_idle_timeout": (10 * S, 1 * S, 5 * M),
    "low_rdy_timeout": (30 * S, 1 * S, 5 * M),
    "rdy_redistribute_interval": (5 * S, 1 * MS, 5 * S),
    "client_id": ("", None, None),
    "hostname": ("", None, None),
    "user_agent": ("go-nsq/1.1.0", None, None),
    "topology_region": ("", None, None),
    "topology_zone": ("", None, None),
    "heartbeat_interval": (30 * S, None, None),
    "sample_rate": (0, 0, 99),
    "tls_v1": (False, None, None),
    "tls_config": (None, None, None),
    "tls_root_ca_file": ("", None, None),
    "tls_cert": ("", None, None),
    "tls_key": ("", None, None),
    "tls_insecure_skip_verify": (False, None, None),
    "tls_min_version": ("tls1.0", None, None),
    "deflate": (False, None, None),
    "deflate_level": (6, 1, 9),
    "snappy": (False, None, None),
    "output_buffer_size": (16384, None, None),
    "output_buffer_timeout": (250 * MS, None, None),
    "max_in_flight": (1, 0, None),
    "msg_timeout": (0.0, 0, None),
    "auth_secret": ("", None, None),
    "skip_lookupd_authorization": (True, None, None),
}

DIFFERENT: dict[str, tuple[object, object, object] | None] = {
    "dial_timeout": (1 * S, 1 * MS, None),  # 0 could never connect
    "lookupd_poll_timeout": (1 * M, 1 * MS, None),  # 0 could never answer
    "max_msg_size": (64 << 20, 1, None),  # 0 would be no bound for what a server may send
    "user_agent": (f"nsqtools/{__version__}", None, None),
    "heartbeat_interval": (30 * S, 1 * S, None),  # nsqd refuses less
    "tls_config": None,  # a Go value; go-nsq panics on a text
    "tls_min_version": ("tls1.2", None, None),  # verified TLS, never less than 1.2 unasked
    "output_buffer_size": (65536, -1, None),  # nsqd pushes in larger writes
    "output_buffer_timeout": (250 * MS, 0, None),
}
"""What is ours on purpose; None is a name we do not take."""


@pytest.mark.parametrize("name", GO_NSQ)
def test_go_nsqs_option_has_its_name_default_and_bounds_here(name: str) -> None:
    ours = DIFFERENT.get(name, GO_NSQ[name])
    assert ours is None or name not in DIFFERENT or ours != GO_NSQ[name]
    declared = ConsumerConfig.declared()
    field = "lookupd_authorization" if name == "skip_lookupd_authorization" else name
    if ours is None:
        assert field not in declared
        return
    found = declared[field]
    assert (getattr(ConsumerConfig(), field), found.minimum, found.maximum) == ours


TEXTS = {
    "duration": ("3s", 3.0),
    "integer": ("3", 3),
    "size": ("3", 3),
    "number": ("0.5", 0.5),
    "flag": ("true", True),
    "text": ("a,b", "a,b"),
    "path": ("/a,b", "/a,b"),
}


@pytest.mark.parametrize("name", [name for name in GO_NSQ if DIFFERENT.get(name, "") is not None])
def test_consumer_opt_takes_each_of_go_nsqs_names(name: str) -> None:
    field = "lookupd_authorization" if name == "skip_lookupd_authorization" else name
    declared = ConsumerConfig.declared()[field]
    text, value = TEXTS.get(declared.kind) or (declared.choices[1], declared.choices[1])
    for spelling in (name, name.replace("_", "-")):
        pairs = [f"{spelling},{text}"]
        assert ConsumerConfig.parse_pairs(pairs, "--consumer-opt") == {field: value}


@pytest.mark.parametrize(
    ("name", "edge", "outside"),
    [
        (name, edge, edge + step)
        for name, declared in ConsumerConfig.declared().items()
        for edge, step in ((declared.minimum, -1), (declared.maximum, 1))
        if edge is not None and declared.kind in ("integer", "number", "duration", "size")
    ],
)
def test_a_bound_is_allowed_and_what_is_beyond_it_names_option_and_range(
    name: str, edge: float, outside: float
) -> None:
    declared = ConsumerConfig.declared()[name]
    declared.check(edge)
    with pytest.raises(ConfigError) as caught:
        ConsumerConfig().with_values(**{name: outside})
    assert str(caught.value).startswith(f"--{flag_name(name)}: ")
    assert str(caught.value).endswith(f"expected {declared.range}")


@pytest.mark.parametrize("kind", [ConsumerConfig, ProducerConfig, StopOptions])
def test_every_default_is_within_its_own_range(kind: type[Options]) -> None:
    kind()


PAIRS: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (["snappy"], {"snappy": True}),
    (["snappy,false"], {"snappy": False}),
    (["client_id,a,b"], {"client_id": "a,b"}),
    (["client_id,"], {"client_id": ""}),
    (["max_attempts,3", "max-attempts,4"], {"max_attempts": 4}),
    (["skip_lookupd_authorization,false"], {"lookupd_authorization": False}),
    (["lookupd_authorization,false"], {"lookupd_authorization": False}),
]


@pytest.mark.parametrize(("pairs", "values"), PAIRS)
def test_pairs_are_split_at_the_first_comma_and_the_last_wins(
    pairs: list[str], values: dict[str, Any]
) -> None:
    assert ConsumerConfig.parse_pairs(pairs, "--consumer-opt") == values


BAD_PAIRS = {
    "max_in_flite,3": "--consumer-opt: unknown option 'max_in_flite'; "
    "did you mean 'max_in_flight'?",
    "Snappy": "--consumer-opt: unknown option 'Snappy'; did you mean 'snappy'?",
    "tls_config,x": "--consumer-opt: unknown option 'tls_config'",
    "": "--consumer-opt: unknown option ''",
    ",3": "--consumer-opt: unknown option ''",
    "msg_timeout,1000": "--consumer-opt msg_timeout: '1000' is not a duration",
    "max_in_flight": "--consumer-opt max_in_flight: 'true' is not a whole number",
    "max_attempts,65536": "--consumer-opt max_attempts: 65536 is out of range: expected 0 to 65535",
    "max_attempts,1.5": "--consumer-opt max_attempts: '1.5' is not a whole number",
    "snappy,maybe": "--consumer-opt snappy: 'maybe' is not a boolean: write true or false",
    "lookupd_poll_jitter,2": "--consumer-opt lookupd_poll_jitter: 2 is out of range: "
    "expected 0 to 1",
    "read-timeout,6m": "--consumer-opt read-timeout: 6m is out of range: expected 100ms to 5m",
    "backoff_strategy,full_jiter": "did you mean 'full_jitter'?",
    "tls_min_version,tls1.4": "'tls1.4' is not one of",
}


@pytest.mark.parametrize(("pair", "words"), BAD_PAIRS.items())
def test_a_bad_pair_is_refused_with_flag_option_and_fix(pair: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        ConsumerConfig.parse_pairs(["snappy,false", pair], "--consumer-opt")


def test_producer_opt_takes_the_names_of_a_connection_and_not_those_of_a_consumer() -> None:
    values = ProducerConfig.parse_pairs(["deflate_level,9", "write-timeout,2s"], "--producer-opt")
    assert values == {"deflate_level": 9, "write_timeout": 2.0}
    with pytest.raises(ConfigError, match="--producer-opt: unknown option 'max_attempts'"):
        ProducerConfig.parse_pairs(["max_attempts,3"], "--producer-opt")


CONTRADICTIONS: dict[str, tuple[Callable[[], Options], str]] = {
    "both compressions": (
        lambda: ConsumerConfig(snappy=True, deflate=True),
        "--snappy and --deflate exclude each other",
    ),
    "a heartbeat after the read timeout": (
        lambda: ClientConfig(heartbeat_interval=61),
        "heartbeat_interval 1m1s is longer than read_timeout 1m",
    ),
    "a certificate alone": (lambda: ClientConfig(tls_cert="c.pem"), "--tls-cert and --tls-key"),
    "a key alone": (lambda: ClientConfig(tls_key="k.pem"), "--tls-cert and --tls-key"),
    "a copy": (
        lambda: ConsumerConfig(snappy=True).with_values(deflate=True),
        "--snappy and --deflate exclude each other",
    ),
}


@pytest.mark.parametrize(("make", "words"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_options_that_contradict_each_other_are_refused(
    make: Callable[[], Options], words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SourceOptions(topic=("a b",)), "--topic: topic 'a b': expected 1 to 64 of"),
        (lambda: SourceOptions(channel="a b"), "--channel: channel 'a b': expected 1 to 64 of"),
        (lambda: TargetOptions(topic="é"), "--topic: topic 'é': expected 1 to 64 of"),
        (
            lambda: TargetOptions(nsqd_tcp_address=("a:b:c",)),
            "--nsqd-tcp-address: address 'a:b:c': write an IPv6 address in brackets",
        ),
        (
            lambda: SourceOptions(lookupd_http_address=("https://h:x/p",)),
            "--lookupd-http-address: address 'h:x': expected a port",
        ),
    ],
)
def test_names_and_addresses_are_checked(make: Callable[[], Options], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        make()


def test_addresses_of_http_may_have_a_scheme_and_a_path() -> None:
    urls = ("h", "h:1", "http://h:1", "https://[::1]:1/nsq?x=y", "h:1/path")
    assert SourceOptions(lookupd_http_address=urls).lookupd_http_address == urls


def test_a_secret_is_not_in_a_repr() -> None:
    assert "hunter2" not in repr(ConsumerConfig(auth_secret="hunter2"))
    assert "auth_secret=''" in repr(ConsumerConfig())


def test_what_may_be_a_secret_is_not_in_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        ConsumerConfig.parse_pairs(["auth_secret=hunter2"], "--consumer-opt")
    assert str(caught.value) == (
        "--consumer-opt: unknown option 'auth_secret'; write it with a comma, as NAME,VALUE"
    )


def test_a_heartbeat_of_exactly_the_read_timeout_is_allowed() -> None:
    assert ClientConfig(heartbeat_interval=60).heartbeat_interval == 60


def test_identify_asks_for_what_is_configured_in_milliseconds() -> None:
    body = ConsumerConfig(
        client_id="c",
        hostname="h.example",
        user_agent="u",
        heartbeat_interval=1.5,
        output_buffer_timeout=0.5,
        deflate=True,
        deflate_level=3,
        sample_rate=10,
        msg_timeout=2.0,
        topology_region="r",
        topology_zone="z",
    ).identify()
    assert body == {
        "client_id": "c",
        "hostname": "h.example",
        "user_agent": "u",
        "feature_negotiation": True,
        "heartbeat_interval": 1500,
        "output_buffer_size": 65536,
        "output_buffer_timeout": 500,
        "tls_v1": False,
        "snappy": False,
        "deflate": True,
        "deflate_level": 3,
        "sample_rate": 10,
        "msg_timeout": 2000,
        "topology_region": "r",
        "topology_zone": "z",
    }


def test_identify_leaves_out_what_is_not_asked_for() -> None:
    body = ConsumerConfig().identify()
    assert {"msg_timeout", "sample_rate", "deflate_level", "topology_region"}.isdisjoint(body)
    assert "." not in body["client_id"]
    assert "msg_timeout" not in ProducerConfig().identify()


@pytest.mark.parametrize(
    "values",
    [
        {"tls_v1": True},
        {"tls_root_ca_file": "ca.pem"},
        {"tls_insecure_skip_verify": True},
        {"tls_cert": "c.pem", "tls_key": "k.pem"},
    ],
    ids=lambda values: next(iter(values)),
)
def test_any_tls_option_asks_for_tls(values: dict[str, Any]) -> None:
    assert ClientConfig(**values).identify()["tls_v1"] is True
