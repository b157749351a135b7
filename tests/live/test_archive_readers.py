"""Archives as other programs read them: DuckDB and pyarrow."""

import json
from collections.abc import Sequence

from tests.support import archives
from tests.support.archives import Archiver

COUNT = 1000


def archive(archiver: Archiver, bodies: Sequence[bytes], *options: str) -> list[str]:
    """Have the bodies archived in several files, each of several members."""
    archiver.publish(bodies)
    several = ("--rotate-size", "30KB", "--max-in-flight", "200")
    ended = archiver.take(len(bodies), "--format", "json", *several, *options)
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", "")
    assert archiver.is_drained
    assert archives.leftovers(archiver.output) == []
    assert len(archiver.files) > 2
    return [str(path) for path in archiver.files]


def test_duckdb_and_pyarrow_read_json_lines(archiver: Archiver) -> None:
    import duckdb
    import pyarrow as pa
    import pyarrow.json as pj

    names = [f'\N{SNOWMAN} \\ " {number}\n' for number in range(COUNT)]
    bodies = [json.dumps({"n": number, "name": name}) for number, name in enumerate(names)]
    how = ("--compress", "zstd", "--filename-format", "<TOPIC><REV>.json")
    files = archive(archiver, [body.encode() for body in bodies], *how)
    with duckdb.connect() as db:
        query = "select count(*), count(distinct id), min(attempts), sum(cast(body->>'n' as int))"
        db.execute(f"{query} from read_json(?)", [files])
        assert db.fetchone() == (COUNT, COUNT, 1, sum(range(COUNT)))
        db.execute("select body->>'name' from read_json(?)", [files])
        assert sorted(row[0] for row in db.fetchall()) == sorted(names)
    tables = []
    for path in files:
        with pa.input_stream(path, compression="zstd") as file:
            tables.append(pj.read_json(file))
    assert sorted(pa.concat_tables(tables)["body"].to_pylist()) == sorted(bodies)


def test_duckdb_finds_the_partitions_of_event_time(archiver: Archiver) -> None:
    import duckdb

    names = ("<DATETIME>/<TOPIC><REV>.json", "--datetime-format", "dt=%Y-%m-%d/hour=%H", "--utc")
    how = ("--gzip", "--name-by", "message", "--filename-format", *names)
    archive(archiver, archives.bodies(range(COUNT)), *how)
    with duckdb.connect() as db:
        db.execute(
            "select count(*), bool_and(dt = cast(make_timestamp_ns(timestamp) as date)) "
            "from read_json(?, hive_partitioning = true)",
            [str(archiver.output / "**" / "*.json.gz")],
        )
        assert db.fetchone() == (COUNT, True)
