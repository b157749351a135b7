"""What IDENTIFY may ask for, and what it gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqtools.config import NsqdOptions
from nsqtools.errors import ServerError
from nsqtools.sandbox.identify import Settings, negotiate, parse_identify

DEFAULT = NsqdOptions()


def apply(options: NsqdOptions = DEFAULT, **wishes: object) -> Settings:
    settings = Settings("before", "before", options.msg_timeout)
    settings.apply(parse_identify(json.dumps(wishes).encode()), options)
    return settings


def answer(options: NsqdOptions = DEFAULT, **wishes: object) -> dict[str, Any]:
    body = parse_identify(json.dumps(wishes).encode())
    settings = Settings("", "", options.msg_timeout)
    settings.apply(body, options)
    reply = negotiate(body, settings, options, has_tls=True, auth_required=False).reply
    decoded: dict[str, Any] = json.loads(reply)
    return decoded


def test_what_is_not_said_has_the_defaults_of_nsqd() -> None:
    settings = apply()
    assert (settings.client_id, settings.hostname, settings.user_agent) == ("", "", "")
    assert settings.heartbeat_interval == 30.0
    assert settings.msg_timeout == 60.0
    assert (settings.output_buffer_size, settings.output_buffer_timeout) == (16384, 0.25)
    assert settings.sample_rate == 0


@pytest.mark.parametrize(
    ("wish", "field", "value"),
    [
        ({"heartbeat_interval": -1}, "heartbeat_interval", 0.0),
        ({"heartbeat_interval": 1000}, "heartbeat_interval", 1.0),
        ({"heartbeat_interval": 60000}, "heartbeat_interval", 60.0),
        ({"output_buffer_size": -1}, "output_buffer_size", 1),
        ({"output_buffer_size": -1, "output_buffer_timeout": 50}, "output_buffer_timeout", 0.0),
        ({"output_buffer_size": 64}, "output_buffer_size", 64),
        ({"output_buffer_timeout": -1}, "output_buffer_timeout", 0.0),
        ({"output_buffer_timeout": 25}, "output_buffer_timeout", 0.025),
        ({"sample_rate": 99}, "sample_rate", 99),
        ({"msg_timeout": 1000}, "msg_timeout", 1.0),
        ({"msg_timeout": 900000}, "msg_timeout", 900.0),
        ({"MSG_Timeout": 2000}, "msg_timeout", 2.0),
        ({"msg_timeout": None}, "msg_timeout", 60.0),
    ],
    ids=str,
)
def test_a_wish_within_bounds_is_granted(wish: dict[str, Any], field: str, value: float) -> None:
    assert getattr(apply(**wish), field) == value


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"heartbeat_interval": 999}, "heartbeat interval (999) is invalid"),
        ({"heartbeat_interval": -2}, "heartbeat interval (-2) is invalid"),
        ({"heartbeat_interval": 60001}, "heartbeat interval (60001) is invalid"),
        ({"output_buffer_size": 63}, "output buffer size (63) is invalid"),
        ({"output_buffer_size": 65537}, "output buffer size (65537) is invalid"),
        ({"output_buffer_timeout": 24}, "output buffer timeout (24) is invalid"),
        ({"output_buffer_timeout": 30001}, "output buffer timeout (30001) is invalid"),
        ({"sample_rate": 100}, "sample rate (100) is invalid"),
        ({"sample_rate": -1}, "sample rate (-1) is invalid"),
        ({"msg_timeout": 999}, "msg timeout (999) is invalid"),
        ({"msg_timeout": 900001}, "msg timeout (900001) is invalid"),
    ],
    ids=str,
)
def test_a_wish_out_of_bounds_is_refused(wish: dict[str, Any], text: str) -> None:
    with pytest.raises(ServerError) as caught:
        apply(**wish)
    assert caught.value.text == f"E_BAD_BODY IDENTIFY {text}"


def test_the_bounds_are_those_of_the_options() -> None:
    options = NsqdOptions(max_heartbeat_interval=2.0, max_msg_timeout=3.0, msg_timeout=2.0)
    assert apply(options, heartbeat_interval=2000, msg_timeout=3000).msg_timeout == 3.0
    with pytest.raises(ServerError, match="heartbeat"):
        apply(options, heartbeat_interval=2001)
    with pytest.raises(ServerError, match="msg timeout"):
        apply(options, msg_timeout=3001)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"{} x",
        b'{"client_id": 1}',
        b'{"msg_timeout": "1000"}',
        b'{"msg_timeout": 1000.5}',
        b'{"msg_timeout": true}',
        b'{"msg_timeout": NaN}',
        b'{"msg_timeout": 9223372036854775808}',
        b'{"sample_rate": 2147483648}',
        b'{"tls_v1": 1}',
        b'{"client_id": "a\nb"}',
        b"[" * 100000,
    ],
    ids=lambda body: repr(body[:30]),
)
def test_a_body_that_go_cannot_decode_is_refused(body: bytes) -> None:
    with pytest.raises(ServerError) as caught:
        parse_identify(body)
    assert caught.value.text == "E_BAD_BODY IDENTIFY failed to decode JSON body"


def test_unknown_names_and_broken_text_are_borne_with() -> None:
    assert parse_identify(b"null").client_id == ""
    found = parse_identify(b'{"zone": [1], "client_id": "\xff", "long_id": "x"}')
    assert found.client_id == "\ufffd"


def test_the_answer_has_the_keys_of_nsqd_in_its_order() -> None:
    assert list(answer().items()) == [
        ("max_rdy_count", 2500),
        ("version", "1.3.0"),
        ("max_msg_timeout", 900000),
        ("msg_timeout", 60000),
        ("tls_v1", False),
        ("deflate", False),
        ("deflate_level", 6),
        ("max_deflate_level", 6),
        ("snappy", False),
        ("sample_rate", 0),
        ("auth_required", False),
        ("output_buffer_size", 16384),
        ("output_buffer_timeout", 250),
    ]


@pytest.mark.parametrize(("wish", "level"), [(0, 6), (-1, 6), (1, 1), (4, 4), (9, 6)])
def test_a_deflate_level_is_cut_to_the_highest_allowed(wish: int, level: int) -> None:
    assert answer(deflate=True, deflate_level=wish)["deflate_level"] == level


def test_both_compressions_are_refused_unless_one_is_not_offered() -> None:
    with pytest.raises(ServerError) as caught:
        answer(snappy=True, deflate=True)
    assert caught.value.text == (
        "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    )
    reply = answer(NsqdOptions(snappy=False), snappy=True, deflate=True)
    assert (reply["snappy"], reply["deflate"]) == (False, True)


def test_tls_is_granted_where_there_is_a_certificate() -> None:
    wishes = parse_identify(b'{"tls_v1": true}')
    for has_tls in (False, True):
        settings = Settings("", "", 60.0)
        found = negotiate(wishes, settings, DEFAULT, has_tls=has_tls, auth_required=True)
        assert found.tls is has_tls
        assert json.loads(found.reply)["tls_v1"] is has_tls
        assert json.loads(found.reply)["auth_required"] is True
