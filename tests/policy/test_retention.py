from hypothesis import given
from hypothesis import strategies as st

from nsqtools.policy.retention import Kept, Retention

SECOND = 1_000_000_000
NOW = 1_763_665_200 * SECOND


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
    assert retention.unlimited == (not (keep or max_age or max_total))
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
