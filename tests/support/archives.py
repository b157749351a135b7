"""Reading archives without nsqtools; numbered messages that reveal loss, doubles and tears."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsqtools.records.compression import load_zstd
from nsqtools.sinks.files.journal import FOLDER
from tests.support.consuming import QUICK, Consuming
from tests.support.process import Cli

UNFINISHED = (".part", ".copy", ".torn", ".lock")


@dataclass(frozen=True, slots=True)
class Archiver(Consuming):
    """``to-file`` and a topic of its own, whose files are ``TOPIC-000000.log`` and so on."""

    name = "to-file"

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def usual(self) -> tuple[str, ...]:
        where = ("--output-dir", str(self.output), "--filename-format", "<TOPIC><REV>.log")
        return (*where, "--sync-interval", "50ms", *QUICK)

    def numbers(self, *bounds: int) -> None:
        """Publish the numbers of a range, as ``body`` writes them."""
        self.publish(bodies(range(*bounds)))

    @property
    def files(self) -> list[Path]:
        return published(self.output)

    @property
    def found(self) -> Counter[int]:
        return numbers(self.files)


def body(number: int) -> bytes:
    """A message that is its number and bytes that follow from it, so that a torn one is seen."""
    return b"%d %s." % (number, b"x" * (number * 7919 % 211))


def bodies(numbers: Iterable[int]) -> list[bytes]:
    return [body(number) for number in numbers]


def published(folder: Path) -> list[Path]:
    """The published files below a directory, by name; no hidden ones."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not _is_hidden(path, folder) and path.suffix not in UNFINISHED
    )


def leftovers(*folders: Path) -> list[Path]:
    """What a run that ended well leaves nowhere: files under way, locks, entries of the journal."""
    return sorted(
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in UNFINISHED or (FOLDER in path.parts and path.suffix)
    )


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def plain(path: Path) -> bytes:
    """What the archive holds, unpacked by its name."""
    data = path.read_bytes()
    match path.suffix:
        case ".gz":
            return gzip.decompress(data)
        case ".zst":
            text: bytes = load_zstd().decompress(data)
            return text
    return data


def numbers(paths: Iterable[Path]) -> Counter[int]:
    """How often each number is there; a torn or glued record fails."""
    found: Counter[int] = Counter()
    for path in paths:
        data = plain(path)
        assert data == b"" or data.endswith(b"\n"), f"{path} ends in {data[-40:]!r}"
        for line in data.splitlines():
            number = int(line.partition(b" ")[0])
            assert line == body(number), f"torn or glued: {line!r}"
            found[number] += 1
    return found


def verified(cli: Cli, paths: Sequence[Path], *options: str) -> int:
    """The records that ``nsqtools verify`` counts; every file has to be ok."""
    ended = cli("verify", "--json", *options, *map(str, paths))
    assert (ended.code, ended.stderr) == (0, ""), ended
    said = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(said) == len(paths)
    assert all(each["ok"] for each in said)
    return sum(each["records"] for each in said)
