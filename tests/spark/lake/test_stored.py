"""Files of archives in an object store: which are inputs, and that they are read as local ones."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from opendal import Operator

from nsqtools import stores
from nsqtools.errors import ConfigError, RecordError
from nsqtools.records.layout import Layout
from nsqtools.spark.lake.archives import INPUT_SCHEMA, read
from nsqtools.spark.lake.inputs import check_unchanged, find, open_file
from nsqtools.stores.interface import Store
from nsqtools.stores.objectstore import ObjectStore
from tests.support.lakes import JSON, RAW, sent, to_file, to_parquet
from tests.support.streaming import numbered

ROOT = "s3a://bucket/"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of files of their own, which are anywhere but where its URL says."""
    operator = Operator("fs", root=str(tmp_path / "bucket"))
    made = ObjectStore(ROOT, operator, operator)
    monkeypatch.setattr(stores, "_whole_store", lambda _: made)
    return made


@pytest.fixture
def put(store: Store, tmp_path: Path) -> Callable[[str, Path], str]:
    """Uploads a file; its URL."""

    def upload(path: str, file: Path) -> str:
        store.put(path, file.read_bytes())
        return ROOT + path

    return upload


def paths(*places: str, layout: Layout | None = RAW, exclude: tuple[str, ...] = ()) -> list[str]:
    found = find([ROOT + each for each in places], layout, exclude=exclude)
    return [each.path.removeprefix(ROOT) for each in found]


def test_places_and_patterns_are_what_is_in_the_store(
    put: Callable[[str, Path], str], tmp_path: Path
) -> None:
    lake, log = to_parquet(tmp_path / "x.parquet", sent(b"a")), tmp_path / "x.log"
    to_file(log, sent(b"a"), RAW)
    days = [f"lake/date=2026-11-{day}/hour=09/part-0.parquet" for day in (20, 21, 22)]
    for path in days:
        put(path, lake)
    for path in (
        *("logs/a.log", "logs/b.log.part", "lake/_nsqtools/compact/0000000001"),
        *("lake/.hidden/part-0.parquet", "out/part-0.parquet"),
    ):
        put(path, log)
    assert paths("", exclude=(f"{ROOT}out",)) == [*days, "logs/a.log"]
    assert paths("lake", "logs/") == [*days, "logs/a.log"]
    assert paths("lake/date=2026-11-2[01]", "l*s/a.*") == [*days[:2], "logs/a.log"]
    assert paths("lake/date=2026-11-{21,22}/hour=*/*.parquet") == days[1:]
    assert paths("lake/*") == days
    assert paths("lake/", exclude=(f"{ROOT}lake/date=2026-11-20",)) == days[1:]
    for place in ("none", "la?", "logs/b.log.part", "lake/_nsqtools/none*"):
        with pytest.raises(ConfigError, match="s3a://bucket/"):
            paths(place)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_files_are_read_in_pieces_like_local_ones(
    put: Callable[[str, Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    messages = sent(*numbered(5000))
    url = put(f"x.json{suffix}", to_file(tmp_path / f"x.json{suffix}", messages, JSON))
    [found] = find([url], JSON)
    monkeypatch.setattr(open_file, "__defaults__", (1 << 12,))
    table = pa.Table.from_batches(read(found), INPUT_SCHEMA)
    assert table["body"].to_pylist() == [each.body for each in messages]
    assert set(table["source_file"].to_pylist()) == {url}
    local = to_parquet(tmp_path / "x.parquet", messages)
    with open_file(put("x.parquet", local), 1000) as file:
        assert pa.parquet.read_table(file).equals(pa.parquet.ParquetFile(local).read())


def test_a_file_that_was_replaced_or_deleted_is_refused(
    put: Callable[[str, Path], str], store: Store, tmp_path: Path
) -> None:
    small = to_file(tmp_path / "x.log", sent(b"a"), RAW)
    url = put("x.log", small)
    found = find([url], RAW)
    check_unchanged(found)
    put("x.log", to_file(tmp_path / "y.log", sent(b"a", b"b"), RAW))
    with pytest.raises(RecordError, match=url):
        check_unchanged(found)
    store.delete("x.log")
    with pytest.raises(RecordError, match=url):
        check_unchanged(found)
