"""What doctor has seen, in a file and back."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from nsqtools.checksum import sealed, unsealed
from nsqtools.engine.doctor.findings import fault
from nsqtools.engine.doctor.snapshot import SavedSnapshot, load, save
from nsqtools.errors import ConfigError, OutputError
from nsqtools.net.http.replies import ChannelStats, NsqdStats
from tests.support.damage import cut, flipped
from tests.support.staging import events

CHANNEL = ChannelStats("c", 5, 4, 3, 2, 9, 8, 7, 1, paused=True)
STATS = NsqdStats("1.3.0", "OK", 7, (events(CHANNEL, published=9, depth=6, paused=True),))
SEEN = SavedSnapshot(
    1000.5,
    {"a:4150": STATS},
    {"b:4150": "b:4151: connection refused"},
    {"l:4161": "l:4161: connection refused"},
    (fault("NSQ036", "text", "fix", topic="events", channel="c"),),
    {"a:4150": (999.5, 1001.0)},
    "a boot",
    77.5,
)


def test_a_snapshot_is_read_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    path.write_text("the one before")
    save(str(path), SEEN)
    assert load(str(path)) == SEEN
    assert os.listdir(tmp_path) == ["seen.json"]
    samples = SEEN.samples()
    assert samples["b:4150"] is None
    assert samples["a:4150"]
    assert samples["a:4150"].at == 1000.5
    assert samples["a:4150"].counters["events", "c"].held == 10


def test_a_link_is_followed_and_its_file_keeps_its_permissions(tmp_path: Path) -> None:
    path, link = tmp_path / "seen.json", tmp_path / "latest.json"
    path.touch(0o600)
    link.symlink_to(path)
    save(str(link), SEEN)
    assert load(str(path)) == SEEN
    assert (link.is_symlink(), path.stat().st_mode & 0o777) == (True, 0o600)


def test_a_file_never_takes_the_place_of_a_device_or_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match=f"^{pipe}: not a regular file$"):
        save(str(pipe), SEEN)
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version is 2"),
        ({"format": "other"}, "format"),
        *(({"at": at}, "'at'") for at in ("now", True, -1, math.nan, math.inf, 1e12, 10**400)),
        ({"nsqds": {"a": {"topics": [{"topic_name": "no name"}]}}}, "no name"),
        ({"nsqds": []}, "'nsqds'"),
        ({"silent_nsqds": {"a": 1}}, "silent_nsqds"),
        ({"findings": [{}]}, "finding"),
        ({"findings": None}, "findings"),
        *(
            ({"times": {"a": span}}, "'times'")
            for span in (5, [], [5], [5, "6"], [5, -1], [5, 1e12])
        ),
        ({"times": []}, "'times'"),
        ({"boot": 5}, "'boot'"),
        ({"uptime": "5"}, "'uptime'"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = tmp_path / "seen.json"
    save(str(path), SEEN)
    path.write_bytes(sealed(unsealed(path.read_bytes()) | change))
    with pytest.raises(ConfigError, match=said) as raised:
        load(str(path))
    assert str(raised.value).startswith(f"{path}: ")


def test_a_file_of_version_0_3_is_read(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    save(str(path), SEEN)
    old = unsealed(path.read_bytes())
    for name in ("times", "boot", "uptime"):
        del old[name]
    path.write_text(json.dumps(old, separators=(",", ":")) + "\n")
    assert load(str(path)) == replace(SEEN, times={}, boot="", uptime=0.0)


def test_damage_to_any_byte_is_named(tmp_path: Path) -> None:
    """No flip of a bit and no cut is read as another snapshot."""
    path = tmp_path / "seen.json"
    save(str(path), SavedSnapshot(1.5, {"a:4150": NsqdStats()}, times={"a:4150": (0.5, 2.5)}))
    whole = path.read_bytes()
    for _, data in (*flipped(whole[:-1]), *cut(whole[:-1])):
        path.write_bytes(data)
        with pytest.raises(ConfigError):
            load(str(path))


def test_a_file_too_large_to_read_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "seen.json"
    save(str(path), SEEN)
    before = path.read_bytes()
    monkeypatch.setattr("nsqtools.engine.doctor.snapshot._MAX_BYTES", len(before) - 1)
    with pytest.raises(OutputError, match="too large to save"):
        save(str(path), SEEN)
    assert (os.listdir(tmp_path), path.read_bytes()) == (["seen.json"], before)
    with pytest.raises(ConfigError, match="too large to read"):
        load(str(path))


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100_000, b"[]", None])
def test_a_file_of_anything_else_is_named(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "seen.json"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError) as raised:
        load(str(path))
    assert str(raised.value).startswith(f"{path}: ")
