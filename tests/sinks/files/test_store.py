import os
from operator import attrgetter
from pathlib import Path

import pytest

from nsqtools.errors import ConfigError, LockedError
from nsqtools.sinks.files.rules import Rules
from tests.support.archiving import Clocks, below, make_rules
from tests.support.sinking import make_archives, started

NAME = "events.host-000000.2026-11-20_19.log"


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    return make_rules(tmp_path, work_dir=str(tmp_path / "work"))


class TestLocks:
    def test_a_second_process_with_the_same_names_is_refused_until_the_first_leaves(
        self, rules: Rules, tmp_path: Path
    ) -> None:
        first, second = make_archives(rules), make_archives(rules)
        first.lock("events")
        with pytest.raises(LockedError):
            second.lock("events")
        second.lock("other")
        first.leave("events")
        others = [
            make_archives(make_rules(tmp_path, filename_format="<TOPIC><REV>")),
            make_archives(make_rules(tmp_path, filename_format="<TOPIC>.<PID>", pid=1)),
            make_archives(make_rules(tmp_path, filename_format="<TOPIC>.<PID>", pid=2)),
        ]
        for archives in (second, *others):
            archives.lock("events")
        for archives in (second, *others):
            archives.unlock()
        assert below(str(tmp_path)) == []


class TestOpening:
    def test_a_directory_that_is_a_file_or_may_not_be_written_is_an_error_that_names_it(
        self, rules: Rules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "work").write_bytes(b"")
        with pytest.raises(ConfigError, match=f"--work-dir {tmp_path / 'work'}"):
            make_archives(rules).open()
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
        with pytest.raises(ConfigError, match=f"--output-dir {tmp_path / 'out'}"):
            make_archives(rules).open()

    @pytest.mark.parametrize("moment", ["open", "aftercare.prune"])
    def test_old_files_are_deleted_at_the_start_and_as_they_get_old(
        self, moment: str, rules: Rules, tmp_path: Path, clocks: Clocks
    ) -> None:
        complete_dir = tmp_path / "out"
        complete_dir.mkdir()
        old, new = complete_dir / NAME, complete_dir / NAME.replace("000000", "000001")
        for path in (old, new):
            path.write_bytes(b"one\n")
            with started(rules, max_age=3600.0):
                clocks.elapse(3000)
        archives = make_archives(rules, max_age=3600.0)
        attrgetter(moment)(archives)()
        assert below(rules.output_dir) == [new.name]
