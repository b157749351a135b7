"""What options mean, and the one line that says what is wrong with them."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nsqtools.errors import AuthError, ConfigError
from nsqtools.names import Address
from nsqtools.spark.source.sourceoptions import (
    NamedNsqd,
    SharedSettings,
    parse_sink,
    parse_source,
    respelled,
    with_secret,
)

NEEDED = {"subscribe": "clicks", "channel": "lake", "staginglocation": "/staging"}


def wrong_source(options: Mapping[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_source({**NEEDED, **options})
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_defaults_stand_where_nothing_is_given() -> None:
    found = parse_source(NEEDED)
    assert found.topics == ("clicks",)
    assert found.channel == "lake"
    assert found.staging == "/staging"
    assert found.nsqds == (NamedNsqd(Address("127.0.0.1", 4150), "127.0.0.1:4151"),)
    assert found.lookupds == ()
    assert (found.max_messages, found.connections, found.max_in_flight) == (0, 2, 5_000)
    assert (found.idle_timeout, found.max_read, found.poll_interval) == (2.0, 60.0, 0.5)


def test_all_options_are_read_in_lower_case_as_spark_gives_them() -> None:
    found = parse_source(
        {
            "subscribe": "clicks, views,clicks",
            "channel": "lake",
            "staginglocation": "hdfs:///staging",
            "nsqlookupd.http.addresses": "one:4161, http://two:4161/lookup",
            "maxmessagespertrigger": "1000",
            "connectionspernsqd": "4",
            "maxinflight": "100",
            "idletimeoutms": "1500",
            "maxreadms": "0",
            "pollintervalms": "100",
            "waitforservers": "true",
            "nsq.msg_timeout": "5m",
            "nsq.snappy": "true",
        }
    )
    assert found.topics == ("clicks", "views")
    assert found.lookupds == ("one:4161", "http://two:4161/lookup")
    assert found.nsqds == ()
    assert (found.max_messages, found.connections, found.max_in_flight) == (1000, 4, 100)
    assert (found.idle_timeout, found.max_read, found.poll_interval) == (1.5, 0.0, 0.1)
    assert found.wait_for_servers
    assert (found.config.msg_timeout, found.config.snappy) == (300.0, True)
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("text", "tcp", "http"),
    [
        ("one", Address("one", 4150), "one:4151"),
        ("one:5000", Address("one", 5000), "one:5001"),
        ("one:5000/6000", Address("one", 5000), "one:6000"),
        ("[::1]:5000", Address("::1", 5000), "[::1]:5001"),
        ("one:5000/https://two:6000", Address("one", 5000), "https://two:6000"),
        ("one:5000/two:6000", Address("one", 5000), "two:6000"),
    ],
)
def test_an_nsqd_has_an_http_address_besides(text: str, tcp: Address, http: str) -> None:
    twice = {"nsqd.tcp.addresses": f"{text}, {text}"}
    assert parse_source(NEEDED | twice).nsqds == (NamedNsqd(tcp, http),)


@pytest.mark.parametrize(
    ("options", "culprits"),
    [
        ({"subscribe": " "}, ["option subscribe "]),
        ({"channel": " "}, ["option channel "]),
        ({"staginglocation": " "}, ["option stagingLocation "]),
        ({"chanel": "x"}, ["'chanel'", "'channel'"]),
        ({"maxmessages": "1"}, ["'maxMessagesPerTrigger'"]),
        ({"nsq.tls": "true"}, ["'nsq.tls'", "'nsq.tls_v1'"]),
        ({"nsq.max_attempts": "5"}, ["nsq.max_attempts"]),
        ({"path": "/x"}, ["'path'"]),
        ({"nsq.auth_secret": "hush"}, ["nsq.auth_secret_file", "nsq.auth_secret_env"]),
        ({"nsq.auth_secret_file": "f", "nsq.auth_secret_env": "E"}, ["_file", "_env"]),
        ({"maxinflight": "0"}, ["maxInFlight: 0"]),
        ({"maxmessagespertrigger": "many"}, ["maxMessagesPerTrigger: 'many'"]),
        ({"maxreadms": ""}, ["maxReadMs: ''"]),
        ({"waitForServers": "perhaps"}, ["waitForServers: 'perhaps'"]),
        ({"nsq.msg_timeout": "60"}, ["nsq.msg_timeout: '60'"]),
        ({"nsq.msg_timeout": "1ms"}, ["nsq.msg_timeout"]),
        ({"nsq.tls_cert": "c.pem"}, ["nsq.tls_cert", "nsq.tls_key"]),
        ({"nsq.snappy": "true", "nsq.deflate": "true"}, ["nsq.snappy", "nsq.deflate"]),
        ({"subscribe": "a b"}, ["topic 'a b'"]),
        ({"channel": "ä"}, ["channel 'ä'"]),
        ({"channel": "c#ephemeral"}, ["c#ephemeral"]),
        ({"nsqd.tcp.addresses": "one:x"}, ["nsqd.tcp.addresses", "'one:x'"]),
        ({"nsqd.tcp.addresses": "one:1/"}, ["nsqd.tcp.addresses", "''"]),
        ({"nsqd.tcp.addresses": "one:1/99999"}, ["nsqd.tcp.addresses", "'one:99999'"]),
        ({"nsqlookupd.http.addresses": "x:y"}, ["nsqlookupd.http.addresses", "'x:y'"]),
        (
            {"nsqd.tcp.addresses": "one", "nsqlookupd.http.addresses": "two"},
            ["nsqd.tcp.addresses", "nsqlookupd.http.addresses"],
        ),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(
    options: dict[str, str], culprits: list[str]
) -> None:
    text = wrong_source(options)
    assert [each for each in culprits if each not in text] == []
    assert "hush" not in text


def test_the_secret_is_read_where_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    by_file = parse_source(NEEDED | {"nsq.auth_secret_file": str(file)})
    by_name = parse_source(NEEDED | {"nsq.auth_secret_env": "NSQ_SECRET"})
    file.write_text("from file\n")
    monkeypatch.setenv("NSQ_SECRET", "from env")
    assert with_secret(by_file).auth_secret == "from file"
    assert with_secret(by_name).auth_secret == "from env"
    assert with_secret(parse_source(NEEDED)).auth_secret == ""
    assert b"from" not in pickle.dumps((by_file, by_name))


@pytest.mark.parametrize("content", [None, b" \n", b"\xff", b"x" * 70_000])
def test_a_secret_that_cannot_be_read_names_its_file(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    settings = parse_source(NEEDED | {"nsq.auth_secret_file": str(file)})
    with pytest.raises(ConfigError, match=rf"^nsq\.auth_secret_file {file}: "):
        with_secret(settings)


@pytest.mark.parametrize("flags", [True, False])
def test_errors_name_flags_where_a_command_has_made_the_options(flags: bool) -> None:
    def spelled(flag: str, option: str) -> str:
        return flag if flags else option.replace(".", r"\.")

    given = {"flags": "true"} if flags else {}
    for parse, needed in ((parse_source, NEEDED), (parse_sink, {"topic": "t"})):
        options = {**needed, **given, "nsq.auth_secret_env": "NSQ_NO_SUCH"}
        settings: SharedSettings[Any] = parse(options)
        culprit = spelled("--auth-secret-env", "nsq.auth_secret_env")
        with pytest.raises(ConfigError, match=f"^{culprit} NSQ_NO_SUCH: "):
            with_secret(settings)
    with pytest.raises(ConfigError, match=spelled("--tls-cert", "nsq.tls_cert")):
        parse_source({**NEEDED, **given, "nsq.tls_v1": "true", "nsq.tls_cert": "/c"})
    error = AuthError("set --auth-secret-file", Address("one", 4150))
    told = spelled("--auth-secret-file", "nsq.auth_secret_file").replace("\\", "")
    assert str(respelled(error, flags=flags)) == f"one:4150: set {told}"
    other = str(respelled(ConfigError("--tls-root-ca-file /ca--x.pem: none"), flags=flags))
    assert other.endswith(" /ca--x.pem: none")


def test_a_sink_has_a_topic_and_the_same_servers() -> None:
    found = parse_sink(
        {
            "nsqd.tcp.addresses": "one:5000/6000,two",
            "topic": "clicks",
            "nsq.publish_timeout": "5s",
            "checkpointlocation": "/checkpoint",
            "queryName": "q",
        }
    )
    assert found.nsqds == (Address("one", 5000), Address("two", 4150))
    assert (found.topic, found.config.publish_timeout) == ("clicks", 5.0)
    assert parse_sink({}).topic == ""
    assert pickle.loads(pickle.dumps(found)) == found
    for wrong in ({"topic": "a b"}, {"channel": "c"}, {"nsq.msg_timeout": "1m"}):
        with pytest.raises(ConfigError):
            parse_sink(wrong)
