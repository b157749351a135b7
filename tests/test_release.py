"""What a release uploads, and what is made of it: that it is complete, and that it works alone."""

import json
import re
import shlex
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from nsqtools import __date__, __version__
from nsqtools.cli.docs import sections
from tests.support.binaries import needs
from tests.support.containers import built
from tests.support.environments import run
from tests.support.process import Cli
from tests.support.servers import Nsqd
from tests.support.visiting import Visited

ROOT = Path(__file__).parents[1]
MAX_FILE = 1 << 20
UPLOADS = "what a release uploads"
ONE_FILE = "nsqtools as one file"
NAME = f"nsqtools-{__version__}"
WHEEL = f"{NAME}-py3-none-any.whl"
SHARED = f"{NAME}.data/data/share/"
PLUGIN = "nsqtools/spark/pyspark_nsq.py"
"""Where a wheel has it Spark looks for it: at the top level."""
COMPLETIONS = {
    f"{SHARED}bash-completion/completions/nsqtools",
    f"{SHARED}zsh/site-functions/_nsqtools",
    f"{SHARED}fish/vendor_completions.d/nsqtools.fish",
}


def files(folder: str) -> set[str]:
    """Paths of all files of the checkout in a folder, relative to the checkout."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}


def test_the_changelog_begins_with_this_release_or_what_comes_after_it_or_will_become_it() -> None:
    lines = (ROOT / ".github" / "CHANGELOG.md").read_text().splitlines()
    newest, earlier, *_ = (line.removeprefix("## ") for line in lines if line.startswith("## "))
    if newest == "Unreleased" and not earlier.startswith(f"{__version__} "):
        return
    assert (earlier if newest == "Unreleased" else newest) == f"{__version__} ({__date__})"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distributions of this checkout; the wheel is built from the other one."""
    folder = tmp_path_factory.mktemp("dist")
    build = (needs("uv", UPLOADS), "build", "--python", sys.executable, "--no-create-gitignore")
    run(UPLOADS, *build, "--out-dir", folder, ROOT)
    return folder


@pytest.mark.full("the distributions of a release")
def test_the_distributions_are_complete(dist: Path) -> None:
    assert {path.name for path in dist.iterdir()} == {f"{NAME}.tar.gz", WHEEL}

    with tarfile.open(dist / f"{NAME}.tar.gz") as sdist:
        members = sdist.getmembers()
    checkout = files("nsqtools") | files("man") | files("completions") | files("tests")
    assert {f"{NAME}/{path}" for path in checkout} <= {each.name for each in members}
    assert [each.name for each in members if each.size > MAX_FILE] == []

    with zipfile.ZipFile(dist / WHEEL) as archive:
        entries = archive.infolist()
    contents = {each.filename for each in entries}
    about = {name for name in contents if name.startswith(f"{NAME}.dist-info/")}
    pages = {f"{SHARED}{path}" for path in files("man")}
    package = files("nsqtools") - {PLUGIN} | {Path(PLUGIN).name}
    assert contents - about == package | pages | COMPLETIONS
    assert "nsqtools/py.typed" in contents
    assert f"{NAME}.dist-info/licenses/LICENSE" in about
    assert [each.filename for each in entries if each.file_size > MAX_FILE] == []


@pytest.mark.full("uvx")
def test_uvx_runs_the_wheel(dist: Path) -> None:
    """As ``uvx nsqtools`` does; that takes the wheel from PyPI, where this one is not yet."""
    uvx = (needs("uvx", "uvx"), "--python", sys.executable, "--from", dist / WHEEL)
    assert run("uvx", *uvx, "nsqtools", "--version") == f"nsqtools {__version__}\n"
    run("uvx", *uvx, "nsqtools", "demo")
    library = "import nsqtools; print(nsqtools.Consumer.__name__)"
    assert run("uvx", *uvx, "python", "-W", "error", "-c", library) == "Consumer\n"
    where = (
        "import sys; from importlib.util import find_spec; "
        "print(sys.prefix, find_spec('pyspark_nsq').origin, sep='\\n')"
    )
    prefix, plugin = map(Path, run("uvx", *uvx, "python", "-c", where).splitlines())
    assert prefix in plugin.parents
    assert (prefix / "share" / "man" / "man1" / "nsqtools.1").is_file()


@pytest.mark.full("one file of pex")
def test_a_single_file_has_all_commands_and_what_they_read(
    dist: Path, nsqd: Nsqd, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nsqtools.pex"
    _, _, command = sections("deployment", "guides")["One file"].partition("\n    pex ")
    command = command.partition("\n")[0].replace("nsqtools[", f"{dist / WHEEL}[")
    options = shlex.split(command.replace(program.name, str(program)))
    monkeypatch.setenv("PEX_ROOT", str(tmp_path / "root"))
    run(ONE_FILE, needs("pex", ONE_FILE), *options)

    monkeypatch.delenv("PYTHONPATH", raising=False)
    cli = Cli(tmp_path, str(program))
    assert cli("--version").stdout.decode() == f"nsqtools {__version__}\n"
    assert b"Usage: nsqtools tail" in cli("tail", "--help").stdout
    assert b"CONTAINERS" in cli("help", "deployment").stdout
    assert b"_nsqtools" in cli("completion", "zsh").stdout
    bodies, address = b"1\n2\n3\n", ("--nsqd-tcp-address", str(nsqd.tcp), "--topic", topic)
    assert cli("pub", *address, stdin=bodies).code == 0
    assert cli("tail", *address, "--channel", "mine", "-n", "3").stdout == bodies
    assert cli("demo").code == 0, "a command of its own starts processes"
    page = Visited(cli, "--nsqd-http-address", str(nsqd.http))
    assert topic in page.get("/").text
    cli.close()


def test_process_1_of_the_image_is_an_init() -> None:
    """nsqtools itself does not wait for what hooks leave behind."""
    text = (ROOT / ".github" / "Containerfile").read_text()
    (entry,) = re.findall("^ENTRYPOINT (.+)$", text, re.MULTILINE)
    assert json.loads(entry)[:2] == ["tini", "--"]


@pytest.mark.full("the image of .github/Containerfile")
@pytest.mark.timeout(900)
def test_the_image_runs_as_an_unprivileged_user_with_its_extras(tmp_path: Path) -> None:
    with built(ROOT, tmp_path) as image:
        assert image.run("--version") == f"nsqtools {__version__}\n"
        image.run("demo")
        extras = "import isal, jq, nsqtools.ui.application, os; print(os.getuid())"
        assert image.run("-c", extras, entry="python") == "10001\n"
