"""Addresses as users write them, and the names nsqd takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.names import Address, check_name, is_valid_name

READ = {
    "nsqd:4150": ("nsqd", 4150),
    "127.0.0.1:4150": ("127.0.0.1", 4150),
    "nsqd.example.com:1": ("nsqd.example.com", 1),
    "h:65535": ("h", 65535),
    "h:04150": ("h", 4150),
    " h:4150\n": ("h", 4150),
    "[::1]:4150": ("::1", 4150),
    "[2001:db8::7]:4161": ("2001:db8::7", 4161),
    "[fe80::1%eth0]:4150": ("fe80::1%eth0", 4150),
}


@pytest.mark.parametrize(("text", "parts"), READ.items())
def test_an_address_is_read(text: str, parts: tuple[str, int]) -> None:
    assert Address.parse(text) == Address.parse(text, 9) == Address(*parts)


@pytest.mark.parametrize(("text", "host"), [("h", "h"), ("h:", "h"), ("[::1]", "::1")])
def test_a_port_that_is_not_written_is_the_default_or_an_error(text: str, host: str) -> None:
    assert Address.parse(text, 4150) == Address(host, 4150)
    with pytest.raises(ConfigError, match="port from 1 to 65535"):
        Address.parse(text)


REFUSED = {
    "h:0": "port from 1 to 65535",
    "h:65536": "port from 1 to 65535",
    "h:-1": "port from 1 to 65535",
    "h:+1": "port from 1 to 65535",
    "h: 1": "port from 1 to 65535",
    "h:4150x": "port from 1 to 65535",
    "h:\u0664\u0661": "port from 1 to 65535",
    "h:\u00b2": "port from 1 to 65535",
    "h:" + "1" * 5000: "port from 1 to 65535",
    "[::1]:": "port from 1 to 65535",
    "::1": "in brackets",
    "2001:db8::7:4150": "in brackets",
    "[::1]4150": r"\[host\]:port",
    "[::1": r"\[host\]:port",
    "": "host:port",
    " ": "host:port",
    ":4150": "host:port",
    "[]:4150": "host:port",
    "http://nsqd": "without a scheme",
    "http://nsqd:4150": "without a scheme",
    "https://[::1]:4150": "without a scheme",
    "tcp://nsqd:4150/": "without a scheme",
    "nsqd:4150/lookup": "without a scheme",
}


@pytest.mark.parametrize(("text", "words"), REFUSED.items(), ids=[text[:30] for text in REFUSED])
def test_what_is_no_address_is_refused_with_its_text_and_the_fix(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Address.parse(text)
    assert str(caught.value).startswith("address ")
    assert repr(text.strip()) in str(caught.value)


hosts = st.from_regex(r"[a-z0-9.-]{1,40}|[0-9a-f:]{2,30}", fullmatch=True)


@settings(deadline=None)
@given(hosts, st.integers(1, 65535))
def test_an_address_reads_as_it_is_shown(host: str, port: int) -> None:
    assert Address.parse(str(Address(host, port))) == Address(host, port)


@settings(deadline=None)
@given(st.text(max_size=30) | st.text("h:[]/1 ", max_size=12), st.none() | st.just(4150))
def test_any_text_is_an_address_or_a_config_error(text: str, port: int | None) -> None:
    try:
        address = Address.parse(text, port)
    except ConfigError:
        return
    assert address.host
    assert 0 < address.port < 65536


NAMES = {
    "a": True,
    "A.b_c-9": True,
    ".": True,
    "-": True,
    "x" * 64: True,
    "a#ephemeral": True,
    "x" * 54 + "#ephemeral": True,
    "": False,
    "x" * 65: False,
    "x" * 55 + "#ephemeral": False,
    "#ephemeral": False,
    "a#ephemeral#ephemeral": False,
    "a#ephemera": False,
    "a#": False,
    "a#EPHEMERAL": False,
    "a b": False,
    " a": False,
    "a\n": False,
    "a#ephemeral\n": False,
    "a/b": False,
    "a:b": False,
    "a*": False,
    "\u00e4": False,
    "\u0661": False,
    "a\0": False,
}


@pytest.mark.parametrize(("name", "valid"), NAMES.items(), ids=map(repr, NAMES))
def test_a_name_is_valid_where_nsqd_says_so(name: str, valid: bool) -> None:
    assert is_valid_name(name) is valid
    if valid:
        assert check_name("topic", name) == name
    else:
        with pytest.raises(ConfigError, match=r"^channel .*1 to 64 of the characters"):
            check_name("channel", name)
