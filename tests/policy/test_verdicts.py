"""Verdicts of statuses by code, range and class, and what Retry-After asks for."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.policy.verdicts import Statuses, Verdict, blames_message, may_blame_one, retry_after

DONE, DROP, GONE, RETRY = Verdict.DONE, Verdict.DROP, Verdict.GONE, Verdict.RETRY
NOW = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)


def test_unless_told_2xx_is_done_410_is_gone_and_all_else_is_retried() -> None:
    verdicts = {status: Statuses().verdict(status) for status in range(100, 1000)}
    usual = dict.fromkeys(range(200, 300), DONE) | {410: GONE}
    assert verdicts == dict.fromkeys(range(100, 1000), RETRY) | usual


@pytest.mark.parametrize(
    ("success", "drop", "retry", "verdicts"),
    [
        ("2xx,304", "", "", {200: DONE, 304: DONE, 302: RETRY}),
        ("204", "", "", {204: DONE, 200: RETRY}),
        (" 200-202 , 4XX ", "", "", {202: DONE, 203: RETRY, 404: DONE}),
        ("2xx", "4xx", "", {400: DROP, 499: DROP, 500: RETRY, 410: GONE}),
        ("2xx", "4xx", "408-429", {404: DROP, 408: RETRY, 420: RETRY, 429: RETRY, 430: DROP}),
        ("2xx", "200-209,299", "205", {200: DROP, 205: RETRY, 210: DONE, 299: DROP}),
        ("2xx", "410", "", {410: DROP}),
        ("2xx", "4xx", "410", {410: RETRY}),
        ("200-204,204", "204-209", "", {203: DONE, 204: DONE, 205: DROP}),
    ],
)
def test_a_code_beats_a_range_and_a_range_beats_a_class(
    success: str, drop: str, retry: str, verdicts: dict[int, Verdict]
) -> None:
    statuses = Statuses(success, drop, retry)
    assert {status: statuses.verdict(status) for status in verdicts} == verdicts


@pytest.mark.parametrize(
    ("success", "drop", "retry", "message"),
    [
        ("2xx", "2xx", "", "^--success-on 2xx and --drop-on 2xx: status 200"),
        ("2xx", "404", "404", "^--drop-on 404 and --retry-on 404: status 404"),
        ("410", "", "410", "^--success-on 410 and --retry-on 410: status 410"),
        ("200-250", "240-299", "", "^--success-on 200-250 and --drop-on 240-299: status 240"),
    ],
)
def test_two_lists_that_claim_a_status_equally_are_refused_by_name(
    success: str, drop: str, retry: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Statuses(success, drop, retry)


@pytest.mark.parametrize(
    "text",
    ["ok", "2x", "20", "0xx", "099", "1000", "204-200", "200-", "-200", "2xx-3xx", "200,,204",
     "!429", "200 204", "²00", "2.0", "600", "999", "6xx", "500-600"],
)  # fmt: skip
def test_what_is_no_status_is_refused_with_its_flag(text: str) -> None:
    for place, flag in enumerate(("--success-on", "--drop-on", "--retry-on")):
        lists = ["", "", ""]
        lists[place] = text
        with pytest.raises(ConfigError, match=f"^{flag}: '"):
            Statuses(*lists)


LONGEST = 900.0
DATE = format_datetime(NOW, usegmt=True)


@given(seconds=st.integers(0), date=st.sampled_from([DATE, "", "?"]))
@example(seconds=int("9" * 4000), date="")
def test_seconds_are_taken_as_they_are_up_to_the_longest(seconds: int, date: str) -> None:
    asked = retry_after(f" {seconds} ", date=date, longest=LONGEST)
    assert asked == min(seconds, LONGEST)


moments = st.datetimes(
    datetime(1990, 1, 1), datetime(2999, 1, 1), timezones=st.just(UTC)
).map(lambda moment: moment.replace(microsecond=0))  # fmt: skip
FORMS: dict[str, Callable[[datetime], str]] = {
    "imf": lambda moment: format_datetime(moment, usegmt=True),
    "rfc850": lambda moment: moment.strftime("%A, %d-%b-%y %H:%M:%S GMT"),
    "asctime": lambda moment: moment.ctime(),
}


@given(
    now=moments,
    ahead=st.integers(-(10**9), 10**9),
    forms=st.tuples(*[st.sampled_from(list(FORMS))] * 2),
)
@example(now=datetime(2069, 6, 1, tzinfo=UTC), ahead=60, forms=("imf", "rfc850"))
@example(now=datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC), ahead=5, forms=("imf", "rfc850"))
def test_a_date_of_any_form_is_the_time_until_then_by_the_clock_of_the_server(
    now: datetime, ahead: int, forms: tuple[str, str]
) -> None:
    """Whatever time it is here; two digits of a year are those near the server's."""
    then = now + timedelta(seconds=ahead)
    of_own, of_asked = forms
    if of_own == "rfc850" and now.year > 2068:  # two digits alone mean 1969 to 2068
        of_own = "imf"
    own, asked = FORMS[of_own](now), FORMS[of_asked](then)
    assert retry_after(asked, date=own, longest=LONGEST) == min(max(0, ahead), LONGEST)
    for unknown in ("", "0", "now", own + "+1"):
        assert retry_after(asked, date=unknown, longest=LONGEST) is None


@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "+1", "1.5", "1e3", "0x10", "²", "\u0661", "soon", "1 2", "30s", "inf", "nan",
     "2026-03-14T15:09:56Z", "Sat, 14 Mar 2026 15:09:56", "Sat, 14 Mar 2026 15:09:56 CET",
     "Sat, 30 Feb 2026 15:09:56 GMT", "Sat, 14 Mar 0000 15:09:56 GMT",
     "Sat, 14 Mar 2026 24:00:00 GMT", "Sat, 14 Mar 2026 15:09:61 GMT",
     "Sat, 14 Mär 2026 15:09:56 GMT", "Sat, 14 Mar 2026 15:09:56 GMT, 5"],
)  # fmt: skip
def test_what_is_neither_is_none(text: str) -> None:
    assert retry_after(text, date=DATE, longest=LONGEST) is None


def test_4xx_blames_the_message_one_of_its_batch_or_the_time() -> None:
    statuses = range(300, 600)
    blaming = {400, 409, *range(411, 417), 422, 428, 431}
    assert set(filter(blames_message, statuses)) == blaming
    assert set(filter(may_blame_one, statuses)) == {*range(400, 500)} - {408, 425, 429}
