from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import binaries


def install(folder: Path, *programs: str, version: str = "v1.3.0") -> Path:
    folder.mkdir(exist_ok=True)
    for program in programs:
        script = folder / program
        script.write_text(f"#!/bin/sh\necho '{program} {version} (built w/go1.24)'\n")
        script.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("NSQTOOLS_NSQD_BIN", "NSQTOOLS_REQUIRE_NSQD", "NSQTOOLS_REQUIRE_TOOLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries, "missing", {})
    for cached in (binaries._cache_directory, binaries._build, binaries._version):
        cached.cache_clear()
    yield
    for cached in (binaries._cache_directory, binaries._build, binaries._version):
        cached.cache_clear()


def test_path_comes_before_the_named_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    named = install(tmp_path / "named", "nsqd", "nsqlookupd", "nsq_tail", version="v1.2.1")
    monkeypatch.setenv("NSQTOOLS_NSQD_BIN", str(named))
    assert str(binaries.require_nsq()) == "v1.2.1 from $NSQTOOLS_NSQD_BIN"
    assert binaries.require_nsq().path("nsq_tail") == str(named / "nsq_tail")
    install(tmp_path / "path", "nsqd", "nsqlookupd")
    assert binaries.describe_nsq() == "v1.3.0 from PATH, and the sandbox"


@pytest.mark.parametrize(
    ("programs", "version"), [(["nsqd"], "v1.3.0"), (["nsqd", "nsqlookupd"], "v0.3.8")]
)
def test_a_place_without_nsqlookupd_or_with_an_old_nsqd_is_passed_over(
    programs: list[str], version: str, tmp_path: Path
) -> None:
    install(tmp_path / "path", *programs, version=version)
    assert binaries.installed_nsq() is None


def test_the_sandbox_is_used_alone_where_there_is_no_nsqd_and_no_go_to_build_it() -> None:
    assert binaries.describe_nsq().startswith("the sandbox alone (")
    assert not binaries.expect_nsq(build=True)
    assert not binaries.expect_nsq(build=False)


def test_it_is_so_too_where_nsqd_cannot_be_built_and_that_is_told(tmp_path: Path) -> None:
    go = install(tmp_path / "path", "go") / "go"
    go.write_text("#!/bin/sh\necho go1.22.5\n")
    assert binaries.expect_nsq(build=False)
    assert not binaries.expect_nsq(build=True)
    (lost,) = binaries.missing["nsqd"]
    assert "go1.22.5 is too old" in lost


def test_nsqd_is_expected_where_it_is_installed_or_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NSQTOOLS_REQUIRE_NSQD", "1")
    assert binaries.expect_nsq(build=True)
    monkeypatch.delenv("NSQTOOLS_REQUIRE_NSQD")
    install(tmp_path / "path", "nsqd", "nsqlookupd")
    assert binaries.expect_nsq(build=True)


def test_without_nsqd_a_test_is_skipped_and_the_reason_says_what_was_looked_for() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"PATH.*NSQTOOLS_NSQD_BIN.*no go"):
        binaries.require_nsq()
    assert binaries.missing == {"nsqd": [binaries.LIVE]}


def test_without_nsqd_a_test_fails_where_nsqd_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSQTOOLS_REQUIRE_NSQD", "1")
    with pytest.raises(pytest.fail.Exception, match="no nsqd"):
        binaries.require_nsq()


def test_go_builds_once_and_the_cache_is_used_after_that(tmp_path: Path) -> None:
    log = tmp_path / "log"
    go = install(tmp_path / "path", "go") / "go"
    go.write_text(f"""#!/bin/sh
echo "$*" >> {log}
[ "$1" = env ] && echo go1.26.1 && exit
/bin/mkdir "$GOBIN"
for program in nsqd nsqlookupd; do
    printf '#!/bin/sh\\necho nsqd v1.3.0\\n' > "$GOBIN/$program"
    /bin/chmod +x "$GOBIN/$program"
done
""")
    assert binaries.require_nsq().origin.startswith(str(tmp_path / "cache"))
    binaries._build.cache_clear()
    assert binaries.require_nsq().version == "v1.3.0"
    assert log.read_text() == "env GOVERSION\ninstall tool\n"


@pytest.mark.parametrize(
    ("script", "reason"),
    [("echo go1.22.5", "go1.22.5 is too old"), ("echo go1.26; exit 1", "go install tool.*failed")],
)
def test_a_go_that_cannot_build_it_is_named(script: str, reason: str, tmp_path: Path) -> None:
    go = install(tmp_path / "path", "go") / "go"
    go.write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(pytest.skip.Exception, match=reason):
        binaries.require_nsq()


def test_a_missing_tool_skips_or_fails_and_is_remembered_with_what_it_would_have_tested(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmux = install(tmp_path / "path", "tmux") / "tmux"
    assert binaries.needs("tmux", "the terminal") == str(tmux)
    with pytest.raises(pytest.skip.Exception, match=r"no mandoc on PATH.*the man pages"):
        binaries.needs("mandoc", "the man pages")
    monkeypatch.setenv("NSQTOOLS_REQUIRE_TOOLS", "1")
    with pytest.raises(pytest.fail.Exception, match="no mandoc on PATH"):
        binaries.needs("mandoc", "the man pages")
    assert binaries.missing == {"mandoc": ["the man pages"]}
