"""The distributions that a release uploads: what they contain, and that the wheel works alone."""

import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from nsqtools import __date__, __version__
from tests.support.environments import environment, run

ROOT = Path(__file__).parents[1]
MAX_FILE = 1 << 20
UPLOADS = "what a release uploads"
NAME = f"nsqtools-{__version__}"
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


def test_the_changelog_begins_with_this_release_or_what_comes_after_it() -> None:
    _, first, second, *_ = (ROOT / ".github" / "CHANGELOG.md").read_text().split("\n## ")
    release = second if first.startswith("Unreleased\n") else first
    assert release.startswith(f"{__version__} ({__date__})\n")


@pytest.mark.full("the distributions of a release")
def test_the_distributions_are_complete_and_the_wheel_works_alone(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    builder = environment(UPLOADS, tmp_path / "builder", "build", *needed)
    built = run(builder / "pyproject-build", "--no-isolation", "-o", dist, ROOT)
    assert built.returncode == 0, built.stdout + built.stderr
    assert {path.name for path in dist.iterdir()} == {f"{NAME}.tar.gz", f"{NAME}-py3-none-any.whl"}

    with tarfile.open(dist / f"{NAME}.tar.gz") as sdist:
        members = sdist.getmembers()
    checkout = files("nsqtools") | files("man") | files("completions") | files("tests")
    assert {f"{NAME}/{path}" for path in checkout} <= {each.name for each in members}
    assert [each.name for each in members if each.size > MAX_FILE] == []

    wheel = dist / f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        entries = archive.infolist()
    contents = {each.filename for each in entries}
    about = {name for name in contents if name.startswith(f"{NAME}.dist-info/")}
    pages = {f"{SHARED}{path}" for path in files("man")}
    package = files("nsqtools") - {PLUGIN} | {Path(PLUGIN).name}
    assert contents - about == package | pages | COMPLETIONS
    assert "nsqtools/py.typed" in contents
    assert f"{NAME}.dist-info/licenses/LICENSE" in about
    assert [each.filename for each in entries if each.file_size > MAX_FILE] == []

    programs = environment(UPLOADS, tmp_path / "empty", wheel)
    demo = run(programs / "nsqtools", "demo")
    assert demo.returncode == 0, demo.stderr
    library = run(programs / "python", "-c", "import nsqtools; print(nsqtools.Consumer.__name__)")
    assert (library.stdout, library.stderr) == ("Consumer\n", "")
    spec = "from importlib.util import find_spec; print(find_spec('pyspark_nsq').origin)"
    assert (tmp_path / "empty") in Path(run(programs / "python", "-c", spec).stdout).parents
    assert (tmp_path / "empty" / "share" / "man" / "man1" / "nsqtools.1").is_file()
