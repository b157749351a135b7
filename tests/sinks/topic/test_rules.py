"""What passes, what is left of it, and where it goes."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError, RecordError
from nsqtools.sinks.topic.rules import destinations, find_loops, make_rules

BIG = b'{"z": 12345678901234567890.10, "a": "<\\u003c", "b": [1,  2], "c": null}'


def applied(body: bytes, **options: Any) -> bytes | None:
    return make_rules(**options).apply(body)


@given(st.binary())
def test_without_rules_every_body_goes_as_it_is(body: bytes) -> None:
    rules = make_rules(pass_invalid=True)
    assert rules.passes_all
    assert rules.apply(body) == body


class TestRequired:
    @pytest.mark.parametrize(
        ("body", "value", "passes"),
        [
            (b'{"f": 1}', "", True),
            (b'{"f": null}', "", True),
            (b'{"\\u0066": 1}', "", True),
            (b'{"g": {"f": 1}}', "", False),
            (b"{}", "", False),
            (b'{"f": "x"}', "x", True),
            (b'{"f": "y"}', "x", False),
            (b'{"f": 1e2}', "100", True),
            (b'{"f": 12345678901234567890}', "12345678901234567891", False),
            (b'{"f": true}', "true", True),
            (b'{"f": false}', "true", False),
            (b'{"f": null}', "null", True),
            (b'{"f": ["x"]}', "x", False),
            (b'{"g": "x"}', "x", False),
            (b'{"f": 1, "f": 2}', "2", True),
            (b'{"f": 1, "f": 2}', "1", False),
        ],
    )
    def test_a_field_and_its_value(self, body: bytes, value: str, passes: bool) -> None:
        assert applied(body, require_field="f", require_value=value) == (body if passes else None)

    def test_a_value_needs_a_field(self) -> None:
        with pytest.raises(ConfigError, match="--require-json-field"):
            make_rules(require_value="x")


class TestWhitelist:
    def test_what_is_kept_is_as_it_was_written_in_its_order(self) -> None:
        kept = applied(BIG, whitelist=("b", "z", "nosuch"))
        assert kept == b'{"z":12345678901234567890.10,"b":[1,  2]}'

    def test_a_body_that_keeps_all_is_not_touched(self) -> None:
        assert applied(BIG, whitelist=("a", "b", "c", "z")) == BIG
        assert applied(b" { } ", whitelist=("a",)) == b" { } "

    def test_repeated_fields_are_all_kept(self) -> None:
        assert applied(b'{"a":1,"b":2,"a":3}', whitelist=("a",)) == b'{"a":1,"a":3}'

    def test_nothing_may_be_left(self) -> None:
        assert applied(BIG, whitelist=("nosuch",)) == b"{}"


class TestInvalid:
    @pytest.mark.parametrize(
        "options", [{"require_field": "a"}, {"whitelist": ["a"]}, {"where": "."}, {"edits": ["."]}]
    )
    def test_what_is_not_json_is_refused_or_passes_as_it_is(self, options: dict[str, Any]) -> None:
        with pytest.raises(RecordError, match="not JSON"):
            applied(b"{not json", **options)
        assert applied(b"{not json", **options, pass_invalid=True) == b"{not json"

    def test_fields_are_of_objects_but_jq_knows_all_values(self) -> None:
        with pytest.raises(RecordError, match="not a JSON object"):
            applied(b"[1]", whitelist=["a"])
        assert applied(b"[1]", whitelist=["a"], pass_invalid=True) == b"[1]"
        assert applied(b"[1]", where=".[0] == 1") == b"[1]"


class TestJq:
    @pytest.mark.parametrize(
        ("where", "passes"),
        [
            (".z > 1", True),
            (".z == 12345678901234567890.1", True),
            (".nosuch", False),
            ("false, true", False),
            ("true, false", True),
            ("empty", False),
            ('.a == "<<" # a comment', True),
        ],
    )
    def test_where_decides_by_its_first_value(self, where: str, passes: bool) -> None:
        assert applied(BIG, where=where) == (BIG if passes else None)

    def test_set_leaves_order_and_numbers(self) -> None:
        assert applied(BIG, edits=[".x = .z", "del(.c) # gone"]) == (
            b'{"z":12345678901234567890.10,"a":"<<","b":[1,2],"x":12345678901234567890.10}'
        )

    def test_set_writes_what_is_not_ascii_as_it_is(self) -> None:
        assert applied('{"a":"é😀<&>"}'.encode(), edits=["."]) == '{"a":"é😀<&>"}'.encode()

    def test_set_comes_after_the_whitelist_and_where_before_it(self) -> None:
        done = applied(BIG, where=".z", whitelist=("c",), edits=['.added = "x"'])
        assert done == b'{"c":null,"added":"x"}'

    def test_set_that_makes_nothing_filters(self) -> None:
        assert applied(BIG, edits=["select(.nosuch)"]) is None

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"edits": [".b[]"]}, "--set made 2 values"),
            ({"edits": [".a.b"]}, "--set: Cannot index string"),
            ({"where": ".a.b"}, "--where: Cannot index string"),
            ({"where": "halt"}, "--where: halted"),
            ({"where": "error"}, "--where"),
        ],
    )
    def test_what_an_expression_fails_with_is_refused_although_invalid_passes(
        self, options: dict[str, Any], reason: str
    ) -> None:
        with pytest.raises(RecordError, match=reason):
            applied(BIG, **options, pass_invalid=True)

    @pytest.mark.parametrize("program", [".a b", "nosuch(1)", ")", ".) | (.", ".a |", "'"])
    def test_a_faulty_expression_is_an_error_of_one_line(self, program: str) -> None:
        for flag, options in (("--where", {"where": program}), ("--set", {"edits": [program]})):
            with pytest.raises(ConfigError) as caught:
                make_rules(**options)
            assert str(caught.value).startswith(f"{flag} {program!r}: ")
            assert "\n" not in str(caught.value)

    def test_without_the_package_the_error_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "jq", None)
        for options in ({"where": "."}, {"edits": ["."]}):
            with pytest.raises(ConfigError, match="pip install jq"):
                make_rules(**options)
        make_rules(whitelist=["a"])

    @given(st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.booleans()))
    def test_set_loses_nothing(self, value: dict[str, Any]) -> None:
        try:
            body = json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return
        done = applied(body, edits=["."])
        assert done is not None
        assert list(json.loads(done).items()) == list(value.items())


class TestDestinations:
    def test_topics_keep_their_names_or_share_one(self) -> None:
        assert destinations(["a", "b"]) == {"a": "a", "b": "b"}
        assert destinations(["a", "b"], destination="c") == {"a": "c", "b": "c"}

    def test_the_first_map_that_matches_the_whole_name_counts(self) -> None:
        maps = [r"(?P<what>\w+)\.eu=eu.\g<what>", r"(.*)\.us=\1", "x=y", "x=z", "rd=never"]
        found = destinations(["orders.eu", "orders.us", "x", "third"], maps=maps)
        expected = {"orders.eu": "eu.orders", "orders.us": "orders", "x": "y", "third": "third"}
        assert found == expected

    def test_an_equals_sign_may_stand_in_the_expression(self) -> None:
        assert destinations(["ab"], maps=["a(?=b)b=c"]) == {"ab": "c"}

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("orders", "expected REGEX=TEMPLATE"),
            ("=x", "expected REGEX=TEMPLATE"),
            ("x=", "expected REGEX=TEMPLATE"),
            ("(=x", "not a regular expression"),
            (r".*=\2", "invalid group reference"),
            (r".*=\g<nosuch>", "unknown group name"),
            (".*=no spaces", "of events it makes the topic 'no spaces'"),
            ("(.*)=" + r"\1" * 20, "of events it makes the topic"),
        ],
    )
    def test_a_faulty_map_is_named(self, text: str, reason: str) -> None:
        with pytest.raises(ConfigError) as caught:
            destinations(["events"], maps=[text])
        assert str(caught.value).startswith(f"--map {text!r}: ")
        assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("routes", "loops"),
    [
        ({"a": "a"}, {"a": "a"}),
        ({"a": "b"}, {}),
        ({"a": "b", "b": "c"}, {}),
        ({"a": "b", "b": "a"}, {"a": "b", "b": "a"}),
        ({"a": "b", "b": "b"}, {"b": "b"}),
        ({"a": "b", "b": "c", "c": "b"}, {"b": "c", "c": "b"}),
    ],
)
def test_a_topic_that_at_last_comes_back_is_a_loop(
    routes: dict[str, str], loops: dict[str, str]
) -> None:
    assert find_loops(routes) == loops
