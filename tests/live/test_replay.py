"""``pub --from-archive`` as a process on real servers: each kind of archive, damage, pace."""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from nsqtools.sinks.compression import METHODS, make_encoder
from tests.support.eventually import eventually
from tests.support.servers import at, empty

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import Nsqd

BODIES = [bytes(range(32, 256)), b"plain", b"\0" * 3, "\N{SNOWMAN}".encode(), b"x" * 70_000]
DAY = 86_400 * 10**9


def lines(bodies: Sequence[bytes]) -> bytes:
    return b"".join(body + b"\n" for body in bodies)


def sized(bodies: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def envelopes(bodies: Sequence[bytes], timestamps: Sequence[int] = ()) -> bytes:
    records = [{"body_b64": base64.b64encode(body).decode()} for body in bodies]
    stamped = [{"timestamp": at} for at in timestamps] or [{} for _ in bodies]
    return lines([json.dumps(a | b).encode() for a, b in zip(records, stamped, strict=True)])


def members(method: str, *parts: bytes) -> bytes:
    encoder = make_encoder(method)
    return b"".join([encoder.write(part) + encoder.finish() for part in parts])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("options", "form"),
    [
        ((), lines),
        (("--delimiter", ";;"), lambda bodies: b"".join(body + b";;" for body in bodies)),
        (("--length-prefix",), sized),
        (("--json",), envelopes),
    ],
    ids=["raw", "delimiter", "length-prefix", "json"],
)
def test_files_of_every_kind_are_published_one_after_another(
    nsqtools_cli: Cli,
    nsqd: Nsqd,
    topic: str,
    tmp_path: Path,
    method: str,
    options: Sequence[str],
    form: Callable[[Sequence[bytes]], bytes],
) -> None:
    names = [f"{name}.log{METHODS[method].suffix}" for name in "ab"]
    half = len(form(BODIES)) // 2  # members need not end where records do
    text = form(BODIES)
    (tmp_path / names[0]).write_bytes(members(method, text[:half], text[half:]))
    (tmp_path / names[1]).write_bytes(members(method, form([b"last"])))
    nsqd.create(topic, "c")
    published = nsqtools_cli(
        *("pub", "--topic", topic, *at(nsqd), "--from-archive", *options),
        *(str(tmp_path / name) for name in names),
    )
    assert (published.code, published.stdout, published.stderr) == (0, b"", "")
    tailed = nsqtools_cli(
        *("tail", "--topic", topic, "--channel", "c", "--length-prefix", *empty(nsqd))
    )
    records, data = [], tailed.stdout
    while data:
        end = 4 + int.from_bytes(data[:4])
        records.append(data[4:end])
        data = data[end:]
    assert sorted(records) == sorted([*BODIES, b"last"])


@pytest.mark.parametrize("method", ["gzip", "zstd"])
def test_of_a_damaged_member_nothing_is_published_and_nothing_after_it(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, method: str
) -> None:
    whole, damaged = (members(method, lines([word] * 2)) for word in (b"good", b"b" * 50))
    damaged = damaged[:-1] + bytes([damaged[-1] ^ 1])  # of a checksum, or what it covers
    file = tmp_path / f"a{METHODS[method].suffix}"
    file.write_bytes(whole + damaged)
    later = tmp_path / "later.log"
    later.write_bytes(b"later\n")
    ended = nsqtools_cli(
        *("pub", "--topic", topic, *at(nsqd), "--from-archive", str(file), str(later))
    )
    assert ended.code == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"nsqtools: {file}: {method} ")
    assert f" at byte {len(whole)}: " in line
    assert line.endswith("; 2 published before it")
    assert nsqd.topic(topic)["message_count"] == 2


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.log", b"one\ntwo\nthr", "record 3 at byte 8 is torn: no delimiter follows it"),
        ("a.gz", gzip.compress(b"one\ntwo\nthr", mtime=0), "record 3 at byte 8 is torn: "),
        (
            "a.gz",
            gzip.compress(b"one\ntwo\n", mtime=0) + gzip.compress(b"three\n", mtime=0)[:-1],
            "gzip member 2 at byte 28: the file ends in it",
        ),
        ("a.gz", gzip.compress(b"one\ntwo\nth", mtime=0) + b"junk", "gzip member 2 at byte 30: "),
    ],
)
def test_of_a_torn_file_whole_records_are_published_and_the_place_is_named(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, name: str, data: bytes, problem: str
) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    ended = nsqtools_cli("pub", "--topic", topic, *at(nsqd), "--from-archive", str(file))
    assert ended.code == 1
    assert ended.stderr.startswith(f"nsqtools: {file}: {problem}")
    assert ended.stderr.endswith("; 2 published before it\n")
    assert nsqd.topic(topic)["message_count"] == 2


def test_a_wrong_record_is_named_before_the_damage_that_follows_it(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.gz"
    file.write_bytes(gzip.compress(b'{"body":"a"}\nnot JSON\n') + b"junk")
    ended = nsqtools_cli("pub", "--topic", topic, *at(nsqd), "--from-archive", "--json", str(file))
    assert (ended.code, ended.stderr.splitlines()) == (
        1,
        [f"nsqtools: {file}: line 2: not JSON: Expecting value at column 1; 1 published before it"],
    )


def test_a_file_that_cannot_be_read_is_found_before_anything_is_published(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "good.log").write_bytes(b"good\n")
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (
        ("missing.log", "No such file or directory"),
        (".", "is a directory"),
        ("pipe", "is no file that can be read twice"),
    ):
        files = [str(tmp_path / "good.log"), str(tmp_path / name)]
        ended = nsqtools_cli("pub", "--topic", topic, *at(nsqd), "--from-archive", *files)
        assert (ended.code, ended.stderr) == (
            2,
            f"nsqtools: --from-archive {files[1]}: {problem}\n",
        )
    with pytest.raises(LookupError):
        nsqd.topic(topic)


def test_a_name_need_not_be_text(nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/\xff.gz"
    with open(file, "wb") as archive:
        archive.write(gzip.compress(b"one\n"))
    done = nsqtools_cli("pub", "--topic", topic, *at(nsqd), "--from-archive", os.fsdecode(file))
    assert (done.code, done.stderr) == (0, "")
    assert nsqd.topic(topic)["message_count"] == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--from-archive",), "--from-archive: no file is given"),
        (("--from-archive", "--file", "a", "a"), "--file and --from-archive exclude each other"),
        (("--from-archive", "--whole", "a"), "--whole and --from-archive exclude each other"),
        (("--pace", "fast"), "--pace 'fast': expected max, or a factor such as 1x, 10x or 0.5x"),
        (("--from-archive", "--pace", "1x", "a"), "--pace 1x: needs --json"),
        (("--json", "--pace", "1x", "message"), "--pace: messages have no timestamps"),
    ],
)
def test_options_that_do_not_go_together_are_named(
    nsqtools_cli: Cli, topic: str, options: Sequence[str], complaint: str
) -> None:
    ended = nsqtools_cli("pub", "--topic", topic, *options)
    assert ended.code == 2
    assert complaint in ended.stderr


def test_a_pace_needs_a_timestamp_in_each_record(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(envelopes([b"a"], [DAY]) + envelopes([b"b"]))
    ended = nsqtools_cli(
        *("pub", "--topic", topic, *at(nsqd), "--from-archive", "--json", "--pace", "1x"),
        str(file),
    )
    assert ended.code == 1
    assert f"{file}: line 2: expected a timestamp, " in ended.stderr
    assert ended.stderr.endswith("found none; 1 published before it\n")


@pytest.mark.parametrize("pace", ["max", "100000000x"])
def test_a_fast_replay_waits_for_nothing(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, pace: str
) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(envelopes([b"a", b"b", b"c"], [DAY, 3 * DAY, 2 * DAY]))
    done = nsqtools_cli(
        *("pub", "--topic", topic, *at(nsqd), "--from-archive", "--json", "--pace", pace),
        str(file),
    )
    assert (done.code, done.stderr) == (0, "")
    assert nsqd.topic(topic)["message_count"] == 3


@pytest.mark.parametrize("archived", [True, False], ids=["archive", "file"])
def test_a_replay_at_its_own_pace_waits_for_the_next_day_and_a_signal_ends_it(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, archived: bool
) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(envelopes([b"a", b"late", b"b"], [DAY, 0, 2 * DAY]))
    form = ("--from-archive", str(file)) if archived else ("--file", str(file))
    pub = nsqtools_cli.start(
        *("pub", "--topic", topic, *at(nsqd), "--json", "--pace", "2x", *form),
        stderr=subprocess.PIPE,
    )
    eventually(lambda: nsqd.topic(topic)["message_count"] == 2)
    assert pub.poll() is None
    pub.send_signal(signal.SIGINT)
    assert pub.wait(10) == 130
    assert pub.stderr
    assert pub.stderr.read() == b"nsqtools: stopped before the end of the input, 2 published\n"
