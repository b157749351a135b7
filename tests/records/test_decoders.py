"""Decoders of bodies: what the libraries' own writers wrote, and what nobody should have."""

import json
import math
import os
import struct
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro.schema
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.config.consuming import TailOptions
from nsqtools.config.records import DECODERS
from nsqtools.errors import ConfigError, NSQError
from nsqtools.records.bodies.bodydecoder import MAX_BODY, max_text
from nsqtools.records.bodies.decoders import PACKAGES, Decoding, make_decoder
from nsqtools.records.bodies.objects import text_of
from nsqtools.records.bodies.programdecoder import ProgramDecoder
from tests.support.decoding import (
    AVRO,
    NODE,
    avro,
    avro_file,
    descriptors,
    order,
    program,
    protobuf_file,
)
from tests.support.eventually import eventually

ORDER: dict[str, Any] = {
    "id": 1,
    "user": "",
    "at": 0,
    "key": b"",
    "rate": 0.0,
    "lines": [],
    "tags": {},
}
MOMENT = datetime(2026, 11, 26, 10, 0, 0, 250_000, UTC)
KINDS: dict[str, Callable[[Path], str]] = {
    "msgpack": lambda _: "msgpack",
    "avro": avro_file,
    "avro, recursive": lambda folder: avro_file(folder, NODE),
    "protobuf": protobuf_file,
    "cmd": lambda _: program(),
}


def decoded(spec: str, *bodies: bytes) -> list[Any]:
    """The values; None also for what does not decode."""
    decoder = make_decoder(spec)
    assert decoder
    try:
        texts = decoder.decode_all(bodies)
        assert decoder.undecoded == texts.count(None)
    finally:
        decoder.close()
    return [None if text is None else json.loads(text) for text in texts]


def test_the_option_knows_the_kinds() -> None:
    assert {each.rstrip(":") for each in DECODERS} == PACKAGES.keys()


def test_msgpack() -> None:
    value = {
        "id": 2**63,
        "nested": [1, {"a": None}, True, 1.5],
        "key": b"\xff",
        "nan": [math.nan, math.inf, -math.inf],
        "at": msgpack.Timestamp(1_795_687_200, 250_000_000),
        "ext": msgpack.ExtType(5, b"x"),
        7: "é",
        b"\x00": 1,
    }
    assert decoded("msgpack", msgpack.packb(value), msgpack.packb(value) + b"\xc0", b"") == [
        {
            "id": 2**63,
            "nested": [1, {"a": None}, True, 1.5],
            "key": "/w==",
            "nan": ["NaN", "Infinity", "-Infinity"],
            "at": "2026-11-26T10:00:00.250Z",
            "ext": {"type": 5, "data": "eA=="},
            "7": "é",
            "AA==": 1,
        },
        None,
        None,
    ]


def test_avro_plain_and_with_the_fingerprint_of_the_schema(tmp_path: Path) -> None:
    value = {
        "id": 2**62,
        "user": None,
        "at": MOMENT,
        "key": b"\xff",
        "rate": math.nan,
        "lines": [1, 2],
        "tags": {"a": True},
    }
    body = avro(value)
    # Avro 1.12, Schema Fingerprints: the CRC-64-AVRO of the canonical form, little-endian.
    canonical = fastavro.schema.to_parsing_canonical_form(AVRO)
    mark = b"\xc3\x01" + struct.pack("<Q", _rabin(canonical.encode()))
    expected = {
        **value,
        "at": "2026-11-26T10:00:00.250Z",
        "key": "/w==",
        "rate": "NaN",
    }
    assert decoded(
        avro_file(tmp_path), body, mark + body, b"\xc3\x01" + b"\x00" * 8 + body, body + b"\x00"
    ) == [expected, expected, None, None]


def _rabin(data: bytes) -> int:
    """The algorithm of the specification."""
    empty = 0xC15D213AA4D7A795
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (empty & -(number & 1))
        table.append(number)
    found = empty
    for byte in data:
        found = (found >> 8) ^ table[(found ^ byte) & 0xFF]
    return found


def test_logical_types_of_avro(tmp_path: Path) -> None:
    fields: list[tuple[str, Any, Any, Any]] = [
        ("day", {"type": "int", "logicalType": "date"}, date(2026, 11, 26), "2026-11-26"),
        (
            "price",
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("12345.60"),
            "12345.60",
        ),
        (
            "who",
            {"type": "string", "logicalType": "uuid"},
            uuid.UUID(int=1),
            "00000000-0000-0000-0000-000000000001",
        ),
    ]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind, *_ in fields],
    }
    body = avro({name: value for name, _, value, _ in fields}, schema)
    assert decoded(avro_file(tmp_path, schema), body) == [
        {name: shown for name, _, _, shown in fields}
    ]


def test_protobuf(tmp_path: Path) -> None:
    made = order(id=2**62 + 1, user_name="é", key=b"\xff", rate=0.1, kind=1, tags={"a": 5})
    made.at.FromDatetime(MOMENT.replace(tzinfo=None))
    made.children.add(rate=math.inf, kind=9)
    spec = protobuf_file(tmp_path)
    assert decoded(spec, made.SerializeToString(), b"\xf8\x07\x01", b"{") == [
        {
            "id": 2**62 + 1,
            "user_name": "é",
            "at": "2026-11-26T10:00:00.250Z",
            "key": "/w==",
            "rate": 0.1,
            "kind": "SALE",
            "tags": {"a": 5},
            "children": [{"rate": "Infinity", "kind": 9}],
        },
        None,  # a field that the type does not have
        None,
    ]


class TestPrograms:
    def test_one_process_answers_all_and_dies_of_one_body_alone(self, tmp_path: Path) -> None:
        source = (
            "import base64, os, sys\n"
            f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\n"
            "for line in sys.stdin:\n"
            "    body = base64.b64decode(line)\n"
            "    if body == b'die': os._exit(3)\n"
            "    print(body.decode(), flush=True)\n"
        )
        decoder = make_decoder(program(source))
        assert decoder
        many = [b"%d" % number for number in range(5000)]
        assert decoder.decode_all(many) == many
        bodies = [b'"one"', b"no json", b"", b"die", b"NaN", b'{"two":2}']
        assert decoder.decode_all(bodies) == [b'"one"', None, None, None, None, b'{"two":2}']
        assert (tmp_path / "starts").read_text() == "xx"
        assert decoder.undecoded == 4
        decoder.close()

    def test_large_bodies_fill_the_pipes_of_a_program_that_does_not_flush(self) -> None:
        bodies = [b'"%s"' % (b"x" * 300_000)] * 5
        decoder = make_decoder(
            program("import base64,sys\nfor l in sys.stdin: print(base64.b64decode(l).decode())")
        )
        assert decoder
        assert decoder.decode_all([*bodies, b'"' + b"x" * MAX_BODY])[:4] == bodies[:4]
        decoder.close()

    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            ("cmd:false", "ended with status 1 without a line"),
            ("cmd:yes", "writes more lines than it reads"),
            ("cmd:/etc/passwd", "no such program"),
            ("cmd:'", "No closing quotation"),
        ],
    )
    def test_a_program_that_cannot_decode_anything_is_an_error(
        self, spec: str, reason: str
    ) -> None:
        with pytest.raises(NSQError, match=reason) as caught:
            decoded(spec, b"1", b"2", b"3")
        assert str(caught.value).startswith(f"--decode {spec}: ")

    @pytest.mark.parametrize("spec", ["cmd:sort", "cmd:cat /dev/zero"])
    def test_a_program_without_line_ends_is_told_to_flush(
        self, spec: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nsqtools.records.bodies.programdecoder._SILENCE", 0.1)
        with pytest.raises(NSQError, match="flush"):
            decoded(spec, b"1")

    def test_a_line_too_many_is_an_error_and_not_the_next_answer(self, tmp_path: Path) -> None:
        late, written = tmp_path / "late", tmp_path / "written"
        source = (
            "import os,sys,time\n"
            "for line in sys.stdin:\n"
            "    print(1, flush=True)\n"
            f"    while not os.path.exists({str(late)!r}): time.sleep(0.01)\n"
            "    print(2, flush=True)\n"
            f"    os.mkdir({str(written)!r})"
        )
        decoder = make_decoder(program(source))
        assert decoder
        assert decoder.decode_all([b"a"]) == [b"1"]
        late.touch()
        eventually(written.exists)
        with pytest.raises(NSQError, match="writes more lines than it reads"):
            decoder.decode_all([b"b"])
        late.unlink()
        assert decoder.decode_all([b"c"]) == [b"1"]  # of another process
        decoder.close()

    def test_processes_of_the_program_do_not_outlive_it(self, tmp_path: Path) -> None:
        alive = tmp_path / "alive"
        os.mkfifo(alive)
        decoder = make_decoder(f"cmd:sh -c 'sleep 1000 >{alive} & echo 1; wait'")
        assert decoder
        with open(os.open(alive, os.O_RDONLY | os.O_NONBLOCK), "rb") as end:
            assert decoder.decode_all([b"x"]) == [b"1"]
            decoder.close()
            eventually(lambda: end.read(1) == b"")  # None while somebody may write

    def test_a_decoder_is_closed_while_it_waits_for_lines(self) -> None:
        decoder = make_decoder("cmd:sort")
        assert isinstance(decoder, ProgramDecoder)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(decoder.decode_all, [b"1"])
            eventually(lambda: decoder._process)
            decoder.close()
            with pytest.raises(NSQError):
                waiting.result()

    def test_an_endless_line_is_not_kept(self) -> None:
        source = "import sys\nfor l in sys.stdin: print('1' * 10_000_000, flush=True)"
        assert decoded(program(source), b"1", b"2") == [None, None]


class TestFaultySpecs:
    @pytest.mark.parametrize(
        "spec", ["json", "msgpack:", "msgpack:x", "avro", "avro:", "protobuf:x", "protobuf:x#"]
    )
    def test_a_spec_has_a_known_form(self, spec: str) -> None:
        with pytest.raises(ConfigError, match=r"expected .*protobuf:DESCRIPTOR#TYPE"):
            TailOptions(decode=spec)

    def test_a_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"\xffno schema")
        for spec, reason in (
            (f"avro:{tmp_path}/none", "No such file"),
            (f"avro:{tmp_path}", "Is a directory"),
            (f"avro:{tmp_path}/x", "not an Avro schema"),
            (f"protobuf:{tmp_path}/x#T", "protoc --include_imports"),
            (protobuf_file(tmp_path).replace("Order", "Odor"), "the last file has shop.Order"),
        ):
            with pytest.raises(ConfigError, match=reason) as caught:
                make_decoder(spec)
            assert str(caught.value).startswith(f"--decode {spec}: ")

    def test_descriptors_need_their_imports(self, tmp_path: Path) -> None:
        found = descriptors()
        del found.file[0]
        (tmp_path / "x").write_bytes(found.SerializeToString())
        with pytest.raises(ConfigError, match="--include_imports"):
            make_decoder(f"protobuf:{tmp_path}/x#shop.Order")

    @pytest.mark.parametrize(
        "items",
        [
            "null",
            {"type": "fixed", "name": "F", "size": 0},
            {"type": "record", "name": "E", "fields": [{"name": "a", "type": "null"}]},
        ],
    )
    def test_a_schema_by_which_few_bytes_are_any_number_of_values_is_refused(
        self, items: Any, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match="items take no bytes"):
            make_decoder(avro_file(tmp_path, {"type": "array", "items": items}))

    @pytest.mark.parametrize("kind", ["msgpack", "avro", "protobuf"])
    def test_a_missing_package_is_named(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = KINDS[kind](tmp_path)
        monkeypatch.setitem(sys.modules, PACKAGES[kind], None)
        with pytest.raises(ConfigError, match=r"pip install 'nsqtools\[decode\]'"):
            make_decoder(spec)


class TestHostileBodies:
    @pytest.mark.parametrize(
        "decoding",
        [
            Decoding("msgpack"),
            Decoding("avro:x", json.dumps(AVRO).encode()),
            Decoding("avro:x", json.dumps(NODE).encode()),
            Decoding("protobuf:x#shop.Order", descriptors().SerializeToString()),
        ],
        ids=["msgpack", "avro", "avro, recursive", "protobuf"],
    )
    @given(bodies=st.lists(st.binary(max_size=200), max_size=5))
    def test_any_bytes_are_json_or_do_not_decode(
        self, decoding: Decoding, bodies: list[bytes]
    ) -> None:
        decoder = decoding.make()
        for body, text in zip(bodies, decoder.decode_all(bodies), strict=True):
            if text is not None:
                text_of(text)
                assert len(text) <= max_text(body)

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            ("msgpack", b"\xdd\xff\xff\xff\xff" * 1000),
            ("msgpack", b"\xdd\x00\x0f\x00\x00" * 500 + b"\xc0" * 1_000_000),
            ("msgpack", b"\xdf\xff\xff\xff\xff\x01"),
            ("msgpack", b"\x91" * (1 << 20)),
            ("msgpack", b"\xc7\x0c\xff" + b"\x00" * 4 + b"\x7f" + b"\xff" * 7),
            ("msgpack", b"\xc0" + b" " * MAX_BODY),
            ("avro", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" * 100),
            ("avro", b"\x00\x00" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" * 9),
            ("avro, recursive", b"\x00\x02" * (1 << 19)),
            ("avro, recursive", b"\x00\x02" * 5000 + b"\x00\x00"),
            ("protobuf", b"\x42\x80\x80\x80\x80\x08" * 1000),
            ("protobuf", b"\x43" * 100_000),
            ("protobuf", b"\x1a\x06\x10\xff\xff\xff\xff\x07"),
            ("protobuf", b"\x1a\x09\x08\xff\xff\xff\xff\xff\xff\xff\x7f"),
        ],
    )
    def test_bombs_do_not_decode_and_others_after_them_do(
        self, kind: str, body: bytes, tmp_path: Path
    ) -> None:
        good = {
            "msgpack": msgpack.packb(1),
            "avro": avro(ORDER),
            "avro, recursive": avro({"v": 1, "next": {"v": 2, "next": None}}, NODE),
            "protobuf": order(id=1).SerializeToString(),
        }
        bomb, found = decoded(KINDS[kind](tmp_path), body, good[kind])
        assert bomb is None
        assert found is not None

    def test_deep_messages_of_protobuf_do_not_decode(self, tmp_path: Path) -> None:
        body = b""
        for _ in range(300):
            body = b"\x42" + _varint(len(body)) + body
        assert decoded(protobuf_file(tmp_path), body) == [None]

    def test_a_text_much_larger_than_its_body_is_dropped(self, tmp_path: Path) -> None:
        fields = [{"name": "n" * 200 + str(n), "type": ["null", "int"]} for n in range(500)]
        schema = {"type": "record", "name": "R", "fields": fields}
        assert decoded(avro_file(tmp_path, schema), b"\x00" * 500) == [None]


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])
