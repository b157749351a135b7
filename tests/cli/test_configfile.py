"""The configuration file, seen through ``config`` and the commands."""

from __future__ import annotations

import json
import os
import re
import threading
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.config import connection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.process import Called

    Shown = Callable[..., dict[str, tuple[Any, str, str]]]
    Refused = Callable[..., str]
    Write = Callable[..., str]


@pytest.fixture
def shown(nsqtools: Called) -> Shown:
    """What ``config show`` says: option to value, source, where."""

    def call(*args: str) -> dict[str, tuple[Any, str, str]]:
        code, out, err = nsqtools("config", "show", "--json", *args)
        assert (code, err) == (0, "")
        return {
            row["option"]: (row["value"], row["source"], row["where"]) for row in json.loads(out)
        }

    return call


@pytest.fixture
def refused(nsqtools: Called) -> Refused:
    """What is said of a line that is refused: one line, and nothing on stdout."""

    def call(*args: str) -> str:
        code, out, err = nsqtools(*args)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    return call


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def call(text: str, name: str = "b.toml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    return call


NOBODY = "127.0.0.1:1"
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
    shown: Shown, write: Write, monkeypatch: pytest.MonkeyPatch
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


def test_options_without_a_flag_stand_under_their_name_or_as_pairs_of_go_nsq(
    shown: Shown, write: Write
) -> None:
    text = '[tail]\nread-timeout = "90s"\nconsumer-opt = ["write_timeout,2s", "read-timeout,80s"]\n'
    found = shown("tail", "--config", write(text))
    assert found["read-timeout"] == ("1m30s", "file", "b.toml: [tail]")
    assert found["write-timeout"] == ("2s", "file", "b.toml: [tail]: consumer-opt")


def test_a_table_of_a_group_serves_its_commands(
    shown: Shown, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ["--config", write("[lookup]\njson = true\n[lookup.nodes]\njson = false\n")]
    assert shown("lookup", "topics", *file)["json"] == (True, "file", "b.toml: [lookup]")
    assert shown("lookup", "nodes", *file)["json"] == (False, "file", "b.toml: [lookup.nodes]")
    monkeypatch.setenv("NSQTOOLS_LOOKUP_NODES_JSON", "true")
    wanted = (True, "environment", "NSQTOOLS_LOOKUP_NODES_JSON")
    assert shown("lookup", "nodes", *file)["json"] == wanted


def test_a_weaker_value_gives_way_to_one_that_excludes_it(shown: Shown, write: Write) -> None:
    file = ["--config", write("[defaults]\nsnappy = true\n[tail]\nlookupd-http-address='l:4161'\n")]
    found = shown("tail", *file, "--deflate", "--nsqd-tcp-address", "n:4150")
    assert (found["snappy"][0], found["deflate"][0]) == (False, True)
    assert (found["lookupd-http-address"][0], found["nsqd-tcp-address"][0]) == ([], ["n:4150"])
    file = ["--config", write("[tail]\nformat = '%s'\ndelimiter = ';'\n")]
    assert shown("tail", *file, "--json")["format"][1] == "default"
    assert shown("tail", *file, "-0")["delimiter"][1] == "default"


def test_paths_of_a_file_are_relative_to_it_and_know_the_home_directory(
    shown: Shown, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = '[defaults]\ntls-cert = "tls/cert"\ntls-key = "~/key"\ntls-root-ca-file = "/ca"\n'
    found = shown("tail", "--config", write(text, "etc/c.toml"))
    assert found["tls-cert"][0] == str(tmp_path / "etc/tls/cert")
    assert found["tls-key"][0] == "/home/me/key"
    assert found["tls-root-ca-file"][0] == "/ca"


def test_the_file_is_the_one_asked_for_or_the_users(
    shown: Shown, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    shown: Shown, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashed = ["--config", write('default-profile = "test"\n' + FILE)]
    assert shown("pub", *dashed)["profile"] == ("test", "file", "b.toml: default_profile")
    file = ["--config", write('default_profile = "prod"\n' + FILE)]
    found = shown("pub", *file)
    assert found["client-id"][0] == "prod"
    assert found["profile"] == ("prod", "file", "b.toml: default_profile")
    assert shown("pub", *file, "--profile", "none")["client-id"][0] == "defaults"
    monkeypatch.setenv("NSQTOOLS_PROFILE", "test")
    assert shown("pub", *file)["client-id"][0] == "defaults"
    assert shown("pub", *file, "--profile", "prod")["client-id"][0] == "prod"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[tail]\ncount = 'five'", "[tail]"),
        ("default_profile = 'p'\n[profile.p]\nsnapy = true", "[profile.p]"),
        ("[tail]\n[to-file]\n[tail ]", "line 3"),
        ("[tail]\ncount = [1", "at end of document"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_check_and_commands_say_alike(
    refused: Refused, write: Write, text: str, place: str
) -> None:
    file = write(f"{text}\n")
    said = refused("config", "check", file)
    assert said.startswith(f"nsqtools: {file}: ")
    assert place in said
    assert refused("tail", "--topic", "t", "--config", file) == said


def test_a_file_that_no_person_wrote_is_refused_in_one_line(refused: Refused, write: Write) -> None:
    deep = f"[{'.'.join('a' * 3000)}]\n"
    texts = ("a = " + "[" * 100_000, "a = " + "9" * 5000, deep)
    for name in ("/dev/zero", *(write(text, f"{n}.toml") for n, text in enumerate(texts))):
        assert refused("config", "check", name).startswith(f"nsqtools: {name}: ")


def test_a_wrong_table_of_another_command_does_not_stop_this_one(
    shown: Shown, write: Write
) -> None:
    text = "[pub]\nrat = 5\n[profile.p.lookup.nodes]\njsno = 1\n[lookup.tpoics]\n[demo]\nx = 1\n"
    assert shown("tail", "--config", write(f"{text}[tail]\ncount = 2\n"))["count"][0] == 2


def test_check_without_a_name_takes_the_file_that_commands_read(
    nsqtools: Called, refused: Refused, write: Write
) -> None:
    assert refused("config", "check") == refused("config", "check", "none")
    write(FILE, "xdg/nsqtools/config.toml")
    code, out, err = nsqtools("config", "check")
    assert (code, out.endswith("config.toml: ok\n"), err) == (0, True, "")


def test_the_starting_file_is_right_as_it_is_and_with_every_line_in_force(
    nsqtools: Called, shown: Shown, write: Write
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
    shown: Shown, write: Write
) -> None:
    file = write('[defaults]\nmsg-timeout = "10s"\ntls-cert = "client.pem"\n')
    assert shown("tail", "--config", file)["msg-timeout"][:2] == ("10s", "file")
    for name in ("msg-timeout", "tls-cert"):
        assert shown("sandbox", "--config", file)[name] == shown("sandbox")[name]


def test_secrets_are_masked(
    shown: Shown, nsqtools: Called, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQTOOLS_AUTH_SECRET", "s3cret")
    assert shown("tail")["auth-secret"] == ("********", "environment", "NSQTOOLS_AUTH_SECRET")
    (tmp_path / write("[tail]\nauth-secret = 12345678\n")).chmod(0o600)
    assert "12345678" not in nsqtools("config", "check", "b.toml")[2]
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


def test_a_secret_that_others_may_read_is_a_warning(
    nsqtools: Called, write: Write, tmp_path: Path
) -> None:
    """In the file, among its pairs, or in a file of its own."""
    texts = {
        "b.toml": "[defaults]\nauth-secret = 's3cret'\n",
        "pairs.toml": "[profile.p.tail]\nconsumer-opt = ['tls-v1', 'auth-secret,s3cret']\n",
        "secret": "s3cret\n",
    }
    for name, text in texts.items():
        write(text, name)
    pub = ["pub", "--topic", "t", "--nsqd-tcp-address", NOBODY]
    lines = (
        [*pub, "--config", "b.toml", "x"],
        ["lookup", "topics", "--lookupd-http-address", NOBODY, "--config", "b.toml"],
        ["config", "check", "pairs.toml"],
        ["config", "show", "tail", "--config", "pairs.toml", "--profile", "p"],
        [*pub, "--auth-secret-file", "secret", "x"],
    )
    for line in lines:
        (name,) = set(line) & set(texts)
        (tmp_path / name).chmod(0o640)
        _, out, err = nsqtools(*line)
        assert err.startswith("nsqtools: warning: ")
        assert name in err.splitlines()[0]
        assert "s3cret" not in out + err
        (tmp_path / name).chmod(0o600)
        assert "warning" not in nsqtools(*line)[2]


def test_a_secret_file_that_cannot_be_used_is_named_from_where_it_is_looked_for(
    refused: Refused, write: Write, tmp_path: Path
) -> None:
    (tmp_path / "latin").write_bytes(b"\xe9")
    (tmp_path / "latin").chmod(0o600)
    for path in ("no", ".", "/dev/null", write("x" * 70_000, "long"), "latin"):
        (tmp_path / "long").chmod(0o600)
        said = refused("pub", "--topic", "t", "--auth-secret-file", path, "x")
        assert f"--auth-secret-file {path}: " in said
    file = write("[defaults]\nauth-secret-file = 'gone'\n", "etc/c.toml")
    assert f" {tmp_path / 'etc/gone'}: " in refused("pub", "--topic", "t", "--config", file, "x")


def test_what_drives_a_terminal_is_escaped_and_a_row_stays_a_row(nsqtools: Called) -> None:
    out = nsqtools("config", "show", "tail", "--client-id", "a\x1b[31m\tb\nc")[1]
    assert "client-id\ta\\x1b[31m\\tb\\nc\tflag\t--client-id\n" in out


def test_show_changed_leaves_out_what_is_as_the_command_has_it(
    nsqtools: Called, write: Write
) -> None:
    file = write("[tail]\nmax-in-flight = 2500\nmax-attempts = 5\n")
    line = ("config", "show", "--changed", "--config", file, "tail", "-n", "0", "--json")
    code, out, err = nsqtools(*line)
    assert (code, err) == (0, "")
    assert [row.split("\t")[0] for row in out.splitlines()] == ["json", "max-attempts", "config"]
    behind = nsqtools("config", "show", "--config", file, "tail", "-n", "0", "--json", "--changed")
    assert behind == (code, out, err)
    for_all = nsqtools("config", "show", "--changed", "--config", file)[1]
    assert for_all == f"tail\tmax-attempts\t5\tfile\t{file}: [tail]\n"


def test_a_fifo_is_read_if_somebody_writes_to_it(
    refused: Refused, nsqtools: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with monkeypatch.context() as patch:
        patch.setattr(connection, "_FIFO_WAIT", 0.01)
        assert "--config fifo: a FIFO that nobody writes to" in refused("--config", "fifo", "tail")
    writer = threading.Thread(target=fifo.write_text, args=("[tail]\nbogus = 1\n",))
    writer.start()
    assert "unknown key 'bogus'" in nsqtools("--config", "fifo", "config", "check")[2]
    writer.join()


def test_a_text_that_is_not_closed_is_told_with_its_line(refused: Refused, write: Write) -> None:
    name = write('[tail]\ntopic = "events\n')
    said = refused("--config", name, "tail", "--topic", "t")
    assert said == f"nsqtools: {name}: line 2: a text in quotes is not closed\n"
