"""Options: what their texts mean, go-nsq's names and bounds, and contradictions."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools import __version__
from nsqtools.cli.commands.pipeline.sources import schema_text
from nsqtools.config.connection import ConsumerConfig, ProducerConfig, read_secret
from nsqtools.config.consuming import SourceOptions
from nsqtools.config.pairs import parse_pairs
from nsqtools.config.publishing import TargetOptions
from nsqtools.config.ui import UiOptions, read_passwords
from nsqtools.config.units import format_duration, format_size, parse_duration, parse_size
from nsqtools.errors import ConfigError
from nsqtools.sinks.http.arguments import read_headers
from nsqtools.sinks.http.signing import Signer

MS, S, M = 0.001, 1.0, 60.0
UNSET, EMPTY = (False, None, None), ("", None, None)

DURATIONS = {
    "0": 0.0,
    "500ms": 0.5,
    "1.5s": 1.5,
    ".5s": 0.5,
    "1h0m0.5s": 3600.5,
    "30m1h": 5400.0,
    "1d": 86400.0,
    "250us": 0.00025,
    "250\u00b5s": 0.00025,
    "7ns": 7e-9,
    " 2m ": 120.0,
}
NO_DURATIONS = ("", "1000", "0.0", "s", "-1s", "1 s", "1h 30m", "1S", "1x", "1h30", "1e3s")
SIZES = {
    "0": 0,
    "65536": 65536,
    "64kib": 65536,
    "64K": 65536,
    "64KB": 64000,
    "1.5 MiB": 3 << 19,
    "1G": 1 << 30,
    "2TiB": 2 << 40,
    "12B": 12,
}
NO_SIZES = ("", "K", "1e3", "1,5M", "1PB", "-5", "64KiBs", "0x10")


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        *((parse_duration, *each) for each in (DURATIONS | dict.fromkeys(NO_DURATIONS)).items()),
        *((parse_size, *each) for each in (SIZES | dict.fromkeys(NO_SIZES)).items()),
    ],
)
def test_a_duration_as_in_go_or_a_size_is_read_or_refused_with_its_text(
    parse: Callable[[str], float], text: str, value: float | None
) -> None:
    if value is None:
        with pytest.raises(ConfigError, match=re.escape(repr(text))):
            parse(text)
    else:
        assert parse(text) == pytest.approx(value, rel=1e-12)


@given(st.integers(0, 10**9))
def test_whole_milliseconds_read_as_they_are_shown(ms: int) -> None:
    assert parse_duration(format_duration(ms / 1000)) == pytest.approx(ms / 1000, abs=1e-9)


def test_a_duration_is_shown_short() -> None:
    shown = [format_duration(s) for s in (0, 0.25, 1, 60, 90, 3600, 5400, 3661.5, 86400)]
    assert shown == ["0s", "250ms", "1s", "1m", "1m30s", "1h", "1h30m", "1h1m1.5s", "24h"]


@given(st.integers(0, 2**50) | st.builds(lambda n, by: n << by, *[st.integers(0, 40)] * 2))
def test_a_size_reads_as_it_is_shown(count: int) -> None:
    assert parse_size(format_size(count)) == count


# nsq.io's client configuration as go-nsq config.go declares it: default, minimum, maximum.
GO_NSQ: dict[str, tuple[object, object, object]] = {
    "dial_timeout": (1 * S, None, None),
    "read_timeout": (60 * S, 100 * MS, 5 * M),
    "write_timeout": (1 * S, 100 * MS, 5 * M),
    "lookupd_poll_interval": (60 * S, 10 * MS, 5 * M),
    "lookupd_poll_jitter": (0.3, 0, 1),
    "lookupd_poll_timeout": (1 * M, None, None),
    "max_requeue_delay": (15 * M, 0, 60 * M),
    "default_requeue_delay": (90 * S, 0, 60 * M),
    "backoff_strategy": ("exponential", None, None),
    "max_backoff_duration": (2 * M, 0, 60 * M),
    "backoff_multiplier": (1 * S, 0, 60 * M),
    "max_attempts": (0, 0, 65535),  # no limit: go-nsq's 5 loses messages
    "low_rdy_idle_timeout": (10 * S, 1 * S, 5 * M),
    "low_rdy_timeout": (30 * S, 1 * S, 5 * M),
    "rdy_redistribute_interval": (5 * S, 1 * MS, 5 * S),
    "user_agent": ("go-nsq/1.1.0", None, None),
    "heartbeat_interval": (30 * S, None, None),
    "sample_rate": (0, 0, 99),
    "tls_config": (None, None, None),
    "tls_min_version": ("tls1.0", None, None),
    "deflate_level": (6, 1, 9),
    "output_buffer_size": (16384, None, None),
    "output_buffer_timeout": (250 * MS, None, None),
    "max_in_flight": (1, 0, None),
    "msg_timeout": (0.0, 0, None),
    "skip_lookupd_authorization": (True, None, None),
    **dict.fromkeys(("tls_v1", "tls_insecure_skip_verify", "deflate", "snappy"), UNSET),
    **dict.fromkeys(("local_addr", "client_id", "hostname", "auth_secret"), EMPTY),
    **dict.fromkeys(("topology_region", "topology_zone"), EMPTY),
    **dict.fromkeys(("tls_root_ca_file", "tls_cert", "tls_key"), EMPTY),
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


@pytest.mark.parametrize(
    ("pairs", "values"),
    [
        ([], {}),
        (["snappy"], {"snappy": True}),
        (["client_id,a,b"], {"client_id": "a,b"}),
        (["client_id,"], {"client_id": ""}),
        (["max_attempts,3", "max-attempts,4"], {"max_attempts": 4}),
        (["skip_lookupd_authorization,false"], {"lookupd_authorization": False}),
        (["max_in_flight,0x10", "max_attempts,010"], {"max_in_flight": 16, "max_attempts": 10}),
    ],
)
def test_pairs_are_split_at_the_first_comma_and_the_last_wins_and_integers_are_those_of_go(
    pairs: list[str], values: dict[str, Any]
) -> None:
    assert parse_pairs(ConsumerConfig, pairs, "--consumer-opt") == values


@pytest.mark.parametrize(
    ("pair", "culprit"),
    [
        ("max_in_flite,3", "'max_in_flite'"),
        ("Snappy", "'Snappy'"),
        ("tls_config,x", "'tls_config'"),
        ("", "''"),
        (",3", "''"),
        ("max_attempts,65536", "max_attempts: 65536"),
        ("max_attempts,1.5", "max_attempts: '1.5'"),
        ("read-timeout,6m", "read-timeout: 6m"),
        ("tls_min_version,tls1.4", "'tls1.4'"),
    ],
)
def test_a_bad_pair_is_refused_with_flag_and_culprit(pair: str, culprit: str) -> None:
    with pytest.raises(ConfigError, match=f"^--consumer-opt.*{re.escape(culprit)}"):
        parse_pairs(ConsumerConfig, ["snappy,false", pair], "--consumer-opt")


def test_producer_opt_takes_all_names_of_go_nsq_and_ignores_those_of_a_consumer() -> None:
    values = parse_pairs(ProducerConfig, ["deflate_level,9", "write-timeout,2s"], "--producer-opt")
    assert values == {"deflate_level": 9, "write_timeout": 2.0}
    known = set(ProducerConfig.declared())
    for name in GO_NSQ.keys() - known - {"tls_config"}:
        kind = ProducerConfig.ignored[name].kind
        value = {"duration": "5s", "choice": "full_jitter"}.get(kind, "1")
        assert parse_pairs(ProducerConfig, [f"{name},{value}"], "--producer-opt") == {}
    with pytest.raises(ConfigError, match=r"--producer-opt.*max_attempts: 'many'"):
        parse_pairs(ProducerConfig, ["max_attempts,many"], "--producer-opt")
    with pytest.raises(ConfigError, match=r"--producer-opt.*'drain_timeout'"):
        parse_pairs(ProducerConfig, ["drain_timeout,3s"], "--producer-opt")


def test_options_that_cannot_be_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"--snappy.*--deflate"):
        ConsumerConfig(snappy=True).with_values(deflate=True)
    with pytest.raises(ConfigError, match=r"^nsqd_tcp_address: .*'a:b:c'"):
        TargetOptions(nsqd_tcp_address=("a:b:c",))
    with pytest.raises(ConfigError, match=r"^lookupd_http_address: .*'h:x'"):
        SourceOptions(lookupd_http_address=("https://h:x/p",))
    with pytest.raises(ConfigError, match="topic: expected a list of str, found str"):
        SourceOptions(topic="events")  # type: ignore[arg-type]


def test_a_secret_is_neither_in_a_repr_nor_in_an_error() -> None:
    assert "hunter2" not in repr(ConsumerConfig(auth_secret="hunter2"))
    assert "auth_secret=''" in repr(ConsumerConfig())
    with pytest.raises(ConfigError, match="'auth_secret'") as caught:
        parse_pairs(ConsumerConfig, ["auth_secret=hunter2"], "--consumer-opt")
    assert "hunter2" not in str(caught.value)


def test_an_instance_is_never_changed_and_survives_the_way_to_an_executor() -> None:
    config = ConsumerConfig()
    with pytest.raises(AttributeError, match="max_in_flight"):
        config.max_in_flight = 2  # type: ignore[misc]
    assert config.with_values(max_in_flight=2) == ConsumerConfig(max_in_flight=2) != config
    assert len({config, ConsumerConfig(), ConsumerConfig(max_in_flight=2)}) == 2
    with pytest.raises(TypeError, match="'max_in_flite'; did you mean 'max_in_flight'"):
        ConsumerConfig(max_in_flite=2)  # type: ignore[call-arg]
    for each in (ConsumerConfig(client_id="c"), SourceOptions(topic=("t",))):
        assert pickle.loads(pickle.dumps(each)) == each


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("hush\n", lambda path: read_secret(path, "file")),
        ("ann:hush\n", lambda path: read_passwords(UiOptions(password_file=path))),
        ("Key: hush\n", lambda path: read_headers(files=[path])),
        (f"whsec_{'aA1+' * 8}\n", lambda path: vars(Signer.from_file(path))),
        ("id int\n", schema_text),
    ],
)
def test_a_byte_order_mark_is_no_part_of_what_a_file_says(
    text: str, read: Callable[[str], object], tmp_path: Path
) -> None:
    plain, marked = tmp_path / "plain", tmp_path / "marked"
    plain.write_text(text)
    marked.write_text(text, encoding="utf-8-sig")
    assert read(str(marked)) == read(str(plain))
