"""What servers and archives may make a command keep in memory: at full size, in a process."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING

import pytest

from nsqtools.records.compression import load_zstd
from tests.support import archives
from tests.support.eventually import eventually
from tests.support.hostile import MIB, Hostile, endless, header
from tests.support.servers import at, drained, empty
from tests.support.wire import MESSAGE, RESPONSE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.process import Cli, Result
    from tests.support.servers import MakeNsqd, Nsqd

LIMIT = 200 << 10
"""KiB that no command may take."""

LONG = pytest.mark.full("seconds to compress; the other method is in the plain run")

CLAIMED = 0x7FFFFFF0
STREAMED = 1 << 30
HUGE = 400
"""MiB of a line, which take no room where they are compressed."""


def commands(address: str, folder: Path) -> dict[str, tuple[str, ...]]:
    at = ("--topic", "t", "--nsqd-tcp-address", address)
    run = ("--channel", "c", "--max-duration", "3s")
    return {
        "tail": ("tail", *at, *run),
        "to-file": ("to-file", *at, *run, "--output-dir", str(folder / "out")),
        "doctor": ("doctor", *at),
        "pub": ("pub", *at, "--publish-timeout", "3s", "hello"),
    }


CUES = {"tail": "RDY", "to-file": "RDY", "doctor": "NOP", "pub": "PUB"}


def attacked(cli: Cli, name: str, hostile: Hostile, folder: Path, *options: str) -> Result:
    """How the command ended, which took little memory."""
    with hostile:
        ended = cli.measured(*commands(str(hostile.address), folder)[name], *options)
    assert ended.peak < LIMIT
    return ended


@pytest.mark.parametrize(
    ("name", "kind"),
    [("tail", MESSAGE), ("to-file", MESSAGE), ("doctor", RESPONSE), ("pub", MESSAGE)],
)
def test_a_frame_that_claims_two_gigabytes_is_refused_by_its_header(
    nsqtools_cli: Cli, tmp_path: Path, name: str, kind: int
) -> None:
    def attack() -> Iterator[bytes]:
        return endless(header(CLAIMED, kind), STREAMED)

    hostile = Hostile(attack, cue=CUES[name], snappy=name == "tail")
    options = ["--snappy"] if name == "tail" else []
    ended = attacked(nsqtools_cli, name, hostile, tmp_path, *options)
    lines = (ended.stdout.decode() + ended.stderr).splitlines()
    assert (said := [line for line in lines if str(CLAIMED) in line])
    assert all(str(hostile.address) in line for line in said)
    if kind == MESSAGE and name in ("tail", "to-file"):
        assert all("--max-msg-size" in line for line in said)


@pytest.mark.parametrize(("size", "options"), [(1 << 20, ()), (20 << 20, ("--snappy",))])
def test_messages_that_real_nsqds_take_pass_by_default(
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    topic: str,
    tmp_path: Path,
    size: int,
    options: tuple[str, ...],
) -> None:
    nsqd = make_nsqd(f"-max-msg-size={size}", f"-max-body-size={2 * size}")
    body = random.Random(size).randbytes(size)
    for channel in "ab":
        nsqd.create(topic, channel)
    nsqd.request("POST", "/pub", body, topic=topic)
    common = ("--topic", topic, "-n", "1", "--max-duration", "1m", *at(nsqd), *options)
    seen = nsqtools_cli("tail", "--channel", "a", "--length-prefix", *common)
    assert (seen.code, seen.stdout) == (0, size.to_bytes(4, "big") + body)
    folder = tmp_path / "out"
    archived = ("to-file", "--channel", "b", "--format", "json", "--output-dir", str(folder))
    assert nsqtools_cli(*archived, *common).code == 0
    (path,) = archives.published(folder)
    assert nsqtools_cli("verify", "--format", "json", str(path)).code == 0


def bomb(path: Path) -> Path:
    """An archive of one JSON line whose body is huge, behind a good one."""
    start, end = b'{"body":"good"}\n{"body":"', b'"}\n'
    with path.open("wb") as file:
        if path.name.removesuffix(".part").endswith(".gz"):
            with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as packed:
                packed.write(start)
                for _ in range(HUGE):
                    packed.write(b"x" * MIB)
                packed.write(end)
        else:
            zstd = load_zstd()
            packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.checksum_flag: 1})
            file.write(packer.compress(start))
            for _ in range(HUGE):
                file.write(packer.compress(b"x" * MIB))
            file.write(packer.compress(end) + packer.flush())
    return path


@pytest.mark.parametrize("suffix", [".gz", pytest.param(".zst", marks=LONG)])
def test_verify_does_not_read_a_line_that_is_larger_than_memory_may_be(
    nsqtools_cli: Cli, tmp_path: Path, suffix: str
) -> None:
    path = bomb(tmp_path / f"events.log{suffix}")
    ended = nsqtools_cli.measured("verify", "--format", "json", str(path))
    assert ended.code == 1
    (line,) = ended.stderr.splitlines()
    assert str(path) in line
    assert "line 2 " in line
    assert "--max-msg-size" in line
    assert ended.peak < LIMIT


@pytest.mark.parametrize(
    ("suffix", "compress"), [pytest.param(".gz", "gzip", marks=LONG), (".zst", "zstd")]
)
def test_recovery_leaves_such_a_line_as_it_is(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, suffix: str, compress: str
) -> None:
    folder = tmp_path / "out"
    command = (
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(folder), *at(nsqd)),
        *("--filename-format", "<TOPIC><REV>.log", "--format", "json", "--compress", compress),
    )
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"first"])
    killed = nsqtools_cli.start(*command, "--sync-interval", "10ms")
    eventually(lambda: drained(nsqd, topic, "c"))
    killed.kill()
    killed.wait()
    (left,) = folder.glob("*.part")
    before = bomb(left).read_bytes()
    nsqd.publish(topic, [b"fresh"])
    ended = nsqtools_cli.measured(*command, "--max-duration", "1m", *empty(nsqd))
    assert ended.code == 1
    (line,) = (each for each in ended.stderr.splitlines() if "--max-msg-size" in each)
    assert str(left) in line
    assert ended.peak < LIMIT
    assert left.read_bytes() == before
    (fresh,) = (each for each in folder.glob(f"*{suffix}"))
    assert json.loads(archives.plain(fresh))["body"] == "fresh"
    assert drained(nsqd, topic, "c")


def test_a_message_that_relay_may_not_publish_is_read_all_the_same(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x" * 1000, b"short"])
    ended = nsqtools_cli(
        *("relay", "--topic", topic, "--channel", "c", "--destination-topic", f"{topic}.to"),
        *("--destination-nsqd-tcp-address", str(nsqd.tcp), "--max-msg-size", "100"),
        *("--dead-letter-dir", str(tmp_path / "dead"), "--max-duration", "1m", *empty(nsqd)),
    )
    assert ended.code == 0
    assert nsqd.topic(f"{topic}.to")["depth"] == 1
    (letters,) = (tmp_path / "dead").iterdir()
    assert json.loads(letters.read_bytes())["body"] == "x" * 1000
    assert drained(nsqd, topic, "c")
