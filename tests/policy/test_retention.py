import math
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from nsqtools.policy.retention import Kept, Moment, ProvenTime, Retention

SECOND = 1_000_000_000
NOW = 1_763_665_200 * SECOND
DAY, YEAR = 86_400, 366 * 86_400


KEPT = st.builds(
    Kept,
    path=st.uuids().map(str),
    size=st.integers(0, 100),
    number=st.integers(0, 1000),
    completed=st.integers(0, 20).map(lambda age: NOW - age * SECOND),
)


@given(
    st.lists(KEPT, max_size=20, unique_by=lambda file: file.number),
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
    order = sorted(files, key=lambda file: file.number)
    assert gone == [file for file in order if file in gone]
    if not files:
        return
    newest = order[-1]
    assert newest in stay
    free = [file for file in stay if file != newest]
    counted = [*free, newest]
    assert not keep or len(counted) <= keep
    assert not max_age or all(file.completed >= NOW - max_age * SECOND for file in free)
    assert not max_total or not free or sum(file.size for file in counted) <= max_total
    # A file that is gone is older than every other one that might have been deleted instead,
    # and it alone would have been too many, too old or too much.
    for file in gone:
        newer = [each for each in order if order.index(each) > order.index(file)]
        assert (
            (keep and len(newer) >= keep)
            or (max_age and file.completed < NOW - max_age * SECOND)
            or (max_total and sum(each.size for each in newer) + file.size > max_total)
        )
    assert retention.surplus(sorted(files, key=lambda file: file.path), NOW) == gone


MAX_AGE = 7 * DAY
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("passes"), st.integers(0, 3 * DAY)),
        st.tuples(st.just("boots"), st.integers(0, YEAR)),
        st.tuples(st.just("completes"), st.just(0)),
    ),
    max_size=30,
)


@dataclass
class Host:
    """A host, and what its runs have noted, each a new process."""

    true: int = 0
    boots: int = 0
    booted: int = 0
    notes: list[tuple[int, Moment]] = field(default_factory=list)

    def time(self) -> tuple[ProvenTime, Moment]:
        proven = ProvenTime(MAX_AGE)
        for at, moment in self.notes:
            proven.note(at, moment)
        return proven, Moment(str(self.boots), self.true - self.booted)

    def run(self) -> int:
        """The time of a run, which may note that."""
        proven, moment = self.time()
        at = proven.at(moment)
        if proven.is_due(moment):
            self.notes.append((at, moment))
        return at

    def meet(self, what: str, seconds: int) -> None:
        self.true += seconds * SECOND
        if what == "boots":
            self.boots, self.booted = self.boots + 1, self.true


@given(EVENTS)
def test_no_file_is_old_too_early_and_what_passes_without_a_boot_makes_it_old(
    events: list[tuple[str, int]],
) -> None:
    host, retention = Host(), Retention(max_age=MAX_AGE)
    files: list[Kept] = []
    made: list[tuple[int, int]] = []
    for what, seconds in events:
        host.meet(what, seconds)
        now = host.run()
        if what == "completes":
            host.notes.append((now, host.time()[1]))
            files.append(Kept(str(len(files)), 0, len(files), now))
            made.append((host.true, host.boots))
        gone = {file.number for file in retention.surplus(files, now)}
        for number, (true, boots) in enumerate(made[:-1]):
            is_old = host.true - true > MAX_AGE * SECOND
            assert is_old or number not in gone
            if is_old and host.boots == boots:
                assert number in gone


def test_a_host_that_is_off_at_night_deletes_files_all_the_same() -> None:
    """Ages then count what has passed while it was on, but for ten minutes a day."""
    host = Host()
    host.notes.append((0, host.time()[1]))
    for _ in range(math.ceil(MAX_AGE / DAY) * 2):
        for _ in range(12):
            host.meet("passes", 3600)
            host.run()
        host.meet("passes", 600)
        host.run()
        host.meet("boots", DAY // 2)
        host.run()
    assert host.run() >= MAX_AGE * SECOND
