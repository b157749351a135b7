"""TAB in real shells, typed at through pseudo-terminals.

Enter follows TAB at once, and what ``nsqtools`` then gets as arguments says how the line was
completed, quoting included.
"""

import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from nsqtools.cli.docs import script
from tests.support.binaries import needs
from tests.support.eventually import eventually
from tests.support.examples import LINES
from tests.support.forkserver import words
from tests.support.servers import MakeNsqd, Nsqlookupd

ROOT = Path(__file__).parents[2]
SHELLS = ["bash", "zsh", "fish"]
LOADS = [line for line in LINES if "completion" in line]
PROMPT = "ready> "
TIMEOUT = 120.0

# Completes as nsqtools does and otherwise only shows its arguments.
PROGRAM = """\
#!/bin/sh
if [ -n "$_NSQTOOLS_COMPLETE" ] || ! [ -t 1 ]; then exec {nsqtools} "$@"; fi
printf 'got<'; for word; do printf '%s|' "$word"; done; echo '>'
"""

# A program that cannot start.
BROKEN = PROGRAM.replace("exec {nsqtools}", "echo Traceback >&2; exit 1")

_ESCAPES = re.compile(
    r"\x1b(\][^\x07\x1b]*(\x07|\x1b\\)|\[[0-9;?<=>]*[ -/]*[@-~]|\(.|[=>78])|[\x07\r]"
)

BASHRC = "PS1='{prompt}'\nbind 'set show-all-if-ambiguous on' 'set enable-bracketed-paste off'\n"
ZSHRC = "PS1='{prompt}'\nfpath=($HOME/functions $fpath)\nautoload -Uz compinit\ncompinit -u\n"
FISHRC = "function fish_prompt; printf '{prompt}'; end\nset -g fish_greeting\n"


class Shell:
    """An interactive shell that runs in ``home``; a context manager."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        options = {"bash": ["--noprofile"], "zsh": ["-d"], "fish": ["--private"]}[name]
        path = needs(name, f"completion in {name}")
        self._argv = ["setsid", "-c", path, *options, "-i"]
        self._home = home
        self._output = ""

    def __enter__(self) -> Self:
        self._fd, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (50, 200))
        own = {"HOME": str(self._home), "PATH": f"{self._home}/bin:{os.environ['PATH']}"}
        common = {"PYTHONPATH": str(ROOT), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        self._process = subprocess.Popen(
            self._argv,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=own | common,
            cwd=self._home,
        )
        os.close(terminal)
        self._until(PROMPT)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)

    def run(self, line: str) -> str:
        """Enter a line and wait for the next prompt; what was shown until then."""
        os.write(self._fd, f"{line}\r".encode())
        self._until("\n")
        return self._until(PROMPT)

    def tab(self, line: str) -> list[str]:
        """Press TAB after ``nsqtools`` and a line; the arguments that Enter then gives."""
        return self.press(f"nsqtools {line}")[1]

    def press(self, line: str) -> tuple[str, list[str]]:
        """As ``tab`` for a whole line, with what was shown before nsqtools ran."""
        os.write(self._fd, f"{line}\t\r".encode())
        shown = self._until("got<")
        *words, end = self._until(">").removesuffix(">").split("|")
        assert end == ""
        self._until(PROMPT)
        return shown, words

    def _until(self, text: str) -> str:
        """Output up to and with a text, without the escapes of the terminal."""
        deadline = time.monotonic() + TIMEOUT
        while (plain := _ESCAPES.sub("", self._output)).find(text) < 0:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{self.name} did not show {text!r}: {self._output!r}"
            data = os.read(self._fd, 65536)
            if b"\x1b[c" in data:  # fish 4 asks what the terminal is
                os.write(self._fd, b"\x1b[?62c")
            self._output += data.decode(errors="replace")
        end = plain.find(text) + len(text)
        self._output = plain[end:]
        return plain[:end]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the scripts where shells look for them, for bash where its set-up names it."""
    home = tmp_path / "home"
    files = {
        "bin/nsqtools": PROGRAM.format(nsqtools=words()),
        ".bashrc": f"{BASHRC.format(prompt=PROMPT)}. ~/nsqtools.bash\n",
        "nsqtools.bash": script("bash"),
        ".zshrc": ZSHRC.format(prompt=PROMPT),
        "functions/_nsqtools": script("zsh"),
        ".config/fish/config.fish": FISHRC.format(prompt=PROMPT),
        ".config/fish/completions/nsqtools.fish": script("fish"),
        ".config/nsqtools/config.toml": "[profile.production]\n[profile.staging]\n",
        "my certificate.pem": "",
    }
    for name, text in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (home / "bin" / "nsqtools").chmod(0o755)
    return home


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, home: Path) -> Iterator[Shell]:
    with Shell(request.param, home) as running:
        yield running


def test_words_are_completed_and_files_by_the_shell_itself(shell: Shell, home: Path) -> None:
    assert shell.tab("lookup ch") == ["lookup", "channels"]
    assert shell.tab("pub --mode ro") == ["pub", "--mode", "round-robin"]
    assert shell.tab("pub --mode=ro") == ["pub", "--mode=round-robin"]
    assert shell.tab("tail --verbose --log-f") == ["tail", "--verbose", "--log-format"]
    assert shell.tab("pub -mode=ro") == ["pub", "-mode=round-robin"]
    assert shell.tab("tail --tls-cert=my") == ["tail", "--tls-cert=my certificate.pem"]
    assert shell.tab("tail --tls-cert ~/my") == ["tail", "--tls-cert", f"{home}/my certificate.pem"]
    assert shell.tab("tail -tls-cert=fun")[1].startswith("-tls-cert=functions")
    line = 'echo nsqtools; true | NAME=x ~/bin/nsqtools pub --mode "ro'
    assert shell.press(line)[1] == ["pub", "--mode", "round-robin"]


def test_several_candidates_are_listed(shell: Shell) -> None:
    shown, words = shell.press("nsqtools pub --mode ")
    assert {"round-robin", " all"} <= set(re.findall("round-robin| all", shown))
    shown, words = shell.press("nsqtools lookup ")
    assert {"channels", "nodes", "producers", "topics"} < set(shown.split())
    assert ("List all topics." in shown) == (shell.name != "bash")
    assert words == ["lookup"]


def test_topics_and_channels_are_those_that_nsqlookupd_knows(
    shell: Shell, nsqlookupd: Nsqlookupd, make_nsqd: MakeNsqd
) -> None:
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    nsqd.create("orders", "archive")
    nsqd.create("events#ephemeral", "live#ephemeral")
    eventually(lambda: nsqlookupd.lookup("events#ephemeral"))
    known = f"--lookupd-http-address={nsqlookupd.http}"
    for line, last in (
        (f"tail {known} --topic=ev", "--topic=events#ephemeral"),
        (f"tail {known} -topic events#ephemeral --channel=l", "--channel=live#ephemeral"),
        (f"lookup channels {known} ord", "orders"),
    ):
        eventually(partial(completes, shell, line, last))


def completes(shell: Shell, line: str, last: str) -> bool:
    """Whether TAB makes the last word this; a busy machine may miss the limit for servers."""
    *given, _ = line.split(" ")
    return shell.tab(line) == [*given, last]


@pytest.mark.parametrize("name", SHELLS)
def test_a_program_that_fails_shows_nothing(name: str, home: Path) -> None:
    (home / "bin" / "nsqtools").write_text(BROKEN)
    with Shell(name, home) as shell:
        shown, words = shell.press("nsqtools ta")
    assert words == ["ta"]
    if shell.name == "bash":
        assert shown == "nsqtools ta\ngot<"
    assert shown.count("\n") == 1
    assert not re.search(r"rror|Traceback|nsqtools:", shown)


@pytest.mark.parametrize("load", LOADS)
def test_the_script_can_be_loaded_as_help_says(load: str, home: Path) -> None:
    (name,) = {"bash", "zsh", "fish"} & set(re.findall(r"\w+", load))
    (home / "nsqtools.bash").write_text("")
    (home / "functions" / "_nsqtools").unlink()
    (home / ".config" / "fish" / "completions" / "nsqtools.fish").unlink()
    with Shell(name, home) as shell:
        assert shell.tab("ta") == ["ta"]
        shell.run(load)
        assert shell.tab("ta") == ["tail"]


@pytest.mark.parametrize("breaks", ["=", "=:"])
def test_bash_may_break_words_otherwise(breaks: str, home: Path) -> None:
    with Shell("bash", home) as shell:
        shell.run(f"COMP_WORDBREAKS=${{COMP_WORDBREAKS//[{breaks}]}}")
        given = ["pub", "--nsqd-tcp-address", "127.0.0.1:1"]
        assert shell.tab(f"{' '.join(given)} --mode=ro") == [*given, "--mode=round-robin"]
        assert shell.tab("tail --tls-cert=my") == ["tail", "--tls-cert=my certificate.pem"]
