"""``nsqtools demo``: the main commands at work, on the sandbox."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, NamedTuple

import click

from nsqtools.cli.exits import Exit
from nsqtools.cli.options import Command
from nsqtools.clock import wall
from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EVENTS = 5000
_TIMEOUT = 180.0

# This installation, whatever PATH and the current folder contain.
_NSQTOOLS = (
    sys.executable,
    "-P",
    "-c",
    f"import sys; sys.path.append({str(Path(__file__).parents[3])!r}); "
    "from nsqtools.__main__ import main; main()",
)


class Scene(NamedTuple):
    """A sentence to print, a command line to run and, if given, its expected output."""

    story: str
    line: str
    expected: str = ""


_LAKE = (
    Scene(
        "Load them into a data lake: Spark writes Parquet.",
        "nsqtools pub --topic events --file events.ndjson",
    ),
    Scene("", "nsqtools pipeline archive --topic events --channel archive --output parquet"),
    Scene("", "find parquet -name '*.parquet' | sort"),
)
"""Further scenes if Spark is installed."""

STEPS = (
    Scene(
        f"Publish a file of {_EVENTS} events, one a line.",
        "nsqtools pub -v --topic events --file events.ndjson",
    ),
    Scene(
        "Take three of them from the channel 'archive'.",
        "nsqtools tail --topic events --channel archive -n 3",
    ),
    Scene(
        "Pipe the rest into another program, until the channel is empty.",
        "nsqtools tail --topic events --channel archive --until-empty | wc -l",
        str(_EVENTS - 3),
    ),
    Scene(
        "Publish them again, archive them in a compressed file, and see that none is missing.",
        "nsqtools pub --topic events --file events.ndjson",
    ),
    Scene(
        "",
        f"nsqtools to-file --topic events --channel archive -n {_EVENTS} --output-dir lake --gzip",
    ),
    Scene("", "gunzip -c lake/*.gz | wc -l", str(_EVENTS)),
    Scene("", "nsqtools verify lake/*.gz"),
    Scene(
        "Deliver them over HTTP, 500 a request; the endpoint here is nsqd's own API.",
        "nsqtools pub --topic events --file events.ndjson",
    ),
    Scene(
        "",
        f"nsqtools to-http --topic events --channel archive --count {_EVENTS} --batch 500"
        " --post http://$NSQD_HTTP/mpub?topic=web",
    ),
    Scene(
        "Relay what arrived there to another topic, and count it.",
        "nsqtools relay --topic web --destination-topic copy"
        f" --destination-nsqd-tcp-address $NSQD_TCP -n {_EVENTS}",
    ),
    Scene("", f"nsqtools tail --topic copy --channel mine -n {_EVENTS} | wc -l", str(_EVENTS)),
    *_LAKE,
    Scene(
        "Publish a message from a pipe, and print it with its metadata.",
        "echo '{\"user\": 42}' | nsqtools pub --topic users",
    ),
    Scene("", "nsqtools tail --topic users --channel mine -n 1 --json"),
    Scene("Ask nsqlookupd who has the topic.", "nsqtools lookup producers events"),
)


@click.command("demo", cls=Command, examples=(("See it work", "nsqtools demo"),))
def demo() -> None:
    """Show the main commands at work on an embedded nsqd.

    demo starts a sandbox on free ports, runs command lines as you would type them, and cleans up at
    the end, even when interrupted. It reads no configuration file or variable.
    """

    from nsqtools.cli.service import until_signal
    from nsqtools.tasks import run_loop

    # Under "stty tostop" a background process group could not write to the terminal otherwise.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    is_over = False

    async def play() -> None:
        nonlocal is_over
        await _play()
        is_over = True

    run_loop(until_signal(play()))
    if not is_over:
        raise click.ClickException("stopped by a signal before the end")


async def _play() -> None:
    from tempfile import TemporaryDirectory

    from nsqtools.cli.commands.sandbox import addresses
    from nsqtools.sandbox import Sandbox

    with TemporaryDirectory(prefix="nsqtools-demo-") as name:
        folder = Path(name)
        _write_events(folder / "events.ndjson")
        _tell("An nsqd and an nsqlookupd, in memory; variables hold their addresses.")
        _prompt("nsqtools sandbox --port 0")
        async with Sandbox() as running:
            click.echo(addresses(running))
            nsqd, http = str(running.nsqd.tcp), str(running.nsqd.http)
            lookupd = str(running.lookupd.http)
            environment = {
                **{name: text for name, text in os.environ.items() if name[:9] != "NSQTOOLS_"},
                "NSQD_TCP": nsqd,
                "NSQD_HTTP": http,
                "NSQTOOLS_CONFIG": "none",
                "NSQTOOLS_NSQD_TCP_ADDRESS": nsqd,
                "NSQTOOLS_TAIL_NSQD_HTTP_ADDRESS": http,
                "NSQTOOLS_LOOKUP_PRODUCERS_LOOKUPD_HTTP_ADDRESS": lookupd,
            }
            for step in steps():
                if step.story:
                    _tell(step.story)
                _prompt(step.line)
                await _run(step, folder, environment)
    _tell("Done; everything is cleaned up. 'nsqtools sandbox' runs servers to try commands on.")


async def _run(step: Scene, folder: Path, environment: Mapping[str, str]) -> None:
    """Run a command line in a shell; raises ClickException if it fails or prints other text."""
    import asyncio
    from subprocess import DEVNULL, PIPE, Popen

    # Not asyncio's: if cancelled during the start, it loses the process, and its children live on.
    process = Popen(  # noqa: ASYNC220, S603
        ("/bin/sh", "-c", f'nsqtools() {{ {join(_NSQTOOLS)} "$@"; }}\n{step.line}'),
        stdin=DEVNULL,
        stdout=PIPE if step.expected else None,
        cwd=folder,
        env=environment,
        process_group=0,  # so that its children can be killed too
    )
    try:
        async with asyncio.timeout(_TIMEOUT):
            output, _ = await asyncio.to_thread(process.communicate)
    except TimeoutError:
        raise click.ClickException(f"'{step.line}' still runs after {_TIMEOUT:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode in (Exit.PIPE_CLOSED, -signal.SIGPIPE):
        raise BrokenPipeError
    if process.returncode:
        raise click.ClickException(f"'{step.line}' ended with exit status {process.returncode}")
    if step.expected:
        text = output.decode()
        click.echo(text, nl=False)
        if text.strip() != step.expected:
            raise click.ClickException(
                f"'{step.line}' printed {text.strip()!r}, not {step.expected}"
            )


def steps() -> Sequence[Scene]:
    """The steps available in this installation: without Spark, ``_LAKE`` is left out."""
    from nsqtools.spark.requirements import require_spark

    try:
        require_spark()
    except ConfigError:
        return [step for step in STEPS if step not in _LAKE]
    return STEPS


def _tell(story: str) -> None:
    click.secho(f"\n{story}", fg="cyan")


def _prompt(line: str) -> None:
    click.secho(f"$ {line}", bold=True)


def _write_events(path: Path) -> None:
    import random

    from nsqtools.sandbox.events import sample_events

    events = sample_events(random.Random(1), wall)  # noqa: S311
    with path.open("wb") as file:
        file.writelines(next(events) + b"\n" for _ in range(_EVENTS))
