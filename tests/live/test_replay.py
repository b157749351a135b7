"""``pub --from-archive`` as a process on real servers: each kind of archive, damage, pace."""

import base64
import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nsqtools.records.compression import METHODS, make_encoder
from tests.support.eventually import eventually
from tests.support.process import Cli, Result
from tests.support.raw import prefixed
from tests.support.replays import Taken
from tests.support.servers import Nsqd, at

BODIES = [bytes(range(32, 256)), b"plain", b"\0" * 3, "\N{SNOWMAN}".encode(), b"x" * 70_000]
DAY = 86_400 * 10**9


def envelopes(bodies: Sequence[bytes], timestamps: Sequence[int] = ()) -> bytes:
    records = [{"body_b64": base64.b64encode(body).decode()} for body in bodies]
    stamped = [{"timestamp": at} for at in timestamps] or [{} for _ in bodies]
    both = zip(records, stamped, strict=True)
    return b"".join(json.dumps(a | b).encode() + b"\n" for a, b in both)


def members(method: str, *parts: bytes) -> bytes:
    encoder = make_encoder(method)
    return b"".join([encoder.write(part) + encoder.finish() for part in parts])


@pytest.fixture
def pub(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> Callable[..., Result]:
    """Publishes archives to the topic."""

    def run(*args: str | Path) -> Result:
        command = ("pub", "--topic", topic, *at(nsqd), "--from-archive", *map(str, args))
        return nsqtools_cli(*command)

    return run


@pytest.mark.parametrize(
    ("method", "options", "form"),
    [
        ("none", ("--delimiter", ";;"), lambda bodies: b"".join(body + b";;" for body in bodies)),
        ("zstd", ("--length-prefix",), prefixed),
        ("gzip", ("--json",), envelopes),
    ],
    ids=["delimiter", "length-prefix", "json"],
)
def test_files_of_every_kind_are_published_one_after_another(
    pub: Callable[..., Result],
    nsqtools_cli: Cli,
    nsqd: Nsqd,
    topic: str,
    tmp_path: Path,
    method: str,
    options: Sequence[str],
    form: Callable[[Sequence[bytes]], bytes],
) -> None:
    suffix = os.fsencode(METHODS[method].suffix)
    names = [os.fsencode(tmp_path) + b"/\xff" + name + suffix for name in (b"a", b"b")]
    half = len(form(BODIES)) // 2  # members need not end where records do
    text = form(BODIES)
    for name, parts in zip(names, ([text[:half], text[half:]], [form([b"last"])]), strict=True):
        with open(name, "wb") as file:
            file.write(members(method, *parts))
    nsqd.create(topic, "c")
    published = pub(*options, *map(os.fsdecode, names))
    assert (published.code, published.stdout, published.stderr) == (0, b"", "")
    assert sorted(Taken(nsqtools_cli, nsqd, topic)()) == sorted([*BODIES, b"last"])


@pytest.mark.parametrize("option", ["--from-archive", "--file"])
def test_a_replay_at_its_own_pace_waits_for_the_next_day_and_two_signals_end_it(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, option: str
) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(envelopes([b"a", b"late", b"b"], [DAY, 0, 2 * DAY]))
    pub = nsqtools_cli.start(
        *("pub", "--topic", topic, *at(nsqd), "--json", "--pace", "2x", option, str(file)),
        stderr=subprocess.PIPE,
    )
    eventually(lambda: nsqd.topic(topic)["message_count"] == 2)
    assert pub.stderr
    pub.send_signal(signal.SIGINT)
    assert b"publishing what was read: 1 message;" in pub.stderr.readline()
    assert pub.poll() is None
    pub.send_signal(signal.SIGTERM)
    assert pub.wait(60) == 130
    assert b"2 published, 1 read and not published" in pub.stderr.read()
