"""What a server answers, word for word: ``pytest --update-golden`` writes what nsqd says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.dialogues import carry_on

if TYPE_CHECKING:
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Server

FILES = sorted((Path(__file__).parent / "dialogues").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_answers_are_these(
    file: Path,
    server: str,
    make_nsqd: MakeNsqd,
    make_nsqlookupd: MakeNsqlookupd,
    pytestconfig: pytest.Config,
) -> None:
    expected = file.read_text()
    program, over, *flags = expected.partition("\n")[0].split()
    running: Server = make_nsqd(*flags) if program == "nsqd" else make_nsqlookupd(*flags)
    found = carry_on(expected, running, over)
    if pytestconfig.option.update_golden and server == "nsqd":
        file.write_text(found)
    else:
        assert found == expected
