"""The commands of ``pipeline``, up to the start of Spark."""

# size: it has the cases of seven commands

import json
import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from nsqtools.cli.commands.pipeline import query
from nsqtools.cli.commands.pipeline.preflight import check_sink
from nsqtools.cli.commands.pipeline.run import Run
from nsqtools.cli.commands.pipeline.sources import source_options
from nsqtools.cli.commands.pipeline.stream import Places
from nsqtools.cli.commands.pipeline.views import StepView, StreamView
from nsqtools.config.lake import StreamConfig, StreamOptions, StreamSourceOptions
from nsqtools.config.units import parse_time
from nsqtools.errors import ConfigError, UnreachableError
from nsqtools.names import Address
from nsqtools.spark.jobs import replay
from nsqtools.spark.jobs.checkpoint import Checkpoint, stamp_of
from nsqtools.spark.jobs.guard import only_one
from nsqtools.spark.jobs.progress import Progress
from nsqtools.spark.source.plans import BatchPlan, Quota
from nsqtools.spark.source.sourceoptions import parse_source
from nsqtools.spark.sparksession import open_session
from nsqtools.spark.staging.ledger import Ledger
from nsqtools.spark.staging.log import EntryKind, PartitionLog
from nsqtools.stores import open_store
from tests.support.process import Called
from tests.support.servers import Nsqd, free_port
from tests.support.spark import needs_spark

ARCHIVE = ("archive", "--topic", "t", "--channel", "c", "--output", "lake")
SQL = ("sql", "--query", "SELECT * FROM nsq")
ASK = (*SQL, "--topic", "t", "--channel", "c")
COMPACT = ("compact", "--input", "lake", "--output", "few")
REPLAY = ("replay", "--input", "lake", "--topic", "t")


class TestOptions:
    def made(
        self, config: StreamConfig, master: str = "local", continuous: bool = False, **source: Any
    ) -> dict[str, str]:
        return source_options(
            StreamSourceOptions(topic=("t", "u"), channel="c", **source),
            StreamOptions(max_per_trigger=7, connections=2, continuous=continuous),
            config,
            master=master,
            staging="/s",
        )

    def test_what_the_source_gets_is_what_was_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        config = StreamConfig(
            max_in_flight=5,
            max_in_flight_bytes=1000,
            msg_timeout=90.5,
            tls_root_ca_file="ca.pem",
            deflate=True,
            client_id="me",
            auth_secret_file="secret",
        )
        tcp, http = ("a:1", "[::1]:2"), ("a:3", "http://b/x")
        settings = parse_source(self.made(config, nsqd_tcp_address=tcp, nsqd_http_address=http))
        assert (settings.topics, settings.channel, settings.staging) == (("t", "u"), "c", "/s")
        assert [each.tcp for each in settings.nsqds] == [Address("a", 1), Address("::1", 2)]
        assert [each.http for each in settings.nsqds] == list(http)
        assert (settings.max_messages, settings.connections, settings.max_in_flight) == (7, 2, 5)
        made = settings.config
        assert (made.msg_timeout, made.max_in_flight_bytes, made.deflate) == (90.5, 1000, True)
        assert made.tls_root_ca_file == str(tmp_path / "ca.pem")
        assert made.auth_secret_file == str(tmp_path / "secret")
        assert made.client_id == "me"
        assert not settings.wait_for_servers
        assert parse_source(self.made(config, continuous=True)).wait_for_servers

    def test_times_are_in_utc_unless_they_say_otherwise(self) -> None:
        assert parse_time("2026-11-21T09:00") == parse_time("2026-11-21 10:00+01:00")
        assert parse_time("2026-11-22") - parse_time("2026-11-21T23") == 3600 * 10**9
        assert parse_time("36h", 200_000.5) == (200_000_500 - 36 * 3_600_000) * 10**6
        for text in ("yesterday", "09:00", "2026-13-01"):
            with pytest.raises(ConfigError, match=text):
                parse_time(text)

    def test_a_secret_goes_to_executors_of_this_machine_by_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NSQTOOLS_PIPELINE_AUTH_SECRET", "")
        made = self.made(StreamConfig(auth_secret="s3cret"))
        assert "s3cret" not in json.dumps(made)
        assert os.environ[parse_source(made).auth_secret_env] == "s3cret"
        with pytest.raises(ConfigError, match="--auth-secret-file"):
            self.made(StreamConfig(auth_secret="s3cret"), master="spark://a:7077")
        made = self.made(StreamConfig(auth_secret_env="MINE"), master="yarn")
        assert parse_source(made).auth_secret_env == "MINE"

    def test_state_is_in_the_output_unless_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert Places.of(StreamOptions(), "lake", "") == (
            f"{tmp_path}/lake",
            f"{tmp_path}/lake/_nsqtools/checkpoint",
            f"{tmp_path}/lake/_nsqtools/staging",
        )
        given = StreamOptions(checkpoint="hdfs://n/c", staging="/s")
        assert Places.of(given, "s3a://b/lake/", "") == ("s3a://b/lake/", "hdfs://n/c", "/s")
        assert (
            Places.of(StreamOptions(), "hdfs://n/l", "").staging == "hdfs://n/l/_nsqtools/staging"
        )
        assert Places.of(given, "lake.events", "prod") == ("", "hdfs://n/c", "/s")
        with pytest.raises(ConfigError, match="--checkpoint is required"):
            Places.of(StreamOptions(), "lake.events", "prod")


class Pipeline:
    """Runs commands of ``pipeline`` in this process, with a Spark that does as a test says."""

    def __init__(
        self,
        nsqtools: Called,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        folder: Path,
    ) -> None:
        self._nsqtools, self._monkeypatch, self._caplog = nsqtools, monkeypatch, caplog
        self.folder = folder
        self.checkpoint = folder / "lake/_nsqtools/checkpoint"
        self.unknown: list[str] = []
        """Servers that do not answer at the end of a run."""

        async def silent(_: object) -> list[str]:
            return self.unknown

        self.patch("cli.commands.pipeline.stream.silent", silent)

    def __call__(self, *args: str) -> tuple[int, str, str]:
        self._caplog.clear()
        return self._nsqtools("pipeline", *args)

    @property
    def warnings(self) -> list[str]:
        """Those of the last command."""
        return [each.message for each in self._caplog.records if each.levelname == "WARNING"]

    def patch(self, name: str, value: object) -> None:
        self._monkeypatch.setattr(f"nsqtools.{name}", value)

    def waits(self, count: int | Exception) -> None:
        """So many messages wait in nsqd, or that is what asking for them raises."""

        async def waiting(*_: object, creates: bool = False) -> int:
            if isinstance(count, Exception):
                raise count
            return count

        self.patch("cli.commands.pipeline.stream.waiting", waiting)
        self.patch("cli.commands.pipeline.jobs.check_sink", waiting)

    def spark(self, start: Callable[..., Any] | None = None) -> None:
        """A session is what ``start`` gives; without it no test may reach Spark."""

        def unwanted(*_: object, **__: object) -> None:
            pytest.fail("Spark was started")

        self.patch("cli.commands.pipeline.run.open_session", start or unwanted)
        for name in ("ship", "check_executors"):
            self.patch(f"cli.commands.pipeline.run.{name}", lambda *_: None)


@pytest.fixture
def pipeline(
    nsqtools: Called,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> Pipeline:
    needs_spark("what commands of the pipeline say before they start it")
    made = Pipeline(nsqtools, monkeypatch, caplog, tmp_path)
    made.spark()
    return made


def session(*_: object, **__: object) -> Any:
    return nullcontext()


def started(*_: object, **__: object) -> None:
    raise ConfigError("Spark is started")


class Interrupted:
    """A signal that comes to a run; it is heard before ``signal`` returns."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.number = signal.SIGTERM
        self._known = threading.Event()
        told = Run._interrupted

        def interrupted(run: Run) -> None:
            told(run)
            self._known.set()

        pipeline.patch("cli.commands.pipeline.run.Run._interrupted", interrupted)

    def signal(self, *_: object, **__: object) -> Any:
        self._known.clear()
        os.kill(os.getpid(), self.number)
        assert self._known.wait(60)
        return nullcontext()


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        (COMPACT, (1, 130)),
        ((*REPLAY, "--where", "true"), (1, 130)),
        ((*SQL, "--input", "lake"), (1, 130)),
        ((*SQL, "--input", "lake", "--explain"), (1, 130)),
        (ARCHIVE, (0, 0)),
    ],
)
def test_a_job_that_was_stopped_while_spark_started_is_not_done_unless_it_is_a_stream(
    pipeline: Pipeline, command: tuple[str, ...], codes: tuple[int, int]
) -> None:
    (pipeline.folder / "lake").mkdir()
    pipeline.waits(1)
    interrupted = Interrupted(pipeline)
    pipeline.spark(interrupted.signal)
    for interrupted.number, code in zip((signal.SIGTERM, signal.SIGINT), codes, strict=True):
        assert pipeline(*command)[:2] == (code, "")
        assert len(pipeline.warnings) == (code != 0)


@pytest.mark.parametrize("command", [COMPACT, (*REPLAY, "--where", "true")])
def test_a_terminal_shows_that_spark_is_started_and_that_a_signal_was_heard(
    pipeline: Pipeline, command: tuple[str, ...]
) -> None:
    (pipeline.folder / "lake").mkdir()
    lines: list[Callable[[], str]] = []
    shown: list[str] = []

    def progress(line: Callable[[], str], **_: object) -> nullcontext[None]:
        lines.append(line)
        shown.append(line())
        return nullcontext()

    pipeline.waits(1)
    pipeline.patch("cli.commands.pipeline.run.progress", progress)
    pipeline.spark(Interrupted(pipeline).signal)
    pipeline(*command)
    shown.append(lines[-1]())
    assert shown[-2:] == ["starting Spark", "finishing the current step, Ctrl-C again to end now"]


@pytest.mark.parametrize(
    ("done", "code", "told", "warned"),
    [
        ({}, 1, ["0 messages published", "2,000 left"], "2,000"),
        (
            {"published": 7, "before": 2, "again": 1, "empty": 1},
            0,
            ["5 messages published", "2 by earlier runs", "1,992 left", "1 empty"],
            "1 message",
        ),
        (
            {"published": 2000, "again": 2, "stopped": False},
            0,
            ["2,000 messages published\n"],
            "2 messages",
        ),
    ],
)
def test_a_replay_says_how_many_it_published_and_how_many_are_left(
    pipeline: Pipeline, done: dict[str, Any], code: int, told: list[str], warned: str
) -> None:
    (pipeline.folder / "lake").mkdir()
    pipeline.waits(0)
    pipeline.patch("spark.jobs.replay.plan", lambda _: True)
    replayed = replay.Replayed(**{"rows": 2000, "stopped": True, **done})
    pipeline.patch("spark.jobs.replay.publish", lambda *_: replayed)
    ended, _, err = pipeline(*REPLAY, "-v")
    assert (ended, [each for each in told if each not in err]) == (code, [])
    (warning,) = pipeline.warnings
    assert warned in warning


def test_a_first_run_that_finds_nothing_ends_without_spark_and_leaves_nothing(
    pipeline: Pipeline,
) -> None:
    pipeline.waits(0)
    for command in (ARCHIVE, (*ASK, "--output", "lake")):
        assert pipeline(*command) == (0, "", "")
        assert list(pipeline.folder.iterdir()) == []


class TestConsole:
    """Queries of topics to the console, without a checkpoint."""

    @pytest.mark.parametrize("takes", [0, 1, 2])
    def test_rows_in_a_pipe_are_shown_once_their_reader_has_them_and_is_still_there(
        self, takes: int
    ) -> None:
        """A reader that takes nothing, one that takes all and goes, and one that stays."""
        reading, writing = os.pipe()
        before = os.dup(1)
        os.dup2(writing, 1)
        os.close(writing)
        try:
            os.write(1, b"rows")
            if takes:
                os.read(reading, 9)
            if takes < 2:
                threading.Timer(0.01, os.close, (reading,)).start()
            with pytest.raises(BrokenPipeError) if takes < 2 else nullcontext():
                query._await_reader()
        finally:
            os.dup2(before, 1)
            os.close(before)
            if takes == 2:
                os.close(reading)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (None, ""),
            (bytearray(b"a\xff"), "a\\xff"),
            (datetime(2026, 11, 21, 9, tzinfo=UTC), "2026-11-21T09:00:00Z"),
            (date(2026, 11, 21), "2026-11-21"),
            (True, "true"),
            (1.5, "1.5"),
            ([(b"a", None), [True, 7]], '[["a", null], [true, 7]]'),
            ({date(2026, 11, 21): {"b": [b"c"]}}, '{"2026-11-21": {"b": ["c"]}}'),
        ],
    )
    def test_a_value_is_text_and_one_of_several_parts_is_json(
        self, value: object, text: str
    ) -> None:
        assert query._text(value) == text

    @pytest.mark.parametrize("staging", [(), ("--staging", "given")])
    def test_a_channel_has_a_place_for_what_was_not_shown_and_one_run_has_it(
        self, pipeline: Pipeline, staging: tuple[str, ...]
    ) -> None:
        found: list[Path] = []
        command: tuple[str, ...] = ()
        root = Path("given" if staging else "xdg/nsqtools")

        def locked() -> list[Path]:
            return [each.parent for each in root.glob("sql-*/lock")]

        async def note(*_: object, **__: object) -> int:
            found.extend(locked())
            assert pipeline(*command)[0] == 75
            return 0

        pipeline.patch("cli.commands.pipeline.stream.waiting", note)
        other = (*SQL, "--topic", "t", "--channel", "d")
        for asked in (ASK, (*ASK, "--query", "SELECT 2 FROM nsq"), other):
            command = (*asked, *staging)
            assert pipeline(*command)[0] == 0
        assert len(found) == 3
        assert found[0] == found[1] != found[2]
        assert not any(each.exists() for each in found)

    def test_what_was_not_shown_is_work_and_is_told_of_until_it_is_shown(
        self, pipeline: Pipeline
    ) -> None:
        place: list[str] = []

        def watched(held: str, flag: str) -> Any:
            place.append(held)
            return only_one(held, flag)

        pipeline.waits(0)
        pipeline.spark(started)
        pipeline.patch("cli.commands.pipeline.stream.only_one", watched)
        assert pipeline(*ASK) == (0, "", "")
        leave(place[0], "console")
        for answer in (0, UnreachableError("nobody")):
            pipeline.waits(answer)
            assert "Spark is started" in pipeline(*ASK)[2]
            said = pipeline.warnings[-1]
            assert (said[:2], place[0] in said) == ("7 ", True)


def leave(staging: str, stream: str) -> None:
    """Leave a batch of a run that was killed, of 7 messages."""
    PartitionLog(open_store(staging), f"{stream}/b0000000001/p00000").put(
        (), EntryKind.SEGMENT, "0" * 32, rows=7
    )


def test_what_a_server_does_not_tell_is_not_nothing(pipeline: Pipeline) -> None:
    pipeline.waits(0)
    pipeline.unknown = ["10.0.0.1:4151: connection refused"]
    code, _, err = pipeline(*ARCHIVE, "-q")
    assert (code, pipeline.unknown[0] in err) == (4, True)


def test_a_staging_with_messages_of_a_lost_checkpoint_is_refused(pipeline: Pipeline) -> None:
    pipeline.waits(0)
    leave("lake/_nsqtools/staging", "s")
    for _ in range(2):
        code, _, err = pipeline(*ARCHIVE)
        assert (code, "lake/_nsqtools/staging: has " in err, "(stream s)" in err) == (1, True, True)


def test_a_run_is_refused_while_another_one_goes_on(pipeline: Pipeline) -> None:
    with only_one(str(pipeline.checkpoint)):
        code, _, err = pipeline(*ARCHIVE)
        assert code == 75
        given = ("--checkpoint", "lake/_nsqtools/checkpoint", "--output", "other")
        assert pipeline(*ARCHIVE, *given)[0] == 75
    assert list(pipeline.folder.iterdir()) == []
    assert f"process {os.getpid()}" in err
    with only_one("mine"):
        assert pipeline(*ARCHIVE, "--lock", "mine/lock")[0] == 75


def began(checkpoint: Path, stamp: str | bytes, batches: int = 1) -> None:
    """Make a checkpoint that has planned as many batches, and is done with them."""
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
        for number in range(batches):
            (checkpoint / name / str(number)).touch()
    stamped = stamp if isinstance(stamp, bytes) else stamp.encode()
    (checkpoint / "nsq-source").write_bytes(stamped)


@pytest.mark.parametrize(
    ("stamp", "batches", "code", "culprit"),
    [
        ('{"topics": ["t"], "channel": "old"}', 1, 2, "--channel old"),
        ('{"topics": ["t"], "channel": "old"}', 0, 2, "Spark is started"),
        ("", 1, 1, "nsq-source"),
        ('{"topics": ["t"], "chan', 1, 1, "nsq-source"),
        ("[]", 1, 1, "nsq-source"),
        (b"\xff", 1, 1, "nsq-source"),
    ],
)
def test_a_checkpoint_under_which_something_else_was_archived_is_refused_and_left_as_it_is(
    pipeline: Pipeline, stamp: str | bytes, batches: int, code: int, culprit: str
) -> None:
    pipeline.waits(1)
    pipeline.spark(started if batches == 0 else None)
    began(pipeline.checkpoint, stamp, batches)
    before = (pipeline.checkpoint / "nsq-source").read_bytes()
    ended, _, err = pipeline(*ARCHIVE)
    assert (ended, culprit in err) == (code, True)
    assert (pipeline.checkpoint / "nsq-source").read_bytes() == before


def stamp(output: str, checkpoint: str = "") -> dict[str, Any]:
    checkpoint = checkpoint or f"{output.rstrip('/')}/_nsqtools/checkpoint"
    return stamp_of({"subscribe": "t", "channel": "c"}, checkpoint, output)


def test_a_lake_that_was_moved_with_its_checkpoint_is_the_same(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("a")
    one = stamp(f"{tmp_path}/a")
    assert one["output"] == "../.."
    assert one == stamp(f"{tmp_path}/b/") == stamp(f"file:{tmp_path}/link")
    assert one == stamp("s3a://b/lake") == stamp("s3a://b/lake/")
    assert stamp(f"{tmp_path}/link", f"{tmp_path}/state")["output"] == f"{tmp_path}/a"
    assert stamp("s3a://b/lake", "/s")["output"] == "s3a://b/lake"
    assert stamp("", "/s")["output"] == ""


@pytest.mark.parametrize("state", ["a/_nsqtools/checkpoint", "state"])
def test_another_output_than_that_of_the_checkpoint_is_refused(
    pipeline: Pipeline, state: str
) -> None:
    top = pipeline.folder
    began(top / state, json.dumps(stamp(f"{top}/a", f"{top}/{state}")))
    code, _, err = pipeline(*ARCHIVE, "--checkpoint", state)
    assert code == 2
    for place in (f"--checkpoint {top}/{state}", f"{top}/a", f"{top}/lake"):
        assert place in err


def test_missing_java_is_an_error_that_says_which_is_needed_once_it_is(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (pipeline.folder / "lake").mkdir()
    pipeline.waits(1)
    pipeline.spark(open_session)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for command in (ARCHIVE, (*SQL, "--input", "lake"), COMPACT):
        code, _, err = pipeline(*command)
        assert (code, "Java 17" in err) == (2, True)
        assert list((pipeline.folder / "lake").iterdir()) == []
    pipeline.waits(0)
    pipeline.patch("spark.jobs.checkpoint.Checkpoint.is_settled", lambda *_: True)
    assert pipeline(*ARCHIVE)[0] == 0


def test_nothing_is_left_to_do_once_all_that_was_planned_or_staged_is_done(tmp_path: Path) -> None:
    stamp = {"topics": ["t"], "channel": "c"}
    place = tmp_path / "c"
    checkpoint = Checkpoint(str(place), str(tmp_path / "s"))

    def done(batch: int, *logs: str) -> None:
        for name in logs:
            (place / name / str(batch)).touch()
            (place / name / f".{batch}.crc").write_text("")

    began(place, json.dumps({**stamp, "streams": "00"}), batches=0)
    assert checkpoint.is_settled(stamp)
    assert not checkpoint.is_settled({**stamp, "channel": "d"})
    done(9, "offsets", "commits")
    assert checkpoint.is_settled(stamp)
    done(10, "offsets")
    assert not checkpoint.is_settled(stamp)
    done(10, "commits")
    assert checkpoint.is_settled(stamp)
    (place / "nsq-source").rename(tmp_path / "stamp")
    assert not checkpoint.is_settled(stamp)
    (tmp_path / "stamp").rename(place / "nsq-source")
    plan = BatchPlan("0" * 32, 2, ((Quota("t", "a:1", 1),),))
    Ledger(open_store(str(tmp_path / "s")), plan.stream).prepare(plan)
    assert not checkpoint.is_settled(stamp)


class TestViews:
    def progress(self, **values: Any) -> Progress:
        known = {"batch": 3, "rows": 1000, "written": 900, "seconds": 0.5, "backlog": 20}
        return Progress(**{**known, "lag": 1.5, **values})

    def test_a_batch_is_a_line_and_a_look_that_finds_nothing_none(self) -> None:
        view = StreamView("archived")
        assert numbers(view.add(self.progress())) == ["3", "900", "2,000", "20", "0.5", "1.5"]
        assert view.add(self.progress(rows=0, written=0, backlog=None, lag=None)) == ""
        assert numbers(view.line) == ["900"]
        assert numbers(view.summary) == ["900", "100", "1"]

    def test_a_summary_tells_what_was_left_out_of_messages_and_what_was_read_of_rows(self) -> None:
        for verb, written, summary in (
            ("archived", 1000, "1,000 messages archived in 1 batch"),
            ("archived", 999, "999 messages archived, 1 left out by --where in 1 batch"),
            ("", 999, "1,000 messages read, 999 rows written in 1 batch"),
        ):
            view = StreamView(verb)
            view.add(self.progress(written=written))
            assert view.summary == summary

    def test_a_step_is_a_line_when_it_begins_and_its_size_is_told_if_known(self) -> None:
        view = StepView()
        assert [view.add("look", 0, 0), view.line] == ["look", "look"]
        assert [view.add("write", 1, 2000), view.line] == ["write", "write, 1 of 2,000"]
        assert [view.add("write", 2, 2000), view.line] == ["", "write, 2 of 2,000"]

    def test_what_went_wrong_is_logged_once_in_each_wording(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        view = StreamView("archived")
        for notes in (("a: lost",), ("a: lost", "b: late"), ("b: late",), ()):
            view.add(self.progress(notes=notes))
        assert caplog.messages == ["a: lost", "b: late"]


async def test_a_sink_is_greeted_from_the_machine_of_its_executors_and_one_nsqd_is_enough(
    nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    dead = f"127.0.0.1:{free_port()}"
    given = {"topic": "t", "nsqd.tcp.addresses": dead}
    await check_sink(given, "spark://a:7077")
    with pytest.raises(UnreachableError, match=dead):
        await check_sink(given, "local[2]")
    assert caplog.messages == []
    await check_sink({**given, "nsqd.tcp.addresses": f"{dead},{nsqd.tcp}"}, "local[2]")
    assert [dead in each for each in caplog.messages] == [True]


def numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d,.]*(?<=\d)", text)
