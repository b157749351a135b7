"""What ``stats --check`` prints and leaves behind, without any server."""

from __future__ import annotations

import json
import os
import re
from subprocess import PIPE
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.cli.stats.check import limits_of
from nsqtools.cli.stats.results import as_json, as_text, nagios
from nsqtools.config import CheckOptions
from nsqtools.policy.checks import (
    Datum,
    Finding,
    Limit,
    Limits,
    Peers,
    Status,
    Verdict,
    judge,
    unknown,
)
from nsqtools.policy.rates import Counters, Row
from tests.support.metrics import values
from tests.support.nagios import STATES, read

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Cli

ANYBODY = Peers({"n:4151": None})
NASTY = "it's = 50% | 'x'=1;2\n\x1b[31m| é"
TROUBLE = Verdict(
    Status.CRITICAL,
    "t/c: depth 5 is over 4 (and 1 more)",
    [
        Finding(Status.CRITICAL, "depth 5 is over 4", "t", "c"),
        Finding(Status.WARNING, "nsqd n:1: refused"),
    ],
    [Datum("t/c:depth", 5, Limit(None, 4))],
)

counts = st.integers(0, 50)
limits = st.builds(Limit, st.none() | counts, st.none() | counts)
names = st.text(min_size=1, max_size=20) | st.sampled_from([NASTY, "events", "a b", "'", "|"])
rows = st.lists(
    st.builds(
        Row,
        st.just("t"),
        names,
        st.builds(Counters, depth=counts, in_flight=counts, clients=counts),
        st.just(1),
        st.just(0),
        counts,
        st.sampled_from([0.5, 1.0, 4.0]),
        st.sampled_from([0.0, 0.5, 20.5]),
        st.sampled_from([0.0, 0.25, 7.0]),
        st.just(1),
    ),
    max_size=4,
    unique_by=lambda row: re.sub("[='|]", "_", row.channel),
)


class TestNagios:
    def test_numbers_follow_the_state_and_findings_the_first_line(self) -> None:
        assert nagios(TROUBLE) == (
            "NSQ CRITICAL - t/c: depth 5 is over 4 (and 1 more) | 't/c:depth'=5;;4;0\n"
            "CRITICAL: t/c: depth 5 is over 4\n"
            "WARNING: nsqd n:1: refused\n"
        )

    @pytest.mark.parametrize(
        ("datum", "text"),
        [
            (Datum("a", 1), "'a'=1;;;0"),
            (Datum("a", 1.5, Limit(2, 3.25), "s"), "'a'=1.5s;2;3.25;0"),
            (Datum("a", 1e9, Limit(None, 0.0)), "'a'=1000000000;;0;0"),
            (Datum("a", 2, Limit(crit=3), "", True, 4), "'a'=2;;3:;0;4"),
            (Datum("a", None, Limit(2), "s"), "'a'=U;2;;0"),
            (Datum("a", float("inf"), Limit(2), "s"), "'a'=U;2;;0"),
            (Datum("it's = 1 | x\n", 1), "'it_s _ 1 _ x\\n'=1;;;0"),
        ],
    )
    def test_a_number_has_its_limits_as_ranges_and_a_clean_label(
        self, datum: Datum, text: str
    ) -> None:
        verdict = Verdict(Status.OK, "fine", data=[datum])
        assert nagios(verdict) == f"NSQ OK - fine | {text}\n"
        assert len(read(nagios(verdict)).data) == 1

    @given(rows, limits, limits, limits, limits, limits, counts)
    def test_who_reads_only_the_numbers_comes_to_the_same_state(
        self,
        found: list[Row],
        depth: Limit,
        in_flight: Limit,
        requeue_rate: Limit,
        timeout_rate: Limit,
        age: Limit,
        clients_min: int,
    ) -> None:
        asked = Limits(
            depth=depth,
            in_flight=in_flight,
            requeue_rate=requeue_rate,
            timeout_rate=timeout_rate,
            age=age,
            clients_min=clients_min,
        )
        there = [Row("t", "", Counters(), 1, 0, 0.0, 0.0, 0.0, 0.0, 1), *found]
        verdict = judge(asked, there, ANYBODY, topic="t")
        output = read(nagios(verdict))
        assert output.code == int(verdict.status)
        worst = max((each.state for each in output.data.values()), key=STATES.index)
        assert worst == output.state

    @given(st.text(min_size=1), st.lists(st.text(min_size=1), max_size=3))
    def test_no_text_of_a_server_becomes_a_number_or_a_line(
        self, health: str, errors: list[str]
    ) -> None:
        peers = Peers(
            {"a": None, **{f"{n}{e}": e for n, e in enumerate(errors)}}, {}, {"a": health}
        )
        verdict = judge(Limits(), [], peers, topic="t")
        output = read(nagios(verdict))
        assert list(output.data) == ["nsqds"]
        assert len(output.more) == len(verdict.findings)

    def test_a_thousand_findings_are_not_a_thousand_lines(self) -> None:
        found = [Finding(Status.WARNING, "x", "t", str(n)) for n in range(1000)]
        lines = nagios(Verdict(Status.WARNING, "many", found)).splitlines()
        assert (len(lines), lines[-1]) == (52, "and 950 more")


class TestOtherForms:
    def test_json_is_one_object_on_one_line(self) -> None:
        row = Row("t", "c", Counters(depth=3, paused=True), 2, 0, 0.0, 0.0, 0.0, 0.0, 2)
        peers = Peers({"n:1": None, "n:2": "n:2: refused"}, {"l:1": None})
        text = as_json(judge(Limits(depth=Limit(1)), [row], peers))
        assert text.count("\n") == 1
        found = json.loads(text)
        assert (found["status"], found["code"]) == ("WARNING", 1)
        assert found["findings"][1] == {
            "status": "WARNING",
            "topic": "t",
            "channel": "c",
            "text": "depth 3 is over 1",
        }
        assert found["nsqds"] == {"n:1": None, "n:2": "n:2: refused"}
        assert found["nsqlookupds"] == {"l:1": None}
        (only,) = found["rows"]
        assert (only["depth"], only["paused"], only["nsqds"]) == (3, True, 2)
        assert (only["age"], only["stuck"]) == (None, True)

    def test_text_is_for_people(self) -> None:
        assert as_text(TROUBLE) == (
            "CRITICAL  t/c: depth 5 is over 4 (and 1 more)\n"
            "CRITICAL  t/c: depth 5 is over 4\n"
            "WARNING   nsqd n:1: refused\n"
        )
        assert as_text(unknown("no\nbody")) == "UNKNOWN   no\\nbody\n"


def test_options_are_thresholds_only_where_they_are_given() -> None:
    assert limits_of(CheckOptions()) == Limits()
    given = CheckOptions(depth_crit=0, requeue_rate_warn=0.5, age_crit=60.0, clients_min=1)
    asked = limits_of(given)
    assert (asked.depth, asked.requeue_rate) == (Limit(None, 0), Limit(0.5))
    assert (asked.age, asked.clients_min, asked.need_rates) == (Limit(None, 60), 1, True)
    assert not limits_of(CheckOptions(depth_warn=1, inflight_crit=2, paused=True)).need_rates


NOBODY = ("--nsqd-http-address", "127.0.0.1:1")


class TestExits:
    @pytest.mark.parametrize(
        ("args", "text"),
        [
            (["--depth-warn", "x"], "'x' is not a whole number"),
            (["--depth-warn", "-2"], "-2 is out of range"),
            (["--nonsense"], "No such option '--nonsense'"),
            (["--topic", "a b"], "topic 'a b': expected"),
            (["--depth-warn", "5", "--depth-crit", "4"], "--depth-warn is over --depth-crit"),
            (["--serve", ":0"], "--check and --serve exclude each other"),
            (["--watch"], "--check and --watch exclude each other"),
            (["--json"], "give --format json"),
            (["--config", "none/such"], "none/such: No such file or directory"),
            (["--nsqd-http-address", "ftp://x"], "expected host:port"),
            (["--tls-root-ca-file", "none/such", *NOBODY], "none/such"),
            (["--outfile", "none/such", *NOBODY], "--outfile none/such: no such file or directory"),
            (["--outfile", "/dev/null", *NOBODY], "--outfile /dev/null: not a regular file"),
            ([*NOBODY], "nsqd 127.0.0.1:1: connection refused"),
            (["--lookupd-http-address", "127.0.0.1:1"], "nsqlookupd 127.0.0.1:1: connection"),
        ],
    )
    def test_whatever_is_wrong_is_unknown_and_one_line(
        self, nsqtools_cli: Cli, args: list[str], text: str
    ) -> None:
        ended = nsqtools_cli("stats", "--check", *args)
        output = read(ended.stdout.decode())
        assert (ended.code, output.state, output.more) == (3, "UNKNOWN", [])
        assert text in output.text
        assert ended.stderr == ""

    def test_a_bug_is_unknown_too(self, nsqtools_cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "sitecustomize.py").write_text(
            "import nsqtools.policy.checks as c\n"
            "def broken(*_, **__): raise KeyError('x')\n"
            "c.judge = broken\n"
        )
        folder = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}:{os.getcwd()}"
        ended = nsqtools_cli("stats", "--check", *NOBODY, env={"PYTHONPATH": folder})
        assert ended.code == 3
        assert "internal error: KeyError" in read(ended.stdout.decode()).text

    @pytest.mark.parametrize(
        ("args", "env", "code"),
        [
            (["--check=true"], {}, 3),
            (["-check"], {}, 3),
            (["--check", "--no-check"], {}, 2),
            (["--check=false"], {}, 2),
            ([], {"NSQTOOLS_STATS_CHECK": "true"}, 3),
            (["--no-check"], {"NSQTOOLS_STATS_CHECK": "true"}, 2),
            ([], {}, 2),
        ],
    )
    def test_a_wrong_command_line_is_unknown_only_where_a_check_is_asked_for(
        self, nsqtools_cli: Cli, args: list[str], env: dict[str, str], code: int
    ) -> None:
        assert nsqtools_cli("stats", *args, "--nonsense", env=env).code == code

    def test_a_threshold_without_a_check_is_refused_but_may_stand_in_the_file(
        self, nsqtools_cli: Cli, tmp_path: Path
    ) -> None:
        ended = nsqtools_cli("stats", "--depth-crit", "5")
        assert ended.code == 2
        assert "--depth-crit is for --check" in ended.stderr
        file = tmp_path / "c.toml"
        file.write_text("[stats]\ndepth-crit = 5\njson = true\n")
        ended = nsqtools_cli("stats", "--once", "--config", str(file), *NOBODY)
        assert ended.code == 3
        ended = nsqtools_cli("stats", "--check", "--config", str(file), *NOBODY)
        assert read(ended.stdout.decode()).state == "UNKNOWN"

    def test_the_result_goes_to_the_file_and_nothing_is_printed(
        self, nsqtools_cli: Cli, tmp_path: Path
    ) -> None:
        ended = nsqtools_cli("stats", "--check", "--outfile", "x", *NOBODY)
        assert (ended.code, ended.stdout, ended.stderr) == (3, b"", "")
        assert read((tmp_path / "x").read_text()).state == "UNKNOWN"

    @pytest.mark.parametrize(
        ("args", "text"),
        [
            (["--depth-warn", "5", "--depth-crit", "4"], "--depth-warn is over --depth-crit"),
            (["--tls-root-ca-file", "none/such", *NOBODY], "none/such: no such file"),
            (["--nsqd-http-address", "ftp://x"], "expected host:port"),
            (["--config", "none/such"], "none/such: No such file or directory"),
            ([*NOBODY], "127.0.0.1:1: connection refused"),
        ],
    )
    @pytest.mark.parametrize("form", ["nagios", "json", "prometheus", "text"])
    def test_an_older_result_does_not_outlive_a_check_that_fails(
        self, nsqtools_cli: Cli, tmp_path: Path, args: list[str], text: str, form: str
    ) -> None:
        file = tmp_path / "x"
        file.write_text("NSQ OK - all is well\n")
        ended = nsqtools_cli("stats", "--check", "--format", form, "--outfile", "x", *args)
        assert (ended.code, ended.stdout, ended.stderr) == (3, b"", "")
        told = file.read_text()
        assert "OK -" not in told
        if form == "json":
            assert (json.loads(told)["code"], text in told) == (3, True)
        elif form == "prometheus":
            assert values(told)["nsqtools_check_status", "", ""] == 3
        else:
            assert "UNKNOWN" in told
            assert text in told

    def test_the_file_may_be_named_in_the_configuration(
        self, nsqtools_cli: Cli, tmp_path: Path
    ) -> None:
        (tmp_path / "c.toml").write_text('[stats]\noutfile = "x"\nformat = "text"\n')
        (tmp_path / "x").write_text("OK\n")
        args = ("--config", "c.toml", "--tls-root-ca-file", "none/such", *NOBODY)
        assert nsqtools_cli("stats", "--check", *args).code == 3
        assert (tmp_path / "x").read_text().startswith("UNKNOWN   --tls-root-ca-file none/such")

    def test_why_there_is_no_result_is_printed_where_the_file_cannot_be_written(
        self, nsqtools_cli: Cli
    ) -> None:
        args = ("--outfile", "none/such", "--nsqd-http-address", "ftp://x")
        ended = nsqtools_cli("stats", "--check", "--format", "json", *args)
        output = read(ended.stdout.decode())
        assert (ended.code, output.state, output.more) == (3, "UNKNOWN", [])
        assert "ftp://x" in output.text
        assert output.text.endswith("; --outfile none/such: no such file or directory")

    def test_a_directory_that_may_not_be_written_is_one_line(
        self, nsqtools_cli: Cli, tmp_path: Path
    ) -> None:
        if os.geteuid() == 0:
            path = "/proc/x.prom"  # not even root makes files there
        else:
            (tmp_path / "locked").mkdir(0o555)
            path = "locked/x.prom"
        ended = nsqtools_cli("stats", "--check", "--outfile", path, *NOBODY)
        output = read(ended.stdout.decode())
        assert (ended.code, output.state, output.more) == (3, "UNKNOWN", [])
        assert output.text.startswith(f"--outfile {path}: ")

    def test_a_full_disk_is_one_line(self, nsqtools_cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "sitecustomize.py").write_text(
            "import errno, os\n"
            "def full(fd): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
            "os.fsync = full\n"
        )
        folder = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}:{os.getcwd()}"
        args = ("--format", "prometheus", "--outfile", "x.prom", *NOBODY)
        ended = nsqtools_cli("stats", "--check", *args, env={"PYTHONPATH": folder})
        output = read(ended.stdout.decode())
        assert (ended.code, output.text) == (3, "--outfile x.prom: no space left on device")
        assert not (tmp_path / "x.prom").exists()
        assert [each.name for each in tmp_path.iterdir() if "x.prom" in each.name] == []

    def test_no_result_can_be_told_where_standard_output_is_full(self, nsqtools_cli: Cli) -> None:
        with open("/dev/full", "wb") as full:
            process = nsqtools_cli.start("stats", "--check", *NOBODY, stdout=full, stderr=PIPE)
            _, errors = process.communicate()
        assert process.returncode == 3
        assert errors == b"nsqtools: standard output: No space left on device\n"

    def test_a_minus_is_standard_output(self, nsqtools_cli: Cli, tmp_path: Path) -> None:
        ended = nsqtools_cli("stats", "--check", "--outfile", "-", *NOBODY)
        assert (ended.code, read(ended.stdout.decode()).state) == (3, "UNKNOWN")
        assert list(tmp_path.iterdir()) == []

    def test_help_and_version_are_as_ever(self, nsqtools_cli: Cli) -> None:
        for args in (["--help"], ["--version"]):
            assert nsqtools_cli("stats", "--check", *args).code == 0
