"""``to-file --on-rotate``: run with every file, also after failures and in the next run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.support import archives
from tests.support.eventually import eventually
from tests.support.servers import at, drained, empty

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import Nsqd


def to_file(topic: str, folder: Path, *options: str) -> tuple[str, ...]:
    """A command line without a source; files are called ``TOPIC-000000.log`` and so on."""
    return (
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(folder)),
        *("--filename-format", "<TOPIC><REV>.log", *options),
    )


def published(nsqd: Nsqd, topic: str, count: int) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, archives.bodies(range(count)))


def test_on_rotate_is_told_of_every_file_and_holds_nothing_up(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / 'it\'s "here" $HOME'
    published(nsqd, topic, 500)
    hook = (
        f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; [ -s {{}} ] && "
        f'echo "$NSQ_FILE|$NSQ_TOPIC|$NSQ_COUNT|$NSQ_FIRST_TIMESTAMP|$NSQ_LAST_TIMESTAMP" '
        f">> {tmp_path}/told"
    )
    options = ("--rotate-size", "10KB", "--sync-interval", "50ms", "--on-rotate", hook)
    process = nsqtools_cli.start(*to_file(topic, folder, *options), *at(nsqd))
    eventually(lambda: drained(nsqd, topic, "c") and len(archives.published(folder)) > 3)
    assert not (tmp_path / "told").exists()
    (tmp_path / "go").touch()
    process.terminate()
    assert process.wait(20) == 0
    told = [line.split("|") for line in (tmp_path / "told").read_text().splitlines()]
    assert [row[0] for row in told] == [str(path) for path in archives.published(folder)]
    assert [int(row[2]) for row in told] == [
        archives.numbers([path]).total() for path in archives.published(folder)
    ]
    for row in told:
        assert row[1] == topic
        assert 10**18 < int(row[3]) <= int(row[4])


def test_on_rotate_that_fails_is_run_again_and_status_1_in_the_end(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    published(nsqd, topic, 10)
    hook = f"echo {{}} >> {tmp_path}/told; exit 3"
    ended = nsqtools_cli(*to_file(topic, tmp_path / "a", "--on-rotate", hook), *empty(nsqd))
    assert (ended.code, ended.stdout) == (1, b"")
    assert "status 3" in ended.stderr
    (file,) = archives.published(tmp_path / "a")
    assert str(file) in ended.stderr.splitlines()[-1]
    assert (tmp_path / "told").read_text().count("\n") == 4
    assert archives.numbers([file]) == Counter(range(10))


def test_a_file_whose_command_failed_is_kept_and_the_next_run_begins_with_it(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    published(nsqd, topic, 5)
    safe = tmp_path / "safe"
    safe.mkdir()
    command = to_file(topic, tmp_path / "a", "--gzip", "--keep", "1", "--on-rotate")
    assert nsqtools_cli(*command, "false", *empty(nsqd)).code == 1
    (first,) = archives.published(tmp_path / "a")
    assert b"waiting for --on-rotate" in nsqtools_cli("verify", str(first)).stdout
    nsqd.publish(topic, archives.bodies(range(5, 10)))
    without = nsqtools_cli(*command[:-1], *empty(nsqd))
    assert (without.code, str(first) in without.stderr) == (1, True)
    assert first.exists()
    nsqd.publish(topic, archives.bodies(range(10, 15)))
    assert nsqtools_cli(*command, f"cp {{}} {safe}/", *empty(nsqd)).code == 0
    assert archives.numbers(archives.published(safe)) == Counter([*range(5), *range(10, 15)])
    assert not first.exists()
    (last,) = archives.published(tmp_path / "a")
    assert archives.numbers([last]) == Counter(range(10, 15))
    assert b"waiting" not in nsqtools_cli("verify", str(last)).stdout


def test_a_name_whose_file_was_taken_away_is_not_given_again(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    safe = tmp_path / "safe"
    safe.mkdir()
    options = ("--rotate-size", "2KB", "--on-rotate", f"mv {{}} {safe}/")
    for run in range(3):
        nsqd.create(topic, "c")
        nsqd.publish(topic, archives.bodies(range(100 * run, 100 * run + 100)))
        assert nsqtools_cli(*to_file(topic, tmp_path / "a", *options), *empty(nsqd)).code == 0
    assert archives.numbers(archives.published(safe)) == Counter(range(300))
