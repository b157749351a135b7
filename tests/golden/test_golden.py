"""What commands say to their users, file by file: ``pytest --update-golden`` writes it anew.

A better wording is a change of one line here, and no other test asks for a sentence.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqtools.cli import COMMANDS
from tests.support.golden import Transcript, difference, nobody, replace
from tests.support.spark import needs_spark

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqlookupd

GOLDEN = Path(__file__).parent
FILES = sorted(GOLDEN.glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_a_command_says(
    file: Path,
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    nsqlookupd: Nsqlookupd,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    if file.stem == "pipeline":
        needs_spark("what commands of the pipeline say")
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    servers = {
        "NSQD": str(nsqd.tcp),
        "NSQD_HTTP": str(nsqd.http),
        "LOOKUPD": str(nsqlookupd.tcp),
        "LOOKUPD_HTTP": str(nsqlookupd.http),
        "PWD": str(tmp_path),
    }
    expected = file.read_text()
    found = Transcript(nsqtools_cli, tmp_path, {**servers, **nobody()}).run(expected)
    if found == expected:
        return
    if pytestconfig.option.update_golden:
        replace(file, found)
    else:
        pytest.fail(difference(file, expected, found), pytrace=False)


def test_the_program_and_each_command_have_their_file() -> None:
    assert {file.stem for file in FILES} == {"nsqtools", *COMMANDS}
