from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqtools.policy.retention import Kept, Retention

SECOND = 1_000_000_000
NOW = 1_763_665_200 * SECOND
HOUR = 3600


def aged(*hours: float) -> list[Kept]:
    return [
        Kept(f"file-{number}", 10, NOW - int(age * HOUR) * SECOND)
        for number, age in enumerate(hours)
    ]


def paths(files: list[Kept]) -> list[str]:
    return [file.path for file in files]


def test_beyond_a_number_the_oldest_go_oldest_first() -> None:
    files = aged(3, 1, 4, 2)
    assert Retention().unlimited
    assert Retention().surplus(files, NOW) == []
    assert not Retention(keep=2).unlimited
    assert paths(Retention(keep=2).surplus(files, NOW)) == ["file-2", "file-0"]
    assert Retention(keep=4).surplus(files, NOW) == []


def test_too_old_or_too_much_goes_oldest_first() -> None:
    files = aged(1, 24, 25, 48)
    assert paths(Retention(max_age=24 * HOUR).surplus(files, NOW)) == ["file-3", "file-2"]
    assert paths(Retention(max_total=25).surplus(files, NOW)) == ["file-3", "file-2"]
    assert Retention(max_total=40).surplus(files, NOW) == []
    assert len(Retention(keep=3, max_age=HOUR, max_total=1000).surplus(files, NOW)) == 3
    assert Retention(max_age=1).surplus(aged(-5, -1), NOW) == []


KEPT = st.builds(
    Kept,
    path=st.uuids().map(str),
    size=st.integers(0, 100),
    mtime_ns=st.integers(0, 20).map(lambda age: NOW - age * SECOND),
)


@given(
    st.lists(KEPT, max_size=20, unique_by=lambda file: file.path),
    st.integers(0, 10),
    st.integers(0, 20),
    st.integers(0, 500),
)
def test_what_stays_is_within_all_limits_but_for_the_newest(
    files: list[Kept], keep: int, max_age: int, max_total: int
) -> None:
    retention = Retention(keep=keep, max_age=max_age, max_total=max_total)
    gone = retention.surplus(files, NOW)
    stay = [file for file in files if file not in gone]
    order = sorted(files, key=lambda file: (file.mtime_ns, file.path))
    assert gone == [file for file in order if file in gone]
    if not files:
        return
    newest = order[-1]
    assert newest in stay
    free = [file for file in stay if file != newest]
    counted = [*free, newest]
    assert not keep or len(counted) <= keep
    assert not max_age or all(file.mtime_ns >= NOW - max_age * SECOND for file in free)
    assert not max_total or not free or sum(file.size for file in counted) <= max_total
    # A file that is gone is older than every other one that might have been deleted instead,
    # and it alone would have been too many, too old or too much.
    for file in gone:
        newer = [each for each in order if order.index(each) > order.index(file)]
        assert (
            (keep and len(newer) >= keep)
            or (max_age and file.mtime_ns < NOW - max_age * SECOND)
            or (max_total and sum(each.size for each in newer) + file.size > max_total)
        )
    assert retention.surplus(sorted(files, key=lambda file: file.path), NOW) == gone
