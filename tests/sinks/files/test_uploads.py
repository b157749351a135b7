"""Uploads: when a file is uploaded again, what is said of that, and how a run ends with them."""

import errno
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import BinaryIO

import pytest

from nsqtools.config.files import ArchiveOptions
from nsqtools.errors import ConfigError
from nsqtools.sinks.files import uploads as uploads_module
from nsqtools.sinks.files.rules import Rules
from nsqtools.sinks.files.uploads import Uploads
from nsqtools.stores.interface import UNNAMED
from nsqtools.stores.mounted import LocalStore
from tests.support.archiving import completed
from tests.support.eventually import eventually

WAIT = 60.0
NEVER = (3600.0,)
"""A second attempt that no test lives to see."""
DOWN = OSError(errno.EIO, "the store is down")


class Shop(LocalStore):
    """A store whose requests first do what the test wants."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.first: Callable[[str], object] = str

    def upload(self, file: BinaryIO, path: str, *, moved: Callable[[], object] = bool) -> None:
        self.first(path)
        super().upload(file, path, moved=moved)

    def fail(self, _: str) -> None:
        raise DOWN


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    made = Shop(str(tmp_path / "shop"))
    monkeypatch.setattr(uploads_module, "open_store", lambda *_: made)
    return made


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The level of each line that a user sees."""
    return lambda: [each.levelname for each in caplog.records if each.levelno > logging.INFO]


def begin(
    tmp_path: Path, *names: str, retries: Sequence[float] = NEVER
) -> tuple[Uploads, list[str]]:
    """Uploads of files of these names, and the names of those that are done."""
    uploads, done = Uploads("any", str(tmp_path), retries=retries), list[str]()
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"one\n")
        uploads.submit(completed(path, name=name), partial(done.append, name))
    return uploads, done


def there(shop: Shop) -> dict[str, bytes]:
    return {each.path: shop.get(each.path) for each in shop.files()}


def test_several_are_uploaded_at_a_time_and_what_killed_uploads_left_is_removed(
    shop: Shop, tmp_path: Path
) -> None:
    together = threading.Barrier(uploads_module._THREADS)
    shop.first = lambda _: together.wait(WAIT)
    shop.put(f"hour=0/{UNNAMED}left", b"half")
    names = [f"hour={number}/a.log" for number in range(2 * uploads_module._THREADS)]
    uploads, done = begin(tmp_path, *names)
    uploads.close()
    place = Path(shop.place)
    left = [str(each.relative_to(place)) for each in place.rglob("*") if each.is_file()]
    assert sorted(done) == sorted(left) == names


def test_a_store_that_is_down_is_tried_again_and_each_change_is_said_once(
    shop: Shop, tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    tried = Counter[str]()

    def note_and_fail(path: str) -> None:
        tried[path] += 1
        raise DOWN

    shop.first = note_and_fail
    uploads, done = begin(tmp_path, *"abc", retries=(0.0,))
    eventually(lambda: min(tried[name] for name in "abc") > 1)
    shop.first = str
    eventually(lambda: len(done) == 3)
    uploads.close()
    assert said() == ["WARNING", "WARNING"]
    assert len(there(shop)) == 3


@pytest.mark.parametrize("other", [b"two\n", b"longer\n", b""])
def test_another_file_of_that_name_stays_and_is_an_error_said_once(
    shop: Shop, tmp_path: Path, said: Callable[[], list[str]], other: bytes
) -> None:
    shop.put("a", other)
    uploads, done = begin(tmp_path, "a", "b")
    eventually(lambda: said() and done)
    uploads.close()
    assert (done, said()) == (["b"], ["ERROR"])
    assert there(shop) == {"a": other, "b": b"one\n"}
    assert (tmp_path / "a").read_bytes() == b"one\n"


def test_the_end_of_a_run_waits_for_uploads_but_not_for_a_store_that_is_down(
    shop: Shop, tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    names = [str(number) for number in range(100)]
    shop.first = shop.fail
    uploads, done = begin(tmp_path, *names, retries=(0.0, *NEVER))
    eventually(said)
    eventually(lambda: uploads.rest_until > monotonic() + 60)
    uploads.close()
    assert (done, said()) == ([], ["WARNING"])

    shop.first = str
    uploads, done = begin(tmp_path, *names)
    uploads.close()
    assert sorted(done) == sorted(names)


def test_what_hangs_at_the_end_is_left_and_settles_nothing_later(
    shop: Shop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[], list[str]],
) -> None:
    answer = threading.Event()
    shop.first = lambda _: answer.wait()
    monkeypatch.setattr(uploads_module, "_LONG_PATIENCE", 0.1)
    uploads, done = begin(tmp_path, "a", "b")
    uploads.close()
    assert said() == ["WARNING"]
    answer.set()
    for thread in uploads.threads:
        thread.join(WAIT)
    assert done == []
    assert there(shop) == dict.fromkeys("ab", b"one\n")


def test_uploaded_files_must_have_names_of_their_own() -> None:
    """Without ``<REV>`` a completed file is continued, and the store has its beginning."""
    options = ArchiveOptions(upload="s3://b/x", filename_format="<TOPIC>.log")
    with pytest.raises(ConfigError, match="--upload"):
        Rules.of(options, 1 << 20)


def test_files_are_not_uploaded_to_where_they_are(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("out")
    for exists in (False, True):
        if exists:
            (tmp_path / "out").mkdir()
        for place in (f"file://{tmp_path}/out", f"{tmp_path}/x/../out/", str(link)):
            with pytest.raises(ConfigError, match="--output-dir"):
                Uploads(place, str(tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == []
