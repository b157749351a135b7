"""Options of a command, from flags, variables and defaults."""

import re
from collections.abc import Mapping
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqtools.cli.options import Command, options
from nsqtools.cli.remotes import nsqds_of
from nsqtools.config.admin import ApiOptions
from nsqtools.config.connection import ClientConfig, ConsumerConfig
from nsqtools.config.option import (
    Options,
    choice,
    duration,
    flag,
    integer,
    option,
    path,
    text,
    texts,
)


class Where(Options):
    title = "Where"
    shared = True

    topic: tuple[str, ...] = texts("A topic.", metavar="TOPIC")
    address: str = text("An address.")
    rule: tuple[str, ...] = texts("A rule.", lines=True)


class What(Options):
    title = "What"

    count: int = integer("How many.", 0, short="n")
    wait: float = duration("How long.", 30.0, minimum=1.0, maximum=300.0)
    mode: str = choice("How.", "fast", "slow")
    keep: bool = flag("Keep it.", short="k")
    output: str = path("Where to.", short="o")
    verbose: int = option("count", "More.", 0, short="v")


class Client(ClientConfig):
    """go-nsq's names, with a flag for those that have none."""

    title = "Client options"
    opt_flag = "client-opt"

    max_in_flight: int = integer("Most in flight.", 1)


def invoke(
    *args: str,
    env: Mapping[str, str] | None = None,
    **groups: Any,
) -> tuple[Result, dict[str, Any]]:
    """Run ``nsqtools tail ARGS``; what it said, and what it was called with."""
    got: dict[str, Any] = {}

    def tail(*, rest: tuple[str, ...], **made: Any) -> None:
        """Print messages."""
        got.update(made, rest=rest)

    tail.__annotations__ |= groups or {"where": Where, "what": What}
    nsqtools = click.Group("nsqtools")
    tail = click.argument("rest", nargs=-1)(tail)
    nsqtools.command("tail", cls=Command)(options()(tail))
    env = {"NSQTOOLS_CONFIG": "none", **(env or {})}
    result = CliRunner().invoke(nsqtools, ["tail", *args], env=env)
    if isinstance(result.exception, Exception):
        raise result.exception
    return result, got


def run(*args: str, **rest: Any) -> dict[str, Any]:
    """What it was called with; nothing was wrong."""
    result, got = invoke(*args, **rest)
    assert result.exit_code == 0, result.output
    return got


def client(*args: str, **rest: Any) -> Client:
    made: Client = run(*args, client=Client, **rest)["client"]
    return made


def refusal(*args: str, **rest: Any) -> str:
    """The last line of a usage error."""
    result, got = invoke(*args, **rest)
    assert (result.exit_code, got) == (2, {})
    return result.stderr.splitlines()[-1].removeprefix("Error: ")


def test_a_command_gets_one_instance_of_each_class_and_its_own_arguments() -> None:
    got = run("--topic", "a", "x", "--topic=b", "-n", "5", "--wait", "1m30s", "y", "-kvv")
    assert got == {
        "where": Where(topic=("a", "b")),
        "what": What(count=5, wait=90.0, keep=True, verbose=2),
        "rest": ("x", "y"),
    }


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["-topic", "a"], [Where(topic=("a",))]),
        (["-topic=a=b"], [Where(topic=("a=b",))]),
        (["-n=5"], [What(count=5)]),
        (["--n=5"], [What(count=5)]),
        (["-keep"], [What(keep=True)]),
        (["--keep=true"], [What(keep=True)]),
        (["-k=false"], [What(keep=False)]),
        (["--keep", "-keep=false"], [What(keep=False)]),
        (["--keep", "--no-keep"], [What(keep=False)]),
        (["--no-keep=false"], [What(keep=True)]),
        (["-kn5"], [What(keep=True, count=5)]),
        (["-ko", "-topic"], [What(keep=True, output="-topic")]),
        (["-otopic", "-topic", "a"], [What(output="topic"), Where(topic=("a",))]),
        (["--address", "-keep"], [Where(address="-keep")]),
        (["-address=-keep"], [Where(address="-keep")]),
        (["--", "-topic", "--keep=true"], [("-topic", "--keep=true")]),
        (["-", "-topic", "a"], [Where(topic=("a",)), ("-",)]),
    ],
)
def test_the_spelling_of_go_is_understood(args: list[str], expected: list[object]) -> None:
    got = run(*args).values()
    assert all(each in got for each in expected)


@settings(max_examples=30)
@given(st.lists(st.text(min_size=1).filter(lambda text: "\0" not in text), max_size=4))
def test_a_value_is_never_taken_for_an_option(values: list[str]) -> None:
    go = [word for value in values for word in ("-topic", value)]
    assert run(*go)["where"].topic == tuple(values)


def test_variables_give_several_values_booleans_and_counts() -> None:
    env = {
        "NSQTOOLS_TOPIC": "a b",
        "NSQTOOLS_RULE": "one rule\nand another",
        "NSQTOOLS_TAIL_KEEP": "yes",
        "NSQTOOLS_TAIL_VERBOSE": "2",
        "NSQTOOLS_TAIL_MODE": "",
    }
    got = run(env=env)
    assert got["where"] == Where(topic=("a", "b"), rule=("one rule", "and another"))
    assert got["what"] == What(keep=True, verbose=2)


def test_what_is_wrong_is_named_with_its_flag_or_variable() -> None:
    said = refusal("--keep=maybe")
    assert "--keep" in said
    assert "'maybe'" in said
    assert "NSQTOOLS_TAIL_WAIT" in refusal(env={"NSQTOOLS_TAIL_WAIT": "soon"})
    assert "NSQTOOLS_READ_TIMEOUT" in refusal(env={"NSQTOOLS_READ_TIMEOUT": "1h"}, client=Client)
    assert run(env={"NSQTOOLS_COUNT": "3"})["what"].count == 0  # its class is not shared


def test_an_option_without_a_flag_is_set_by_go_nsqs_name_and_the_secret_by_a_variable() -> None:
    made = client("--client-opt", "heartbeat-interval,10s", "-client-opt=tls_v1")
    assert made == Client(heartbeat_interval=10.0, tls_v1=True, user_agent=made.user_agent)
    assert client(env={"NSQTOOLS_AUTH_SECRET": "s3cret"}).auth_secret == "s3cret"
    for name in ("--heartbeat-interval", "--auth-secret"):
        assert f"No such option '{name}'." in refusal(name, "10s", client=Client)
    assert "s3cret" not in invoke("--help", env={"NSQTOOLS_AUTH_SECRET": "s3cret"})[0].output


def test_precedence_is_flag_then_opt_then_variable_then_default() -> None:
    args = ["--max-in-flight", "5"]
    opt = ["--client-opt", "max_in_flight,4"]
    env = {"NSQTOOLS_TAIL_MAX_IN_FLIGHT": "3"}
    opt_env = {"NSQTOOLS_CLIENT_OPT": "max_in_flight,2"}
    assert client(*args, *opt, env=env | opt_env).max_in_flight == 5
    assert client(*opt, env=env | opt_env).max_in_flight == 4
    assert client(env=env | opt_env).max_in_flight == 3
    assert client(env=opt_env).max_in_flight == 2
    assert client().max_in_flight == 1


def test_what_the_go_tools_have_is_accepted_without_a_place_in_help() -> None:
    class Old(Options):
        title = "Old"
        mode: str = choice("How.", "fast", other_choices=("epsilon",))
        level: int = integer("A level.", 6, hidden=True)
        prefix: str = text("A prefix.", alias="start", unused=True)

    result, found = invoke("--mode", "EPSILON", "--level=3", "-start", "x", "-v", old=Old)
    assert (found["old"].mode, found["old"].level) == ("epsilon", 3)
    assert "--prefix: ignored, as this command does not use it" in result.stderr
    shown = invoke("--help", old=Old)[0].output
    assert "[fast]" in shown
    assert not re.search("epsilon|level N|--prefix|--start", shown)


def test_an_alias_is_another_flag_and_another_name_among_go_nsqs() -> None:
    for line in (["-requeue-delay=5s"], ["--consumer-opt", "requeue_delay,5s"]):
        assert run(*line, config=ConsumerConfig)["config"].default_requeue_delay == 5.0


def test_an_essential_option_that_does_not_exist_is_a_mistake_of_the_declaration() -> None:
    with pytest.raises(TypeError, match="colour"):
        click.command(cls=Command, essential="count colour")(options(what=What)(lambda what: None))


def test_the_nsqd_of_this_host_is_asked_if_no_server_is_given() -> None:
    given, lookupd = ("10.0.0.1:4151",), ("10.0.0.1:4161",)
    assert nsqds_of(ApiOptions()) == ("127.0.0.1:4151",)
    assert nsqds_of(ApiOptions(lookupd_http_address=lookupd)) == ()
    assert nsqds_of(ApiOptions(nsqd_http_address=given)) == given
