"""The configuration file, seen through ``config`` and the commands; a table of wrong files, hence
the number of lines.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from nsqtools.cli import cli
from nsqtools.cli.exits import run

if TYPE_CHECKING:
    from pathlib import Path


class Run(Protocol):
    def __call__(self, *args: str) -> tuple[int, str, str]: ...


@pytest.fixture
def nsqtools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs a command line in this process, in ``tmp_path``: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    for name in [name for name in os.environ if name.startswith("NSQTOOLS_")]:
        monkeypatch.delenv(name)

    def call(*args: str) -> tuple[int, str, str]:
        code = run(cli, args)
        return code, *capsys.readouterr()

    return call


class Shown(Protocol):
    def __call__(self, *args: str) -> dict[str, tuple[Any, str, str]]: ...


@pytest.fixture
def shown(nsqtools: Run) -> Shown:
    """What ``config show`` says: option to value, source, where."""

    def call(*args: str) -> dict[str, tuple[Any, str, str]]:
        code, out, err = nsqtools("config", "show", "--json", *args)
        assert (code, err) == (0, "")
        return {
            row["option"]: (row["value"], row["source"], row["where"]) for row in json.loads(out)
        }

    return call


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def call(text: str, name: str = "b.toml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    return call


FILE = """
[defaults]
client-id = "defaults"
log_format = "json"

[tail]
client-id = "tail"
max-in-flight = 5
topic = "events"

[profile.prod]
client-id = "prod"

[profile.prod.tail]
client-id = "prod-tail"

[profile.test]
"""


def test_flag_beats_environment_beats_profile_beats_file_beats_default(
    shown: Shown, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ["--config", write(FILE)]
    assert shown("tail")["client-id"] == ("", "default", "")
    assert shown("pub", *file)["client-id"] == ("defaults", "file", "b.toml: [defaults]")
    assert shown("tail", *file)["client-id"] == ("tail", "file", "b.toml: [tail]")
    prod = [*file, "--profile", "prod"]
    assert shown("pub", *prod)["client-id"] == ("prod", "profile", "b.toml: [profile.prod]")
    where = "b.toml: [profile.prod.tail]"
    assert shown("tail", *prod)["client-id"] == ("prod-tail", "profile", where)
    monkeypatch.setenv("NSQTOOLS_CLIENT_ID", "all")
    assert shown("tail", *prod)["client-id"] == ("all", "environment", "NSQTOOLS_CLIENT_ID")
    monkeypatch.setenv("NSQTOOLS_TAIL_CLIENT_ID", "own")
    assert shown("tail", *prod)["client-id"] == ("own", "environment", "NSQTOOLS_TAIL_CLIENT_ID")
    assert shown("tail", *prod, "--client-id", "me")["client-id"] == ("me", "flag", "--client-id")


def test_keys_are_flag_names_with_dashes_or_underscores(shown: Shown, write: Any) -> None:
    found = shown("tail", "--config", write("[tail]\nmax_in_flight = 7\nmax-attempts = 3\n"))
    assert found["max-in-flight"][0] == 7
    assert found["max-attempts"][0] == 3


def test_a_single_value_will_do_where_a_list_is_meant(shown: Shown, write: Any) -> None:
    found = shown("tail", "--config", write('[tail]\ntopic = "ab"\n'))
    assert found["topic"] == (["ab"], "file", "b.toml: [tail]")


def test_values_keep_the_types_of_toml(shown: Shown, write: Any) -> None:
    found = shown(
        "tail",
        "--config",
        write(
            "[tail]\ncount = 5\nidle-timeout = '1m30s'\nmax-in-flight-bytes = 65536\n"
            "snappy = true\nverbose = 2\nlookupd-poll-jitter = 0\n"
        ),
    )
    names = ("count", "idle-timeout", "max-in-flight-bytes", "snappy", "verbose")
    assert [found[name][0] for name in names] == [5, "1m30s", "64KiB", True, 2]
    assert found["lookupd-poll-jitter"][0] == 0


def test_options_without_a_flag_stand_under_their_name_or_as_pairs_of_go_nsq(
    shown: Shown, write: Any
) -> None:
    text = '[tail]\nread-timeout = "90s"\nconsumer-opt = ["write_timeout,2s", "read-timeout,80s"]\n'
    found = shown("tail", "--config", write(text))
    assert found["read-timeout"] == ("1m30s", "file", "b.toml: [tail]")
    assert found["write-timeout"] == ("2s", "file", "b.toml: [tail]: consumer-opt")


def test_a_table_of_a_group_serves_its_commands(shown: Shown, write: Any) -> None:
    file = ["--config", write("[lookup]\njson = true\n[lookup.nodes]\njson = false\n")]
    assert shown("lookup", "topics", *file)["json"] == (True, "file", "b.toml: [lookup]")
    assert shown("lookup", "nodes", *file)["json"] == (False, "file", "b.toml: [lookup.nodes]")


def test_a_weaker_value_gives_way_to_one_that_excludes_it(shown: Shown, write: Any) -> None:
    file = ["--config", write("[defaults]\nsnappy = true\n[tail]\nlookupd-http-address='l:4161'\n")]
    found = shown("tail", *file, "--deflate", "--nsqd-tcp-address", "n:4150")
    assert (found["snappy"][0], found["deflate"][0]) == (False, True)
    assert (found["lookupd-http-address"][0], found["nsqd-tcp-address"][0]) == ([], ["n:4150"])


def test_nsqds_and_nsqlookupds_may_be_given_together_but_a_flag_silences_weaker_values(
    shown: Shown, write: Any
) -> None:
    file = ["--config", write("[defaults]\nlookupd-http-address='l:4161'\n")]
    found = shown("stats", *file, "--nsqd-http-address", "n:4151")
    assert (found["lookupd-http-address"][0], found["nsqd-http-address"][0]) == ([], ["n:4151"])
    both = ["--nsqd-http-address", "n:4151", "--lookupd-http-address", "m:4161"]
    found = shown("stats", *file, *both)
    assert found["lookupd-http-address"][0] == ["m:4161"]
    assert found["nsqd-http-address"][0] == ["n:4151"]


@pytest.mark.parametrize(
    ("key", "args"),
    [
        ("json = true", ["--format", "%s"]),
        ("format = '%s'", ["--json"]),
        ("null = true", ["--length-prefix"]),
        ("delimiter = ';'", ["-0"]),
        ("print-topic = true", ["--json"]),
    ],
)
def test_a_format_on_the_command_line_puts_that_of_the_file_out_of_force(
    shown: Shown, write: Any, key: str, args: list[str]
) -> None:
    found = shown("tail", "--config", write(f"[tail]\n{key}\n"), *args)
    assert found[key.partition(" ")[0]][1] == "default"
    assert found[args[0].removeprefix("--").replace("-0", "null")][1] == "flag"


def test_paths_of_a_file_are_relative_to_it_and_know_the_home_directory(
    shown: Shown, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = '[defaults]\ntls-cert = "tls/cert"\ntls-key = "~/key"\ntls-root-ca-file = "/ca"\n'
    found = shown("tail", "--config", write(text, "etc/c.toml"))
    assert found["tls-cert"][0] == str(tmp_path / "etc/tls/cert")
    assert found["tls-key"][0] == "/home/me/key"
    assert found["tls-root-ca-file"][0] == "/ca"


def test_the_file_is_the_one_asked_for_or_the_users(
    shown: Shown, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown("tail")["config"] == ("none", "default", "")
    write('[tail]\nclient-id = "xdg"\n', "xdg/nsqtools/config.toml")
    assert shown("tail")["client-id"][0] == "xdg"
    assert shown("tail")["config"][0] == str(tmp_path / "xdg/nsqtools/config.toml")
    monkeypatch.setenv("NSQTOOLS_CONFIG", write('[tail]\nclient-id = "env"\n', "env.toml"))
    assert shown("tail")["client-id"][0] == "env"
    assert shown("tail", "--config", write('[tail]\nclient-id = "f"\n'))["client-id"][0] == "f"
    assert shown("tail", "--config", "none")["client-id"] == ("", "default", "")
    monkeypatch.delenv("NSQTOOLS_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    write('[tail]\nclient-id = "home"\n', ".config/nsqtools/config.toml")
    assert shown("tail")["client-id"][0] == "home"
    monkeypatch.setenv("NSQTOOLS_CONFIG", "none")
    assert shown("tail")["client-id"] == ("", "default", "")


def test_a_profile_is_asked_for_by_flag_or_variable_or_is_the_files_default(
    shown: Shown, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashed = ["--config", write('default-profile = "test"\n' + FILE)]
    assert shown("pub", *dashed)["profile"] == (["test"], "file", "b.toml: default_profile")
    file = ["--config", write('default_profile = "prod"\n' + FILE)]
    found = shown("pub", *file)
    assert found["client-id"][0] == "prod"
    assert found["profile"] == (["prod"], "file", "b.toml: default_profile")
    assert shown("pub", *file, "--profile", "none")["client-id"][0] == "defaults"
    monkeypatch.setenv("NSQTOOLS_PROFILE", "test")
    assert shown("pub", *file)["client-id"][0] == "defaults"
    assert shown("pub", *file, "--profile", "prod")["client-id"][0] == "prod"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tail]\nmax-in-flihgt = 5\n", "[tail]: unknown key 'max-in-flihgt'; did you mean "
         "'max-in-flight'?"),
        ("[tail]\nmax_in_flihgt = 5\n", "[tail]: unknown key 'max-in-flihgt'; did you mean "
         "'max-in-flight'?"),
        ("[tail]\nzzz = 5\n", "[tail]: unknown key 'zzz'"),
        ("[defaults]\nsnapy = true\n", "[defaults]: unknown key 'snapy'; did you mean 'snappy'?"),
        ("[defaults]\nuntil-empty = true\n", "[defaults]: unknown key 'until-empty': it is not "
         "shared by commands, so put it into a command's table"),
        ("[tial]\n", "unknown table [tial]; did you mean 'tail'?"),
        ("tls-cert = 'x'\n", "'tls-cert' stands outside any table: put it into [defaults] or a "
         "command's table"),
        ("default_profle = 'x'\n", "'default_profle' stands outside any table; did you mean "
         "'default_profile'?"),
        ("[[tail]]\ntopic = 'x'\n", "[tail]: expected a table, found a list"),
        ("[tail]\nclient-id = 2026-01-01\n", "[tail]: client-id: 2026-01-01 is not text: write it "
         "in quotes"),
        ("tail = 5\n", "[tail]: expected a table, found 5"),
        ("[tail]\ncount = 'five'\n", "[tail]: count: expected a whole number, without quotes, "
         "found 'five'"),
        ("[tail]\ncount = true\n", "[tail]: count: expected a whole number, found true"),
        ("[tail]\ncount = 1.5\n", "[tail]: count: expected a whole number, found 1.5"),
        ("[tail]\ncount = [1]\n", "[tail]: count: expected one value, found a list"),
        ("[tail.count]\n", "[tail]: count: expected a value, found a table"),
        ("[tail]\nsnappy = 'yes'\n", "[tail]: snappy: expected true or false, without quotes, "
         "found 'yes'"),
        ("[tail]\nclient-id = 5\n", "[tail]: client-id: 5 is not text: write it in quotes"),
        ("[tail]\ntopic = ['a', 5]\n", "[tail]: topic: 5 is not text: write it in quotes"),
        ("[tail]\nidle-timeout = 30\n", "[tail]: idle-timeout: expected a duration in quotes, "
         "such as \"30s\", found 30"),
        ("[tail]\nidle-timeout = 'soon'\n", "[tail]: idle-timeout: 'soon' is not a duration: "
         "write it with units, as in 500ms or 1h30m"),
        ("[tail]\ndeflate-level = 11\n", "[tail]: deflate-level: 11 is out of range: expected "
         "1 to 9"),
        ("[tail]\nlog-format = 'xml'\n", "[tail]: log-format: 'xml' is not one of text, json"),
        ("[tail]\nmax-in-flight = 1\nmax_in_flight = 2\n", "[tail]: 'max-in-flight' is given "
         "twice, in two spellings"),
        ("[tail]\nconsumer-opt = 'max_atempts,3'\n", "[tail]: consumer-opt: unknown option "
         "'max_atempts'; did you mean 'max_attempts'?"),
        ("[tail]\ntopic = 'a b'\n", "[tail]: topic: topic 'a b': expected 1 to 64 of the "
         "characters . _ - a-z A-Z 0-9, optionally ending in #ephemeral"),
        ("[defaults]\nnsqd-tcp-address = 'a:b:c'\n", "[defaults]: nsqd-tcp-address: address "
         "'a:b:c': write an IPv6 address in brackets, [host]:port"),
        ("[tail]\nsnappy = true\ndeflate = true\n", "[tail]: snappy and deflate exclude each "
         "other: choose one"),
        ("[tail]\njson = true\nformat = '%s'\n", "[tail]: json and format exclude each "
         "other: choose one"),
        ("[tail]\nheartbeat-interval = '2m'\n", "[tail]: heartbeat_interval 2m is longer than "
         "read_timeout 1m: a healthy connection would be dropped"),
        ("[tail]\ntls-cert = 'c'\n", "[tail]: --tls-cert and --tls-key belong together: give "
         "both or neither"),
        ("[tail]\nconfig = 'x'\n", "[tail]: unknown key 'config'"),
        ("default_profile = 5\n[profile.prod]\n", "default_profile: 5 is not text: write it in "
         "quotes"),
        ("default_profile = 'prdo'\n[profile.prod]\n", "default_profile prdo: b.toml has no such "
         "profile; did you mean 'prod'?"),
        ("default_profile = 'p'\n[profile.p]\nsnapy = true\n", "[profile.p]: unknown key 'snapy'; "
         "did you mean 'snappy'?"),
        ("default_profile = 'p'\n[profile.p.tial]\n", "[profile.p]: unknown table 'tial'; did "
         "you mean 'tail'?"),
        ("[profile]\nprod = 5\n", "[profile]: expected tables such as [profile.prod], found the "
         "value 'prod'"),
        ("[tail]\ncount = \n", "line 2, column 9: invalid value"),
        ("[tail]\ncount = 5 5\n", "line 2, column 11: expected newline or end of document after "
         "a statement"),
        ("[tail]\ncount = [1\n", "line 2, column 11: unclosed array"),
        ("[profile.a]\n[profile.a]\n", "line 2, column 11: cannot declare ('profile', 'a') twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_one_line_with_its_place(
    nsqtools: Run, write: Any, text: str, message: str
) -> None:
    file = write(text)
    expected = (2, "", f"nsqtools: b.toml: {message}\n")
    assert nsqtools("tail", "--topic", "t", "--config", file) == expected
    assert nsqtools("config", "check", file) == expected


def test_a_file_that_is_missing_or_unreadable_is_named_with_who_asked_for_it(
    nsqtools: Run, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = ("tail", "--topic", "t")
    missing = "no.toml: No such file or directory\n"
    assert nsqtools(*tail, "--config", "no.toml") == (2, "", f"nsqtools: --config {missing}")
    directory = f"nsqtools: --config {tmp_path}: Is a directory\n"
    assert nsqtools(*tail, "--config", str(tmp_path)) == (2, "", directory)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    latin = (2, "", "nsqtools: latin.toml: not UTF-8 at byte 5\n")
    assert nsqtools(*tail, "--config", "latin.toml") == latin
    monkeypatch.setenv("NSQTOOLS_CONFIG", "no.toml")
    assert nsqtools(*tail) == (2, "", f"nsqtools: NSQTOOLS_CONFIG {missing}")


def test_a_file_that_no_person_wrote_is_refused_in_one_line(
    nsqtools: Run, write: Any, tmp_path: Path
) -> None:
    def refused(name: str) -> str:
        code, out, err = nsqtools("config", "check", name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err.removeprefix(f"nsqtools: {name}: ")

    assert refused("/dev/zero") == "more than 1MiB: no configuration file\n"
    assert refused(write("a = " + "[" * 100_000)) == "nested too deeply\n"
    assert refused(write("a = " + "9" * 5000)).startswith("Exceeds the limit")
    deep = write(f"[{'.'.join('a' * 3000)}]\n")
    assert nsqtools("config", "check", deep) == (2, "", f"nsqtools: {deep}: unknown table [a]\n")
    text = "nsqtools: there is no configuration file to check: name one\n"
    assert nsqtools("config", "check", "none") == (2, "", text)


def test_a_byte_order_mark_is_no_error(shown: Shown, write: Any) -> None:
    file = write("\ufeff[tail]\ncount = 5\n")
    assert shown("tail", "--config", file)["count"][0] == 5


def test_a_profile_that_is_not_there_is_named_with_the_nearest(
    nsqtools: Run, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ["tail", "--topic", "t", "--config", write(FILE)]

    def refused(*args: str) -> str:
        code, out, err = nsqtools(*args)
        assert (code, out) == (2, "")
        return err

    text = "nsqtools: --profile prdo: b.toml has no such profile; did you mean 'prod'?\n"
    assert refused(*file, "--profile", "prdo") == text
    text = "nsqtools: --profile x: b.toml has no such profile; there are prod, test\n"
    assert refused(*file, "--profile", "x") == text
    assert refused(*file, "--profile", "prod", "--profile", "test") == (
        "nsqtools tail: --profile: give one profile, not 'prod' and 'test'\n"
        "Try 'nsqtools tail --help'.\n"
    )
    assert nsqtools("config", "show", "tail", "--profile", "none")[0] == 0
    text = "nsqtools: --profile x: b.toml has no such profile; there are prod, test\n"
    assert refused("config", "check", "b.toml", "--profile", "x") == text
    text = "nsqtools: --profile prod: no configuration file is read\n"
    assert refused("tail", "--topic", "t", "--profile", "prod") == text
    monkeypatch.setenv("NSQTOOLS_PROFILE", "prdo")
    text = "nsqtools: NSQTOOLS_PROFILE prdo: b.toml has no such profile; did you mean 'prod'?\n"
    assert refused(*file) == text


@pytest.mark.parametrize(
    ("text", "command", "both"),
    [
        ("[to-file]\ngzip = true\n[to_file]\n", "to-file --topic t", "[to-file] and [to_file]"),
        (
            "[profile.p.to_http]\nbatch = 2\n[profile.p.to-http]\nbatch = 3\n",
            "to-http --topic t --post http://a/ --profile p",
            "[profile.p.to_http] and [profile.p.to-http]",
        ),
    ],
)
def test_a_table_in_two_spellings_is_refused(
    nsqtools: Run, write: Any, text: str, command: str, both: str
) -> None:
    file = write(text)
    for line in ((*command.split(), "--config", file), ("config", "check", file)):
        code, _, stderr = nsqtools(*line)
        assert (code, both in stderr) == (2, True)


@pytest.mark.parametrize("name", ["success-on", "drop-on", "retry-on"])
@pytest.mark.parametrize("text", ["999", "700", "600-601", "6xx", "ok", "20"])
def test_a_status_that_there_is_not_is_refused_where_it_stands(
    nsqtools: Run, write: Any, name: str, text: str
) -> None:
    file = write(f"[to-http]\n{name} = '2xx, {text}'\n")
    command = ("to-http", "--topic", "t", "--post", "http://a/")
    for line in ((*command, "--config", file), ("config", "check", file)):
        code, _, stderr = nsqtools(*line)
        assert code == 2
        assert f"[to-http]: --{name}: {text!r}" in stderr
    assert nsqtools(*command, f"--{name}", text)[0] == 2


def test_what_all_commands_of_a_cluster_share_may_stand_in_defaults(
    nsqtools: Run, shown: Shown, write: Any
) -> None:
    file = write("[defaults]\nnsqd-http-address = '127.0.0.1:1'\n")
    assert nsqtools("config", "check", file)[0] == 0
    for command in ("stats", "doctor", "topic pause"):
        found = shown(*command.split(), "--config", file)["nsqd-http-address"]
        assert found[:2] == (["127.0.0.1:1"], "file")
    assert shown("tail", "--config", file)["nsqd-http-address"][1] == "default"


def test_a_table_of_another_command_does_not_stop_this_one_but_is_found_by_check(
    nsqtools: Run, shown: Shown, write: Any
) -> None:
    text = (
        "[pub]\nrat = 5\ncount = 1\n[profile.p.lookup.nodes]\njsno = 1\n[lookup.tpoics]\n"
        "[tail]\ncount = 2\n[demo]\nx = 1\n"
    )
    file = write(text)
    assert shown("tail", "--config", file)["count"][0] == 2
    assert nsqtools("config", "check", file) == (
        2,
        "",
        "nsqtools: b.toml: [pub]: unknown key 'rat'; did you mean 'rate'?\n"
        "nsqtools: b.toml: [pub]: unknown key 'count'\n"
        "nsqtools: b.toml: [lookup]: unknown table 'tpoics'; did you mean 'topics'?\n"
        "nsqtools: b.toml: [profile.p.lookup.nodes]: unknown key 'jsno'; did you mean 'json'?\n"
        "nsqtools: b.toml: [demo]: unknown key 'x'\n",
    )


def test_check_without_a_name_takes_the_file_that_commands_read(nsqtools: Run, write: Any) -> None:
    text = "nsqtools: there is no configuration file to check: name one\n"
    assert nsqtools("config", "check") == (2, "", text)
    write(FILE, "xdg/nsqtools/config.toml")
    code, out, err = nsqtools("config", "check")
    assert (code, out.endswith("config.toml: ok\n"), err) == (0, True, "")


def test_the_starting_file_is_right_as_it_is_and_with_every_line_in_force(
    nsqtools: Run, shown: Shown, write: Any
) -> None:
    code, out, err = nsqtools("config", "init")
    assert (code, err, tomllib.loads(out)["defaults"]) == (0, "", {})
    assert nsqtools("config", "check", write(out)) == (0, "b.toml: ok\n", "")
    _, _, tables = out.partition("\n[defaults]")
    in_force, count = re.subn(r"(?m)^# (?=[a-z-0-9]+ = )", "", tables)
    assert count > 80
    file = write("[defaults]" + in_force)
    assert nsqtools("config", "check", file) == (0, "b.toml: ok\n", "")
    for command in (["tail"], ["pub"], ["lookup", "topics"]):
        plain, forced = shown(*command), shown(*command, "--config", file)
        different = {n: (plain[n], forced[n]) for n in plain if plain[n][0] != forced[n][0]}
        assert different.keys() == {"config"}


def test_a_key_of_defaults_is_not_for_a_namesake_of_one_command_alone(
    shown: Shown, write: Any
) -> None:
    file = write('[defaults]\nmsg-timeout = "10s"\ntls-cert = "client.pem"\n')
    assert shown("tail", "--config", file)["msg-timeout"][:2] == ("10s", "file")
    for name in ("msg-timeout", "tls-cert"):
        assert shown("sandbox", "--config", file)[name] == shown("sandbox")[name]


def test_secrets_are_masked(
    shown: Shown, nsqtools: Run, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQTOOLS_AUTH_SECRET", "s3cret")
    assert shown("tail")["auth-secret"] == ("********", "environment", "NSQTOOLS_AUTH_SECRET")
    (tmp_path / write("[tail]\nauth-secret = 12345678\n")).chmod(0o600)
    text = "nsqtools: b.toml: [tail]: auth-secret: ******** is not text: write it in quotes\n"
    assert nsqtools("config", "check", "b.toml") == (2, "", text)
    assert "s3cret" not in nsqtools("config", "show")[1]
    file = write("""[to-http]
post = ["https://me:s3cret@a.test/hook?key=s3cret", "https://b.test/"]
header = "Authorization: Bearer s3cret"
proxy = "http://me:s3cret@proxy.test:3128"
""")
    found = {name: value for name, (value, *_) in shown("to-http", "--config", file).items()}
    assert found["post"] == ["https://********@a.test/hook?********", "https://b.test/"]
    assert found["header"] == ["Authorization:********"]
    assert found["proxy"] == "http://********@proxy.test:3128"


def test_a_secret_in_a_file_that_others_may_read_is_a_warning(
    nsqtools: Run, write: Any, tmp_path: Path
) -> None:
    file = write("[defaults]\nauth-secret = 's3cret'\n")
    args = ["lookup", "topics", "--lookupd-http-address", "127.0.0.1:1", "--config", file]
    text = "nsqtools: warning: b.toml holds a secret and may be read by others: chmod 600 it\n"
    (tmp_path / file).chmod(0o644)
    pub = ["pub", "--topic", "t", "--nsqd-tcp-address", "127.0.0.1:1", "--config", file, "x"]
    assert nsqtools(*pub)[2].startswith(text)
    assert nsqtools(*args)[2].startswith(text)
    (tmp_path / file).chmod(0o600)
    assert text not in nsqtools(*pub)[2]


def test_a_secret_file_that_cannot_be_used_is_one_line(
    nsqtools: Run, write: Any, tmp_path: Path
) -> None:
    def refused(path: str) -> str:
        code, out, err = nsqtools("pub", "--topic", "t", "--auth-secret-file", path, "x")
        assert (code, out) == (2, "")
        return err

    reason = "No such file or directory"
    assert refused("no") == f"nsqtools: --auth-secret-file no: {reason}\n"
    assert refused(".") == "nsqtools: --auth-secret-file .: Is a directory\n"
    assert refused("/dev/null") == "nsqtools: --auth-secret-file /dev/null: empty\n"
    (tmp_path / "long").write_text("x" * 70_000)
    assert refused("long") == "nsqtools: --auth-secret-file long: more than 65536 characters\n"
    (tmp_path / "latin").write_bytes(b"\xe9")
    (tmp_path / "latin").chmod(0o600)
    assert refused("latin") == "nsqtools: --auth-secret-file latin: not text\n"
    file = write("[defaults]\nauth-secret-file = 'gone'\n")
    code, _, err = nsqtools("pub", "--topic", "t", "--config", file, "x")
    gone = tmp_path / "gone"
    assert (code, err) == (2, f"nsqtools: --auth-secret-file {gone}: {reason}\n")


def test_a_secret_file_that_others_may_read_is_a_warning(nsqtools: Run, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    pub = ["pub", "--topic", "t", "--nsqd-tcp-address", "127.0.0.1:1", "x"]
    text = "nsqtools: warning: secret may be read by others: chmod 600 it\n"
    secret.chmod(0o640)
    assert nsqtools(*pub, "--auth-secret-file", "secret")[2].startswith(text)
    secret.chmod(0o600)
    assert text not in nsqtools(*pub, "--auth-secret-file", "secret")[2]


def test_a_secret_among_the_pairs_counts_too_and_check_and_show_say_so(
    nsqtools: Run, write: Any, tmp_path: Path
) -> None:
    file = write("[profile.p.tail]\nconsumer-opt = ['tls-v1', 'auth-secret,s3cret']\n")
    (tmp_path / file).chmod(0o644)
    text = "nsqtools: warning: b.toml holds a secret and may be read by others: chmod 600 it\n"
    assert nsqtools("config", "check", file) == (0, "b.toml: ok\n", text)
    code, out, err = nsqtools("config", "show", "tail", "--config", file, "--profile", "p")
    assert (code, err) == (0, text)
    assert "s3cret" not in out


def test_what_drives_a_terminal_is_escaped_and_a_row_stays_a_row(nsqtools: Run) -> None:
    out = nsqtools("config", "show", "tail", "--client-id", "a\x1b[31m\tb\nc")[1]
    assert "client-id\ta\\x1b[31m\\tb\\nc\tflag\t--client-id\n" in out


def test_what_is_required_is_named(nsqtools: Run) -> None:
    text = "nsqtools tail: --topic TOPIC is required\nTry 'nsqtools tail --help'.\n"
    assert nsqtools("tail", "--config", "none") == (2, "", text)


def test_options_of_one_command_line_that_exclude_each_other_are_named(nsqtools: Run) -> None:
    both = ["--nsqd-tcp-address", "a", "--lookupd-http-address", "b"]
    text = "--nsqd-tcp-address and --lookupd-http-address exclude each other: choose one"
    assert nsqtools("tail", "--topic", "t", *both)[2].splitlines()[0] == f"nsqtools tail: {text}"


def test_show_without_a_command_lists_all_of_them(nsqtools: Run) -> None:
    code, out, err = nsqtools("config", "show")
    assert (code, err) == (0, "")
    commands = {line.split("\t")[0] for line in out.splitlines()}
    assert {"tail", "pub", "lookup topics", "config show"} <= commands
    assert "tail\tmax-in-flight\t2500\tdefault\t\n" in out
    assert "max-in-flight\t2500\tdefault\t\n" in nsqtools("config", "show", "tail")[1]


def test_show_refuses_what_is_no_command(nsqtools: Run) -> None:
    def refused(*args: str) -> str:
        code, out, err = nsqtools("config", "show", *args)
        assert (code, out) == (2, "")
        return err.splitlines()[0].removeprefix("nsqtools config show: ")

    assert refused("tial") == "no such command 'tial'; did you mean 'tail'?"
    assert refused("lookup") == "lookup: has no options to show"
    assert refused("lookup", "x") == "no such command 'x'"
