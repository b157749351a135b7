"""What ``stats --check`` prints and leaves behind, without any server."""

from subprocess import PIPE

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqtools.cli.commands.stats.check import limits_of, nagios
from nsqtools.config.stats import CheckOptions
from nsqtools.policy.checks import CheckResult, Datum, Limit, Limits, Peers, Status, Trouble, judge
from tests.support.nagios import read
from tests.support.process import Called, Cli

NASTY = "it's = 50% | 'x'=1;2\n\x1b[31m| é"
TEXTS = st.text(min_size=1) | st.just(NASTY)


class TestNagios:
    @pytest.mark.parametrize(
        ("datum", "text"),
        [
            (Datum("a", 1), "'a'=1;;;0"),
            (Datum("a", 1.5, Limit(2, 3.25), "s"), "'a'=1.5s;2;3.25;0"),
            (Datum("a", 1e9, Limit(None, 0.0)), "'a'=1000000000;;0;0"),
            (Datum("a", 2, Limit(crit=3), "", True, 4), "'a'=2;;3:;0;4"),
            (Datum("a", float("inf"), Limit(2), "s"), "'a'=U;2;;0"),
            (Datum("it's = 1 | x\n", 1), "'it_s _ 1 _ x\\n'=1;;;0"),
        ],
    )
    def test_a_number_has_its_limits_as_ranges_and_a_clean_label(
        self, datum: Datum, text: str
    ) -> None:
        said = nagios(CheckResult(Status.OK, "fine", data=[datum]))
        assert said.partition(" | ")[2] == f"{text}\n"
        assert len(read(said).data) == 1

    @settings(max_examples=30)
    @given(TEXTS, st.lists(TEXTS, max_size=3))
    def test_no_text_of_a_server_becomes_a_number_or_a_line(
        self, health: str, errors: list[str]
    ) -> None:
        peers = Peers(
            {"a": None, **{f"{n}{e}": e for n, e in enumerate(errors)}}, {}, {"a": health}
        )
        verdict = judge(Limits(), [], peers, topic="t")
        output = read(nagios(verdict))
        assert list(output.data) == ["nsqds"]
        assert len(output.more) == len(verdict.troubles)

    def test_a_thousand_findings_are_not_a_thousand_lines(self) -> None:
        found = [Trouble(Status.WARNING, "x", "t", str(n)) for n in range(1000)]
        lines = nagios(CheckResult(Status.WARNING, "many", found)).splitlines()
        assert (len(lines), lines[-1]) == (52, "and 950 more")


def test_options_are_thresholds_only_where_they_are_given() -> None:
    assert limits_of(CheckOptions()) == Limits()
    given = CheckOptions(depth_crit=0, requeue_rate_warn=0.5, age_crit=60.0, clients_min=1)
    asked = limits_of(given)
    assert (asked.depth, asked.requeue_rate) == (Limit(None, 0), Limit(0.5))
    assert (asked.age, asked.clients_min, asked.need_rates) == (Limit(None, 60), 1, True)
    assert not limits_of(CheckOptions(depth_warn=1, clients_min=2, paused=True)).need_rates


NOBODY = ("--nsqd-http-address", "127.0.0.1:1")


def test_a_bug_is_unknown_too(nsqtools: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqtools.policy.checks.judge", {}.__getitem__)
    code, out, _ = nsqtools("stats", "--check", *NOBODY)
    assert code == 3
    assert "internal error: TypeError" in read(out).text


def test_no_result_can_be_told_where_standard_output_is_full(nsqtools_cli: Cli) -> None:
    with open("/dev/full", "wb") as full:
        process = nsqtools_cli.start("stats", "--check", *NOBODY, stdout=full, stderr=PIPE)
        _, errors = process.communicate()
    assert process.returncode == 3
    assert errors.count(b"\n") == 1
