"""What TAB offers, and how shells are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from nsqtools.cli import COMMANDS, LazyCommand, LazyGroup, cli
from nsqtools.cli.complete import LINE, TEXT, candidates
from nsqtools.cli.exits import COMPLETE
from nsqtools.cli.options import Command, options
from nsqtools.config.option import Options, choice, flag, integer, option, path, texts
from tests.support.diskqueues import QueueFiles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.process import Cli


class Sample(Options):
    title = "Sample"

    colour: str = choice("Which.", "", "red", "green", "grey", short="c")
    picture: str = path("Where.")
    count: int = integer("How many.", 1, minimum=1, short="n")
    tag: tuple[str, ...] = texts("What for.")
    keep: bool = flag("Keep it.", short="k")
    verbose: int = option("count", "More.", 0, short="v")


@click.command("paint", cls=Command)
@click.argument("words", nargs=-1)
@options(sample=Sample)
def paint(words: tuple[str, ...], sample: Sample) -> None:
    """Paint."""


@click.command("draw", cls=Command)
@options(sample=Sample)
def draw(sample: Sample) -> None:
    """Draw."""


SAMPLES = LazyGroup(
    name="nsqtools",
    table={
        "paint": LazyCommand("Make", "Paint.", __name__),
        "draw": LazyCommand("Make", "Draw.", __name__),
        "print": LazyCommand("Make", "Never loaded.", "no.such.module"),
    },
)


def offers(line: str, group: click.Group = SAMPLES) -> list[str]:
    """Whole words that can stand at the end of the line; file names as ``<typed>``."""
    found = candidates(group, f"nsqtools {line}")
    return [
        found.kept + (item.value if item.type == "plain" else f"<{found.typed}>")
        for item in found.items
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ["paint", "draw", "print", "help"]),
        ("p", ["paint", "print"]),
        ("help p", ["paint", "print", "pipeline"]),
        ("help tr", ["troubleshooting"]),
        ("--log-format ", ["text", "json"]),
        ("--log-format=j", ["--log-format=json"]),
        ("--config ", ["<>"]),
        ("-v --config x --log-format text dr", ["draw"]),
        ("-q draw --colour g", ["green", "grey"]),
        ("-v --pro", ["--profile"]),
        ("help paint --c", []),
        ("nosuch --", []),
        ("draw --co", ["--colour", "--count", "--config"]),
        ("draw --colour red --co", ["--count", "--config"]),
        ("draw --tag x --ta", ["--tag"]),
        ("draw -co", ["-colour", "-count", "-config"]),
        ("draw --colour ", ["red", "green", "grey"]),
        ("draw --colour=g", ["--colour=green", "--colour=grey"]),
        ("draw -colour=g", ["-colour=green", "-colour=grey"]),
        ("draw -c g", ["green", "grey"]),
        ("draw -vvkc g", ["green", "grey"]),
        ("draw --picture ", ["<>"]),
        ("draw -picture=a/b", ["-picture=<a/b>"]),
        ("draw --nosuch -n x --colour r", ["red"]),
        ("draw --picture --colour --colour r", ["red"]),
        ('draw --colour "g', ["green", "grey"]),
        ("draw --picture a\\ b", ["<a b>"]),
        ('draw --tag "x y" --colour r', ["red"]),
        ("paint -- --c", []),
    ],
)
def test_a_word_is_completed_by_what_parsing_would_make_of_it(line: str, words: list[str]) -> None:
    assert offers(line) == words


def test_a_dash_begins_every_option_and_a_no_their_opposites() -> None:
    assert {"-c", "--colour", "--picture", "-k", "--keep", "--config"} < set(offers("draw -"))
    assert "--no-keep" not in offers("draw --")
    assert "--no-keep" in offers("draw --n")


def test_a_profile_is_completed_before_the_command_and_after_it(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[profile.prod]\n[profile.test]\n")
    assert offers(f"--config {file} --profile p") == ["prod"]
    assert offers(f"--config {file} draw --profile t") == ["test"]


def test_an_empty_word_stands_for_options_where_no_argument_is_known() -> None:
    assert {"--colour", "--keep", "--help"} < set(offers("draw "))
    assert offers("draw ") == offers("paint word ")
    assert offers("paint -- ") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", [*COMMANDS, "help"]),
        ("-v topic -q un", ["unpause"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("lookup t", ["topics"]),
        ("tail --topi", ["--topic"]),
        ("topic --pro", ["--profile"]),
        ("help pip", ["pipeline"]),
        ("config check ./a", ["<./a>"]),
        ("config show t", ["tail", "to-file", "to-http", "topic"]),
        ("config show --profile p tail --max-in-flight-", ["--max-in-flight-bytes"]),
        ("config show lookup ch", ["channels"]),
        ("config show pub --mode r", ["round-robin"]),
        ("queue ls va", ["<va>"]),
    ],
)
def test_the_products_commands_and_options_are_offered(line: str, words: list[str]) -> None:
    assert offers(line, cli) == words


def test_an_option_without_value_does_not_hide_the_arguments_before_it(tmp_path: Path) -> None:
    QueueFiles(tmp_path, "events:archive").write(0, b"")
    assert offers(f"queue cat {tmp_path} --topic ", cli) == ["events"]
    assert offers(f"queue cat {tmp_path} --topic events --channel ", cli) == ["archive"]


def press(
    nsqtools_cli: Cli, line: str, shell: str = "fish", env: Mapping[str, str] | None = None
) -> str:
    """What a shell is told; nothing goes to stderr, and the exit status is 0."""
    done = nsqtools_cli(env={COMPLETE: f"{shell}_complete", LINE: line, **(env or {})})
    assert (done.code, done.stderr) == (0, "")
    return done.stdout.decode()


def test_a_candidate_is_its_kind_its_text_and_its_help(nsqtools_cli: Cli) -> None:
    assert press(nsqtools_cli, "nsqtools ta") == f"plain\ttail\t{COMMANDS['tail'].help}\n"
    assert press(nsqtools_cli, "nsqtools pub --mode ro") == "plain\tround-robin\t\n"
    assert press(nsqtools_cli, "nsqtools tail --tls-cert my") == "file\tmy\t\n"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nsqtools tail --config /no/such/file --profile ",
        "nsqtools tail --config broken.toml --topic ",
        "nsqtools tail --lookupd-http-address :::: --nsqd-http-address 127.0.0.1:1 --topic ",
        "nsqtools tail --nsqd-tcp-address 127.0.0.1:1 --topic ",
        "nsqtools tail --topic 'no such' --lookupd-http-address 127.0.0.1:1 --channel ",
        "nsqtools tail \udcff --profile ",
    ],
)
def test_whatever_is_wrong_goes_unsaid(nsqtools_cli: Cli, tmp_path: Path, line: str) -> None:
    (tmp_path / "broken.toml").write_text("[defaults\n")
    options = ("NSQTOOLS_LOOKUPD_HTTP_ADDRESS", "NSQTOOLS_NSQD_HTTP_ADDRESS")
    servers = dict.fromkeys(options, "127.0.0.1:1")
    assert press(nsqtools_cli, line, "bash", {TEXT: "", **servers}) == ""
