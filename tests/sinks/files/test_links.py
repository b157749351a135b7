"""Another user, who may write to the directories, replaces folders by links at any moment."""

import itertools
import os
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from nsqtools.errors import OutputError
from nsqtools.sinks.files.aftercare import Manifest
from nsqtools.sinks.files.rules import Rules
from nsqtools.sinks.files.topicarchive import Arrival
from nsqtools.sinks.files.uploads import Uploads
from tests.support.archiving import START, batch, completed, give_away, make_rules
from tests.support.sinking import make_archives

NAMES = [f"events-00000{number}.log" for number in range(9)]
CALLS = ("open", "lstat", "stat", "mkdir", "link", "rename", "unlink", "rmdir", "fsync", "listdir")


class Rival:
    """Another user, who renames a folder, and leaves a link to a place of his choice."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.away = folder.with_name(f"{folder.name}.away")
        self.elsewhere = folder.parent.parent / "elsewhere"
        self.elsewhere.mkdir()
        for name in (*NAMES, *(f"{name}.part" for name in NAMES)):
            (self.elsewhere / name).write_bytes(b"precious")
        self.before = self.found()
        self.link = folder.parent.parent / "link"
        self.link.symlink_to(self.elsewhere)
        give_away(self.link, monkeypatch)
        self._real = {name: getattr(os, name) for name in CALLS}

    def found(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.elsewhere.rglob("*")}

    def swap(self) -> None:
        """Put the link in the place of the folder, or where it is to be."""
        for source, target in ((self.folder, self.away), (self.link, self.folder)):
            with suppress(OSError):
                self._real["rename"](source, target)

    def undo(self) -> None:
        if os.path.islink(self.folder):
            self._real["rename"](self.folder, self.link)
        with suppress(OSError):
            self._real["rename"](self.away, self.folder)

    def after(self, at: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
        """Swap after this call; returns whether there were as many."""
        number = itertools.count()

        def call(*args: Any, real: Any, **options: Any) -> Any:
            try:
                return real(*args, **options)
            finally:
                if next(number) == at:
                    self.swap()

        def hooked(real: Any) -> Any:
            return lambda *args, **options: call(*args, real=real, **options)

        for name in CALLS:
            monkeypatch.setattr(os, name, hooked(self._real[name]))
        return lambda: next(number) > at


def archived(rules: Rules, undo: Callable[[], object] = bool) -> list[bytes]:
    """Archive four messages, each until it is safe; undo is called after each failure."""
    safe: list[bytes] = []
    archives = make_archives(rules)
    archives.lock("events")
    try:
        archives.open()
    except OSError:  # the manifest is looked at first
        undo()
        archives.open()
    made = archives.topic(
        "events", lambda parts: safe.extend(m.body for _, each in parts for m in each), now=0.0
    )
    for number in range(4):
        body = b"%d" % number
        for _ in range(3):
            arrivals = [Arrival(START, batch(body))] if body not in safe else []
            try:
                made.step(arrivals, now=0.0, wall=START, ending="reopen" if number % 2 else "")
            except (OSError, OutputError):
                undo()
    undo()
    made.step((), now=0.0, wall=START, ending="close")
    made.release()
    archives.close()
    archives.unlock()
    return safe


@pytest.mark.parametrize("folder", ["in", ".nsqtools"])
@pytest.mark.parametrize("name", ["in/<TOPIC><REV>.log", "in/<TOPIC>.log"])
def test_nothing_is_made_changed_or_removed_behind_a_link_that_comes_after_any_call(
    name: str, folder: str, tmp_path: Path, rng: random.Random, full: bool
) -> None:
    step = 4 if full else 30
    for at in itertools.count(rng.randrange(step), step):
        base = tmp_path / str(at)
        base.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            rules = make_rules(base, filename_format=name, manifest="in/m", keep=1)
            rival = Rival(base / "out" / folder, patch)
            is_enough = rival.after(at, patch)
            safe = archived(rules, rival.undo)
        rival.undo()
        assert rival.found() == rival.before, at
        assert set(safe) == {b"0", b"1", b"2", b"3"}
        files = {path.name: path.read_bytes() for path in (base / "out").glob("in*/*.log")}
        assert files[max(files)].split()[-1:] == [b"3"], at
        if not is_enough():
            break
    assert at > 100


@pytest.mark.parametrize("is_known", [True, False])
def test_a_manifest_is_no_link_of_another_user_and_may_be_one_of_ours(
    is_known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    folder.mkdir()
    manifest = Manifest(str(folder / "m"), str(folder))
    (folder / "m").symlink_to(elsewhere)
    if is_known:
        manifest.append(completed(folder / NAMES[0]))
    before = elsewhere.read_bytes() if is_known else None
    give_away(folder / "m", monkeypatch)
    for call in (
        manifest.check,
        lambda: manifest.has(str(folder / NAMES[0]), sha256=""),
        lambda: manifest.append(completed(folder / NAMES[1])),
    ):
        with pytest.raises(OSError, match="another user"):
            call()
    assert (elsewhere.read_bytes() if elsewhere.exists() else None) == before


def test_an_upload_does_not_read_behind_such_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out" / "in").mkdir(parents=True)
    rival = Rival(tmp_path / "out" / "in", monkeypatch)
    rival.swap()
    uploads = Uploads(str(tmp_path / "remote"), str(tmp_path / "out"))
    file = completed(rival.folder / NAMES[0], name=f"in/{NAMES[0]}")
    with pytest.raises(OSError, match="another user"):
        uploads.attempt(file)
    assert not list(tmp_path.rglob("remote/**/*.log"))


def test_a_rival_that_is_never_tired_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    rival = Rival(tmp_path / "out" / "in", monkeypatch)
    rival.folder.mkdir(parents=True)
    end = monotonic() + (8 if full else 0.2)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            rival.swap()
            rival.undo()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        archives = make_archives(make_rules(tmp_path, filename_format="in/<TOPIC><REV>.log"))
        archives.lock("events")
        archives.open()
        made = archives.topic("events", bool, now=0.0)
        while monotonic() < end:
            with suppress(OSError, OutputError):
                made.step([Arrival(START, batch(b"one"))], now=0.0, wall=START, ending="reopen")
    finally:
        is_over.set()
        thread.join()
    made.release()
    archives.unlock()
    assert rival.found() == rival.before
