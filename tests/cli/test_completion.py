"""What TAB offers, and how shells are told."""

from pathlib import Path

import pytest

from nsqtools.cli import COMMANDS, cli
from nsqtools.cli.complete import LINE, TEXT, candidates
from nsqtools.cli.exits import COMPLETE
from tests.support.diskqueues import QueueFiles
from tests.support.process import Cli

FORMATS = ["raw", "json", "length-prefixed"]
SHARED = ["--config", "--profile", "--log-format", "--verbose", "--quiet", "--help"]


def offers(line: str) -> list[str]:
    """Whole words that can stand at the end of the line; file names as ``<typed>``."""
    found = candidates(cli, f"nsqtools {line}")
    return [
        found.kept + (item.value if item.type == "plain" else f"<{found.typed}>")
        for item in found.items
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", [*COMMANDS, "help"]),
        ("p", ["pipeline", "pub"]),
        ("help pi", ["pipeline"]),
        ("help tr", ["troubleshooting"]),
        ("help ex", ["exit-codes"]),
        ("help pipeline a", ["archive"]),
        ("help pub --m", []),
        ("lookup t", ["topics"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("--log-format ", ["text", "json"]),
        ("--log-format=j", ["--log-format=json"]),
        ("--config ", ["<>"]),
        ("-v --config x --log-format text verif", ["verify"]),
        ("-v topic -q un", ["unpause"]),
        ("-q pub --mode r", ["round-robin"]),
        ("-v --pro", ["--profile"]),
        ("topic --pro", ["--profile"]),
        ("nosuch --", []),
        ("verify --fo", ["--format"]),
        ("verify --format raw --fo", []),
        ("tail --topic x --topi", ["--topic"]),
        ("verify -fo", ["-format"]),
        ("verify --format ", FORMATS),
        ("verify --format=j", ["--format=json"]),
        ("verify -format=j", ["-format=json"]),
        ("pub --tls-cert ", ["<>"]),
        ("pub -tls-cert=a/b", ["-tls-cert=<a/b>"]),
        ("pub --tls-cert a\\ b", ["<a b>"]),
        ("pub --tls-cert --mode --mode r", ["round-robin"]),
        ("tail --decode ", ["msgpack", "avro:", "protobuf:", "cmd:"]),
        ("tail --decode avro:a/b", ["avro:<a/b>"]),
        ("relay --decode=protobuf:", ["--decode=protobuf:<>"]),
        ("pub --nosuch -v x --mode r", ["round-robin"]),
        ('pub --mode "r', ["round-robin"]),
        ('pub --topic "x y" --mode r', ["round-robin"]),
        ("pub -- --m", []),
        ("tail -v0 --tls-m", ["--tls-min-version"]),
        ("tail -v0n --tls-m", []),
        ("tail --pr", ["--print-topic", "--profile"]),
        ("tail --no-pr", ["--no-print-topic"]),
        ("queue ls va", ["<va>"]),
        ("config check ./a", ["<./a>"]),
        ("config show --ch", ["--changed"]),
        ("config show t", [name for name in COMMANDS if name[0] == "t"]),
        ("config show --profile p tail --max-in-flight-", ["--max-in-flight-bytes"]),
        ("config show lookup ch", ["channels"]),
        ("config show pub --mode r", ["round-robin"]),
    ],
)
def test_a_word_is_completed_by_what_parsing_would_make_of_it(line: str, words: list[str]) -> None:
    assert offers(line) == words


def test_a_dash_or_an_empty_word_stands_for_options_where_no_argument_is_known() -> None:
    assert {"-v", "-q", *SHARED, "--max-msg-size", "--json"} < set(offers("verify -"))
    assert {*SHARED, "--max-in-flight", "--json"} < set(offers("tail "))
    assert "--no-json" not in offers("tail --")
    assert offers("completion bash ") == ["--help"]
    assert offers("pub -- ") == []


def test_a_profile_is_completed_before_the_command_and_after_it(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[profile.prod]\n[profile.test]\n")
    assert offers(f"--config {file} --profile p") == ["prod"]
    assert offers(f"--config {file} tail --profile t") == ["test"]


def test_an_option_without_value_does_not_hide_the_arguments_before_it(tmp_path: Path) -> None:
    QueueFiles(tmp_path, "events:archive").write(0, b"")
    assert offers(f"queue cat {tmp_path} --topic ") == ["events"]
    assert offers(f"queue cat {tmp_path} --topic events --channel ") == ["archive"]


def test_a_line_that_is_no_text_completes_nothing(nsqtools_cli: Cli) -> None:
    line = "nsqtools tail \udcff --profile "
    done = nsqtools_cli(env={COMPLETE: "bash_complete", LINE: line, TEXT: ""})
    assert (done.code, done.stdout, done.stderr) == (0, b"", "")
