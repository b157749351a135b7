"""``nsqtools demo``: the main job in a few seconds, on the sandbox."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from nsqtools.cli.exits import Exit
from nsqtools.cli.options import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_EVENTS = 5000
_START_TIMEOUT = 15.0


class Step(NamedTuple):
    """What is told, the command line that is run, and the last line that it must print, if any."""

    story: str
    line: str
    expected: str = ""


STEPS = (
    Step(
        f"Publish a file of {_EVENTS} events, one a line.",
        "nsqtools pub -v --topic events --file events.ndjson",
    ),
    Step(
        "Take three of them from the channel 'archive'.",
        "nsqtools tail --topic events --channel archive -n 3",
    ),
    Step(
        "Pipe the rest into another program, until the channel is empty.",
        "nsqtools tail --topic events --channel archive --until-empty | wc -l",
        str(_EVENTS - 3),
    ),
    Step(
        "Copy a message to another topic, its metadata beside it.",
        "echo '{\"user\": 42}' | nsqtools pub --topic users"
        " && nsqtools tail --topic users --channel mine -n 1 --json",
    ),
    Step("Ask nsqlookupd who has the topic.", "nsqtools lookup producers events"),
)


@click.command("demo", cls=Command, examples=(("See it work", "nsqtools demo"),))
def demo() -> int:
    """Show the main commands at work on an embedded nsqd.

    It starts a sandbox, runs command lines as you would type them, and cleans up behind itself.
    """
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="nsqtools-demo-") as name:
        folder = Path(name)
        _write_events(folder / "events.ndjson")
        environment = {**os.environ, "PATH": f"{_shim(folder)}:{os.environ.get('PATH', '')}"}
        for variable in [name for name in environment if name.startswith("NSQTOOLS_")]:
            del environment[variable]
        environment["NSQTOOLS_CONFIG"] = str(folder / "nsqtools.toml")
        with _sandbox() as addresses:
            _write_configuration(folder / "nsqtools.toml", addresses)
            _tell("An nsqd and an nsqlookupd, in memory, for as long as this takes.")
            click.secho("$ nsqtools sandbox --port 0", bold=True)
            click.echo(json.dumps(addresses))
            _run(STEPS, folder, environment)
    _tell("That was all; nothing is left behind. 'nsqtools sandbox' gives you one to play with.")
    return Exit.DONE


def _run(steps: Sequence[Step], folder: Path, environment: dict[str, str]) -> None:
    """Run command lines in a shell; raises ClickException for one that does not do its job."""
    for step in steps:
        _tell(step.story)
        click.secho(f"$ {step.line}", bold=True)
        done = subprocess.run(  # noqa: S602 - our own lines
            step.line, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, check=False
        )
        click.echo(done.stdout, nl=False)
        if done.returncode:
            raise click.ClickException(f"'{step.line}' ended with exit status {done.returncode}")
        last = done.stdout.decode().strip().rpartition("\n")[2].strip()
        if step.expected and last != step.expected:
            raise click.ClickException(f"'{step.line}' printed {last}, not {step.expected}")


def _tell(story: str) -> None:
    click.secho(f"\n{story}", fg="cyan")


def _write_events(path: Path) -> None:
    import random
    import time

    from nsqtools.sandbox.events import sample_events

    events = sample_events(random.Random(1), time.time)  # noqa: S311
    with path.open("wb") as file:
        file.writelines(next(events) + b"\n" for _ in range(_EVENTS))


def _write_configuration(path: Path, addresses: dict[str, str]) -> None:
    path.write_text(
        f"[defaults]\n"
        f'nsqd-tcp-address = "{addresses["nsqd_tcp_address"]}"\n'
        f"[tail]\n"
        f'nsqd-http-address = "{addresses["nsqd_http_address"]}"\n'
        f"[lookup]\n"
        f'lookupd-http-address = "{addresses["lookupd_http_address"]}"\n'
    )


def _shim(folder: Path) -> Path:
    """A folder with ``nsqtools`` in it: this very installation, whatever PATH says."""
    from shlex import quote

    shim = folder / "bin" / "nsqtools"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} -m nsqtools "$@"\n')
    shim.chmod(0o755)
    return shim.parent


@contextmanager
def _sandbox() -> Iterator[dict[str, str]]:
    """Run ``nsqtools sandbox --port 0``; its addresses. Raises ClickException if it fails."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nsqtools", "sandbox", "--port", "0", "--config", "none"],
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    try:
        line = process.stdout.readline()
        if not line:
            raise click.ClickException("the sandbox did not start")
        yield json.loads(line)
    finally:
        process.terminate()
        process.communicate(timeout=_START_TIMEOUT)
