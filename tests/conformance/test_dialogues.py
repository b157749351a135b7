"""What a server answers, word for word: ``pytest --update-golden`` writes what nsqd says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.authd import Authd
from tests.support.dialogues import carry_on
from tests.support.servers import MakeNsqd, MakeNsqlookupd, Server

FILES = sorted((Path(__file__).parent / "dialogues").glob("*.txt"))


@pytest.fixture
def secret(server: str, tmp_path: Path) -> Iterator[str]:
    """The flag for the secret sesame, which may do everything."""
    file = tmp_path / "secret"
    file.write_text("sesame\n")
    with Authd() as authd:
        authd.grant("sesame", identity="")
        yield f"-auth-secret-file={file}" if server == "sandbox" else authd.nsqd_args()[0]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_answers_are_these(
    file: Path,
    server: str,
    secret: str,
    make_nsqd: MakeNsqd,
    make_nsqlookupd: MakeNsqlookupd,
    pytestconfig: pytest.Config,
) -> None:
    expected = file.read_text()
    first = expected.partition("\n")[0].replace("-secret=sesame", secret)
    program, over, *flags = first.split()
    running: Server = make_nsqd(*flags) if program == "nsqd" else make_nsqlookupd(*flags)
    found = carry_on(expected, running, over)
    if pytestconfig.option.update_golden and server == "nsqd":
        file.write_text(found)
    else:
        assert found == expected
