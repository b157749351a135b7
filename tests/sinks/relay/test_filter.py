"""What passes, what is left of it, and where it goes."""

import signal
import subprocess
import sys
from typing import Any

import pytest

from nsqtools.config.relay import RelayOptions
from nsqtools.errors import ConfigError, RecordError
from nsqtools.sinks.relay.filter import destinations, find_loops, make_filter

BIG = b'{"z": 12345678901234567890.10, "a": "<\\u003c", "b": [1,  2], "c": null}'


def applied(body: bytes, **options: Any) -> bytes | None:
    return make_filter(RelayOptions(**options)).apply(body)


class TestFields:
    @pytest.mark.parametrize(
        ("body", "value", "passes"),
        [
            (b'{"f": null}', "", True),
            (b'{"\\u0066": 1}', "", True),
            (b'{"g": {"f": 1}}', "", False),
            (b"{}", "", False),
            (b'{"f": "x"}', "x", True),
            (b'{"f": "y"}', "x", False),
            (b'{"g": "x"}', "x", False),
            (b'{"f": 1, "f": 2}', "2", True),
            (b'{"f": 1, "f": 2}', "1", False),
        ],
    )
    def test_one_that_is_required_with_its_value(
        self, body: bytes, value: str, passes: bool
    ) -> None:
        assert applied(body, require_json_field="f", require_json_value=value) == (
            body if passes else None
        )

    @pytest.mark.parametrize(
        ("body", "names", "kept"),
        [
            (BIG, ("b", "z", "nosuch"), b'{"z":12345678901234567890.10,"b":[1,  2]}'),
            (BIG, ("a", "b", "c", "z"), BIG),
            (b" { } ", ("a",), b" { } "),
            (b'{"a":1,"b":2,"a":3}', ("a",), b'{"a":1,"a":3}'),
            (BIG, ("nosuch",), b"{}"),
        ],
    )
    def test_what_is_kept_is_as_it_was_written_in_its_order(
        self, body: bytes, names: tuple[str, ...], kept: bytes
    ) -> None:
        assert applied(body, whitelist_json_field=names) == kept

    def test_what_is_not_json_is_refused_and_fields_are_of_objects_but_jq_knows_all_values(
        self,
    ) -> None:
        fields: list[dict[str, Any]] = [
            {"require_json_field": "a"},
            {"whitelist_json_field": ("a",)},
        ]
        for options in (*fields, {"where": "."}, {"set": (".",)}):
            with pytest.raises(RecordError, match="not JSON"):
                applied(b"{not json", **options)
        for options in fields:
            with pytest.raises(RecordError, match="not a JSON object"):
                applied(b"[1]", **options)
        assert applied(b"[1]", where=".[0] == 1", set=(".",)) == b"[1]"


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

    @pytest.mark.parametrize("options", ["where='def f: f; f'", "set=('def f: f; f',)"])
    def test_an_endless_program_ends_the_process_whatever_its_thread(self, options: str) -> None:
        """Python could not end it: jq keeps the GIL."""
        script = f"""if True:
            from concurrent.futures import ThreadPoolExecutor
            from nsqtools.config.relay import RelayOptions
            from nsqtools.records.bodies import expressions
            from nsqtools.sinks.relay.filter import make_filter
            expressions._MAX_CPU = 0.1
            rules = make_filter(RelayOptions({options}))
            ThreadPoolExecutor(1).submit(rules.apply_all, [b"1"]).result()
        """
        ended = subprocess.run([sys.executable, "-c", script], timeout=60)
        assert ended.returncode == -signal.SIGVTALRM

    def test_set_leaves_order_and_numbers_and_comes_after_the_whitelist(self) -> None:
        assert applied(BIG, set=(".x = .z", "del(.c) # gone")) == (
            b'{"z":12345678901234567890.10,"a":"<<","b":[1,2],"x":12345678901234567890.10}'
        )
        assert applied('{"a":"é😀<&>"}'.encode(), set=(".",)) == '{"a":"é😀<&>"}'.encode()
        done = applied(BIG, where=".z", whitelist_json_field=("c",), set=('.added = "x"',))
        assert done == b'{"c":null,"added":"x"}'

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"set": (".b[]",)}, "--set: .* 2 values"),
            ({"set": (".a.b",)}, "--set: Cannot index string"),
            ({"where": ".a.b"}, "--where: Cannot index string"),
            ({"where": "halt"}, "--where: .*halted"),
            ({"where": "error"}, "--where"),
        ],
    )
    def test_what_an_expression_fails_with_is_refused(
        self, options: dict[str, Any], reason: str
    ) -> None:
        with pytest.raises(RecordError, match=reason):
            applied(BIG, **options)

    @pytest.mark.parametrize("program", [".a b", "nosuch(1)", ")", ".) | (.", ".a |", "'"])
    def test_a_faulty_expression_is_an_error_of_one_line_and_so_is_one_without_the_package(
        self, program: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        both: list[tuple[str, dict[str, Any]]] = [
            ("--where", {"where": program}),
            ("--set", {"set": (program,)}),
        ]
        for flag, options in both:
            with pytest.raises(ConfigError) as caught:
                make_filter(RelayOptions(**options))
            assert str(caught.value).startswith(f"{flag} {program!r}: ")
            assert "\n" not in str(caught.value)
        monkeypatch.setitem(sys.modules, "jq", None)
        for _, options in both:
            with pytest.raises(ConfigError, match=r"pip install 'nsqtools\[jq\]'"):
                make_filter(RelayOptions(**options))
        make_filter(RelayOptions(whitelist_json_field=("a",)))


class TestDecoded:
    def test_conditions_see_the_decoded_body_and_leave_the_body_as_it_is(self) -> None:
        rules = make_filter(RelayOptions(where=".n > 0", decode="msgpack"))
        bodies = [b"\x81\xa1n\x01", b"\x81\xa1n\x00", b'{"n":1}', b"no json"]
        passed, filtered, plain, refused = rules.apply_all(bodies)
        assert (passed, filtered, plain) == (bodies[0], None, bodies[2])
        assert str(refused) == "not JSON"
        assert rules.decoder
        assert rules.decoder.undecoded == 2

    def test_changes_make_json(self) -> None:
        for options in ({"whitelist_json_field": ("n",)}, {"set": (".",)}):
            rules = make_filter(RelayOptions(decode="msgpack", **options))  # type: ignore[arg-type]
            assert rules.apply_all([b"\x81\xa1n\x01"]) == [b'{"n":1}']

    def test_a_decoder_needs_a_rule(self) -> None:
        with pytest.raises(ConfigError, match="--decode needs a rule"):
            RelayOptions(decode="msgpack")


class TestDestinations:
    def test_topics_keep_their_names_or_share_one(self) -> None:
        assert destinations(["a", "b"]) == {"a": "a", "b": "b"}
        assert destinations(["a", "b"], destination="c") == {"a": "c", "b": "c"}

    def test_the_first_map_that_matches_the_whole_name_counts(self) -> None:
        maps = [r"(?P<what>\w+)\.eu=eu.\g<what>", r"(.*)\.us=\1", "x=y", "x=z", "rd=never"]
        found = destinations(["orders.eu", "orders.us", "x", "third"], maps=maps)
        expected = {"orders.eu": "eu.orders", "orders.us": "orders", "x": "y", "third": "third"}
        assert found == expected
        assert destinations(["ab"], maps=["a(?=b)b=c"]) == {"ab": "c"}

    @pytest.mark.parametrize(
        "text",
        [
            *("orders", "=x", "x=", "(=x", r".*=\2", r".*=\g<nosuch>"),
            *(".*=no spaces", "(.*)=" + r"\1" * 20),
        ],
    )
    def test_a_faulty_map_is_named(self, text: str) -> None:
        with pytest.raises(ConfigError) as caught:
            destinations(["events"], maps=[text])
        assert str(caught.value).startswith(f"--map {text!r}: ")

    @pytest.mark.parametrize(
        ("routes", "loops"),
        [
            ({"a": "a"}, {"a": "a"}),
            ({"a": "b", "b": "c"}, {}),
            ({"a": "b", "b": "a"}, {"a": "b", "b": "a"}),
            ({"a": "b", "b": "b"}, {"b": "b"}),
            ({"a": "b", "b": "c", "c": "b"}, {"b": "c", "c": "b"}),
        ],
    )
    def test_a_topic_that_at_last_comes_back_is_a_loop(
        self, routes: dict[str, str], loops: dict[str, str]
    ) -> None:
        assert find_loops(routes) == loops
