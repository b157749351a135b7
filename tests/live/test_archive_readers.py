"""Archives as other programs read them: DuckDB and pyarrow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support import archives
from tests.support.servers import at, drained

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import Nsqd

COUNT = 1000


def archive(
    cli: Cli, nsqd: Nsqd, topic: str, folder: Path, bodies: Sequence[bytes], *options: str
) -> list[Path]:
    """Have the bodies archived in several files, each of several members."""
    nsqd.create(topic, "c")
    nsqd.publish(topic, bodies)
    ended = cli(
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(folder)),
        *("--rotate-size", "30KB", "--max-in-flight", "200", *options),
        *("-n", str(len(bodies)), *at(nsqd)),
    )
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", "")
    assert drained(nsqd, topic, "c")
    assert archives.leftovers(folder) == []
    files = archives.published(folder)
    assert len(files) > 2
    return files


def events(topic: str) -> list[dict[str, Any]]:
    return [
        {"n": number, "name": f'\N{SNOWMAN} \\ " {number}\n', "topic": topic}
        for number in range(COUNT)
    ]


def test_duckdb_and_pyarrow_read_json_lines(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    import duckdb
    import pyarrow as pa
    import pyarrow.json as pj

    bodies = [json.dumps(event).encode() for event in events(topic)]
    how = ("--format", "json", "--compress", "zstd")
    name = ("--filename-format", "<TOPIC><REV>.json")
    files = archive(nsqtools_cli, nsqd, topic, tmp_path / "a", bodies, *how, *name)
    with duckdb.connect() as db:
        query = "select count(*), count(distinct id), min(attempts), sum(cast(body->>'n' as int))"
        db.execute(f"{query} from read_json(?)", [[str(path) for path in files]])
        assert db.fetchone() == (COUNT, COUNT, 1, sum(range(COUNT)))
        db.execute("select body->>'name' from read_json(?)", [[str(path) for path in files]])
        names = [row[0] for row in db.fetchall()]
    assert sorted(names) == sorted(event["name"] for event in events(topic))
    tables = []
    for path in files:
        with pa.input_stream(str(path), compression="zstd") as file:
            tables.append(pj.read_json(file))
    table = pa.concat_tables(tables)
    assert table.num_rows == COUNT
    assert sorted(table["body"].to_pylist()) == sorted(body.decode() for body in bodies)


def test_duckdb_finds_the_partitions_of_event_time(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    import duckdb

    nsqd.create(topic, "c")
    nsqd.publish(topic, archives.bodies(range(COUNT)))
    ended = nsqtools_cli(
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(tmp_path / "lake")),
        *("--format", "json", "--gzip", "--name-by", "message", "--utc"),
        *("--filename-format", "<DATETIME>/<TOPIC><REV>.json"),
        *("--datetime-format", "dt=%Y-%m-%d/hour=%H", "-n", str(COUNT), *at(nsqd)),
    )
    assert (ended.code, ended.stderr) == (0, "")
    with duckdb.connect() as db:
        db.execute(
            "select count(*), bool_and(dt = cast(make_timestamp_ns(timestamp) as date)) "
            "from read_json(?, hive_partitioning = true)",
            [str(tmp_path / "lake" / "**" / "*.json.gz")],
        )
        assert db.fetchone() == (COUNT, True)
