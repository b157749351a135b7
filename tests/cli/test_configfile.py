"""The configuration file where the golden file of ``config`` does not say it."""

import os
import re
import threading
import tomllib
from pathlib import Path

import pytest

from nsqtools.config import connection
from tests.support.process import Called


def test_a_file_that_no_person_wrote_is_refused_in_one_line(
    nsqtools: Called, tmp_path: Path
) -> None:
    deep = f"[{'.'.join('a' * 3000)}]\n"
    for text in ("a = " + "[" * 100_000, "a = " + "9" * 5000, deep):
        (tmp_path / "a.toml").write_text(text)
        code, out, err = nsqtools("config", "check", "a.toml")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("nsqtools: a.toml: ")


def test_the_starting_file_is_right_as_it_is_and_with_every_line_in_force(
    nsqtools: Called, tmp_path: Path
) -> None:
    code, out, err = nsqtools("config", "init")
    assert (code, err, tomllib.loads(out)["defaults"]) == (0, "", {})
    file = tmp_path / "a.toml"
    file.write_text(out)
    assert nsqtools("config", "check", "a.toml") == (0, "a.toml: ok\n", "")
    head, _, tables = out.partition("# All other settings")
    settings = re.sub(r"(?m)^# (?=[a-z0-9-]+ = )", "", head.partition("[defaults]")[2])
    assert len(tomllib.loads(settings)) == 10
    one = re.sub("(?m)^nsqd-tcp-address.*", "", settings)
    file.write_text("[defaults]" + one)
    assert nsqtools("config", "check", "a.toml") == (0, "a.toml: ok\n", "")
    in_force, count = re.subn(r"(?m)^# (?=[a-z-0-9]+ = )", "", tables.partition("# A profile")[0])
    assert count > 80
    file.write_text("[defaults]\n# " + in_force)
    assert nsqtools("config", "check", "a.toml") == (0, "a.toml: ok\n", "")
    for command in (["tail"], ["pub"], ["lookup", "topics"]):
        shown = nsqtools("config", "show", *command, "--config", "a.toml", "--changed")
        assert shown == (0, "config\ta.toml\tflag\t--config\n", "")


def test_what_drives_a_terminal_is_escaped_and_a_row_stays_a_row(nsqtools: Called) -> None:
    out = nsqtools("config", "show", "tail", "--client-id", "a\x1b[31m\tb\nc")[1]
    assert "client-id\ta\\x1b[31m\\tb\\nc\tflag\t--client-id\n" in out


def test_a_fifo_is_read_if_somebody_writes_to_it(
    nsqtools: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with monkeypatch.context() as patch:
        patch.setattr(connection, "_FIFO_WAIT", 0.01)
        opened = os.listdir("/proc/self/fd")
        said = nsqtools("--config", "fifo", "tail")[2]
        assert "--config fifo: a FIFO that nobody writes to" in said
        assert os.listdir("/proc/self/fd") == opened
    writer = threading.Thread(target=fifo.write_text, args=("[tail]\nbogus = 1\n",))
    writer.start()
    assert "unknown key 'bogus'" in nsqtools("--config", "fifo", "config", "check")[2]
    writer.join()
