"""Addresses as users write them, and the names nsqd takes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.names import Address, check_list, check_name, check_type, is_valid_name

REFUSED = (
    *("h:0", "h:65536", "h:-1", "h:+1", "h: 1", "h:4150x", "h:\u0664\u0661", "h:\u00b2"),
    *("h:" + "1" * 5000, "[::1]:", "::1", "2001:db8::7:4150", "[::1]4150", "[::1", "", " "),
    *(":4150", "[]:4150", "http://nsqd", "http://nsqd:4150", "https://[::1]:4150"),
    *("tcp://nsqd:4150/", "nsqd:4150/lookup"),
)
ADDRESSES = {
    "nsqd.example.com:1": ("nsqd.example.com", 1),
    "h:65535": ("h", 65535),
    "h:04150": ("h", 4150),
    " h:4150\n": ("h", 4150),
    "[2001:db8::7]:4161": ("2001:db8::7", 4161),
    "[fe80::1%eth0]:4150": ("fe80::1%eth0", 4150),
    **dict.fromkeys(REFUSED),
}


@pytest.mark.parametrize(
    ("text", "parts"), ADDRESSES.items(), ids=[text[:30] for text in ADDRESSES]
)
def test_an_address_is_read_or_refused_with_its_text(
    text: str, parts: tuple[str, int] | None
) -> None:
    if parts:
        assert Address.parse(text) == Address.parse(text, 9) == Address(*parts)
    else:
        with pytest.raises(ConfigError, match=re.escape(repr(text.strip()))):
            Address.parse(text)


def test_a_port_that_is_not_written_is_the_default_and_several_addresses_are_refused() -> None:
    for text, host in {"h": "h", "h:": "h", "[::1]": "::1"}.items():
        assert Address.parse(text, 4150) == Address(host, 4150)
        with pytest.raises(ConfigError, match="port"):
            Address.parse(text)
    with pytest.raises(ConfigError, match="'a:1,b:2': expected one address"):
        Address.parse("a:1,b:2")


hosts = st.from_regex(r"[a-z0-9.-]{1,40}|[0-9a-f:]{2,30}", fullmatch=True)


@given(hosts, st.integers(1, 65535))
def test_an_address_reads_as_it_is_shown(host: str, port: int) -> None:
    assert Address.parse(str(Address(host, port))) == Address(host, port)


@given(st.text(max_size=30) | st.text("h:[]/1 ", max_size=12), st.none() | st.just(4150))
def test_any_text_is_an_address_or_a_config_error(text: str, port: int | None) -> None:
    try:
        address = Address.parse(text, port)
    except ConfigError:
        return
    assert address.host
    assert 0 < address.port < 65536


NAMES = {
    **dict.fromkeys(("a", "A.b_c-9", ".", "-", "x" * 64, "a#ephemeral"), True),
    "x" * 54 + "#ephemeral": True,
    "x" * 55 + "#ephemeral": False,
    **dict.fromkeys(("", "x" * 65, "#ephemeral", "a#ephemeral#ephemeral", "a#ephemera"), False),
    **dict.fromkeys(("a#", "a#EPHEMERAL", "a b", " a", "a\n", "a#ephemeral\n", "a/b"), False),
    **dict.fromkeys(("a:b", "a*", "\u00e4", "\u0661", "a\0"), False),
}


@pytest.mark.parametrize(("name", "valid"), NAMES.items(), ids=map(repr, NAMES))
def test_a_name_is_valid_where_nsqd_says_so(name: str, valid: bool) -> None:
    assert is_valid_name(name) is valid
    if valid:
        assert check_name("topic", name) == name
    else:
        with pytest.raises(ConfigError, match=f"^channel {re.escape(repr(name))}"):
            check_name("channel", name)


def test_an_item_without_its_list_and_a_class_without_its_instance_are_named() -> None:
    for wrong in (Address("localhost", 4150), "h:4150", 4150, None):
        with pytest.raises(ConfigError, match=f"a list of Address, found {type(wrong).__name__}"):
            check_list("nsqds", wrong, Address)
    with pytest.raises(ConfigError, match="found the class Address"):
        check_type("at", Address, Address)
