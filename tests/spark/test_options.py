"""What options mean, and the one line that says what is wrong with them."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import AuthError, ConfigError
from nsqtools.names import Address
from nsqtools.spark.options import Nsqd, parse_sink, parse_source, respelled, with_secret

if TYPE_CHECKING:
    from pathlib import Path

NEEDED = {"subscribe": "clicks", "channel": "lake", "staginglocation": "/staging"}


def wrong_source(**options: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_source(NEEDED | {key.replace("__", "."): value for key, value in options.items()})
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_defaults_stand_where_nothing_is_given() -> None:
    found = parse_source(NEEDED)
    assert found.topics == ("clicks",)
    assert found.channel == "lake"
    assert found.staging == "/staging"
    assert found.nsqds == (Nsqd(Address("127.0.0.1", 4150), "127.0.0.1:4151"),)
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
    assert parse_source(NEEDED | {"nsqd.tcp.addresses": text}).nsqds == (Nsqd(tcp, http),)


def test_an_nsqd_counts_once() -> None:
    found = parse_source(NEEDED | {"nsqd.tcp.addresses": "one, two:4150, one:4150"})
    assert [each.tcp.host for each in found.nsqds] == ["one", "two"]


@pytest.mark.parametrize("missing", NEEDED)
def test_what_is_needed_is_asked_for(missing: str) -> None:
    text = wrong_source(**{missing: " "})
    spelling = {"staginglocation": "stagingLocation"}.get(missing, missing)
    assert text.startswith(f"option {spelling} is required: ")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"chanel": "x"}, "unknown option 'chanel'; did you mean 'channel'?"),
        ({"maxmessages": "1"}, "did you mean 'maxMessagesPerTrigger'?"),
        ({"nsq__tls": "true"}, "unknown option 'nsq.tls'; did you mean 'nsq.tls_v1'?"),
        ({"nsq__max_attempts": "5"}, "unknown option 'nsq.max_attempts'"),
        ({"path": "/x"}, "unknown option 'path'"),
        ({"nsq__auth_secret": "hush"}, "nsq.auth_secret_file or nsq.auth_secret_env"),
        ({"nsq__auth_secret_file": "f", "nsq__auth_secret_env": "E"}, "exclude each other"),
        ({"maxinflight": "0"}, "option maxInFlight: 0 is out of range: expected at least 1"),
        ({"maxmessagespertrigger": "many"}, "option maxMessagesPerTrigger: 'many' is not a whole"),
        ({"maxreadms": ""}, "option maxReadMs: '' is not a whole number"),
        ({"waitForServers": "perhaps"}, "option waitForServers: 'perhaps' is not a boolean"),
        ({"nsq__msg_timeout": "60"}, "option nsq.msg_timeout: '60' is not a duration"),
        ({"nsq__msg_timeout": "1ms"}, "nsq.msg_timeout: nsqd takes 0, for its own, or at least 1s"),
        ({"nsq__tls_cert": "c.pem"}, "nsq.tls_cert and nsq.tls_key belong together"),
        ({"nsq__snappy": "true", "nsq__deflate": "true"}, "nsq.snappy and nsq.deflate exclude"),
        ({"subscribe": "a b"}, "topic 'a b': expected 1 to 64"),
        ({"channel": "ä"}, "channel 'ä': expected 1 to 64"),
        ({"channel": "c#ephemeral"}, "would vanish between two micro-batches"),
        ({"nsqd__tcp__addresses": "one:x"}, "option nsqd.tcp.addresses: address 'one:x'"),
        ({"nsqd__tcp__addresses": "one:1/"}, "option nsqd.tcp.addresses: address ''"),
        ({"nsqd__tcp__addresses": "one:1/99999"}, "option nsqd.tcp.addresses: address 'one:99999'"),
        ({"nsqlookupd__http__addresses": "x:y"}, "option nsqlookupd.http.addresses: address 'x:y'"),
        (
            {"nsqd__tcp__addresses": "one", "nsqlookupd__http__addresses": "two"},
            "options nsqd.tcp.addresses and nsqlookupd.http.addresses exclude each other",
        ),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(options: dict[str, str], text: str) -> None:
    assert text in wrong_source(**options)


def test_a_secret_given_as_a_value_is_not_repeated() -> None:
    assert "hush" not in wrong_source(nsq__auth_secret="hush")


def test_settings_go_to_executors() -> None:
    found = parse_source(NEEDED | {"nsq.snappy": "true"})
    assert pickle.loads(pickle.dumps(found)) == found


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


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "No such file or directory"),
        (b" \n", "empty"),
        (b"\xff", "not text"),
        (b"x" * 70_000, "more than 65536 characters"),
    ],
)
def test_a_secret_that_cannot_be_read_names_its_file(
    tmp_path: Path, content: bytes | None, text: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    settings = parse_source(NEEDED | {"nsq.auth_secret_file": str(file)})
    with pytest.raises(ConfigError) as caught:
        with_secret(settings)
    assert str(caught.value) == f"nsq.auth_secret_file {file}: {text}"


def test_a_secret_that_is_not_in_the_environment_names_its_variable() -> None:
    settings = parse_source(NEEDED | {"nsq.auth_secret_env": "NSQ_NO_SUCH"})
    with pytest.raises(ConfigError, match=r"nsq\.auth_secret_env NSQ_NO_SUCH: no such variable"):
        with_secret(settings)


def test_errors_name_flags_where_a_command_has_made_the_options() -> None:
    for parse, needed in ((parse_source, NEEDED), (parse_sink, {"topic": "t"})):
        settings = parse({**needed, "flags": "true", "nsq.auth_secret_env": "NSQ_NO_SUCH"})
        with pytest.raises(ConfigError, match=r"^--auth-secret-env NSQ_NO_SUCH: no such variable"):
            with_secret(settings)
    with pytest.raises(ConfigError, match=r"--tls-cert"):
        parse_source({**NEEDED, "flags": "true", "nsq.tls_v1": "true", "nsq.tls_cert": "/c"})
    with pytest.raises(ConfigError, match=r"nsq\.tls_cert"):
        parse_source({**NEEDED, "nsq.tls_v1": "true", "nsq.tls_cert": "/c"})


def test_errors_of_connections_name_options_not_flags() -> None:
    error = AuthError("nsqd requires AUTH: set --auth-secret-file", Address("one", 4150))
    assert str(respelled(error, flags=True)) == "one:4150: " + error.text
    error = AuthError(error.text, error.address)
    text = "one:4150: nsqd requires AUTH: set nsq.auth_secret_file"
    assert str(respelled(error, flags=False)) == text
    other = ConfigError("--tls-root-ca-file /ca--x.pem: no such file")
    assert str(respelled(other, flags=False)) == "nsq.tls_root_ca_file /ca--x.pem: no such file"


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


@pytest.mark.parametrize("options", [{"topic": "a b"}, {"channel": "c"}, {"nsq.msg_timeout": "1m"}])
def test_a_sink_refuses_what_it_does_not_know(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse_sink(options)
