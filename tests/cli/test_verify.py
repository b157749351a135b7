"""``verify`` where it is not said by its golden file: what the options do, and good manifests."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from nsqtools.records.manifest import Published
from nsqtools.sinks.files.aftercare import Manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Called


def publish(folder: Path, name: str, data: bytes) -> None:
    folder.joinpath(name).write_bytes(data)
    Manifest(str(folder / "manifest")).append(
        Published(
            path=str(folder / name),
            name=name,
            topic="events",
            records=data.count(b"\n"),
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            format="raw",
            delimiter="\\n",
            compression="none",
        )
    )


def test_the_options_say_how_records_stand_in_the_file(nsqtools: Called, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\0")
    told = (0, "a: ok, 1 record, 4 bytes\n", "")
    assert nsqtools("verify", "--delimiter", r"\0", "a") == told
    (tmp_path / "a").write_bytes(b"\0\0\0\1x")
    told = (0, "a: ok, 1 record, 5 bytes\n", "")
    assert nsqtools("verify", "--format", "length-prefixed", "a") == told


def test_a_name_forges_no_line(nsqtools: Called, tmp_path: Path) -> None:
    (tmp_path / "a\nb: ok").write_bytes(b"one")
    (line,) = nsqtools("verify", "a\nb: ok")[1].splitlines()
    assert line.startswith("a\\nb: ok: ")


def test_a_good_manifest_gets_the_sums_of_its_files(nsqtools: Called, tmp_path: Path) -> None:
    for number in range(3):
        publish(tmp_path, f"{number}.log", b"one\ntwo\n")
    told = "manifest: ok, 6 records, 24 bytes, 3 files"
    assert nsqtools("verify", "manifest") == (0, f"{told}\n", "")
    (tmp_path / "0.log").unlink()
    told = "manifest: ok, 4 records, 16 bytes, 2 files, 1 older file deleted"
    assert nsqtools("verify", "manifest") == (0, f"{told}\n", "")
    shown = json.loads(nsqtools("verify", "--json", "manifest")[1])
    assert (shown["files"], shown["deleted"]) == (2, 1)
