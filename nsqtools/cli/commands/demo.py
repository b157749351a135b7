"""``nsqtools demo``: the main commands at work, on the sandbox."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import click

from nsqtools.cli.exits import Exit
from nsqtools.cli.options import Command
from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from tempfile import TemporaryDirectory

_EVENTS = 5000
_CONFIG = "nsqtools.toml"
_TIMEOUT = 180.0

# This very installation, whatever PATH says and whatever lies in the current folder.
_NSQTOOLS = (
    sys.executable,
    "-P",
    "-c",
    f"import sys; sys.path.append({str(Path(__file__).parents[3])!r}); "
    "from nsqtools.__main__ import main; main()",
)


class Scene(NamedTuple):
    """A story to print, the command line to run, and the text that it must print, if any."""

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
"""What is shown where Spark is installed."""

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

    It starts a sandbox on free ports, runs command lines as you would type them, and cleans up
    behind itself, also when it is interrupted. No configuration file or variable is read.
    """
    with _Stage() as stage:
        _write_events(stage.folder / "events.ndjson")
        _tell("An nsqd and an nsqlookupd, in memory. A file and variables tell their addresses.")
        _prompt("nsqtools sandbox --port 0")
        line = stage.start_sandbox()
        click.echo(line)
        stage.know(json.loads(line))
        for step in steps():
            if step.story:
                _tell(step.story)
            _prompt(step.line)
            stage.run(step)
    _tell("That was all; nothing is left behind. 'nsqtools sandbox' gives you one to play with.")


def steps() -> Sequence[Scene]:
    """The steps that this installation can show."""
    from nsqtools.spark.sparksession import require_spark

    try:
        require_spark()
    except ConfigError:
        return [step for step in STEPS if step not in _LAKE]
    return STEPS


class _Stage:
    """A context manager: a folder and processes in it, all removed however the context ends.

    Every process leads its own group, so that its children are killed with it. The handler of a
    signal kills the processes and records the signal; ``check`` raises the error. Raised by the
    handler, the error could come between the start of a process and its entry in the list.
    """

    folder: Path

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._signal = 0
        self._handlers: dict[int, Any] = {}
        self._created: TemporaryDirectory[str] | None = None
        self._addresses: dict[str, str] = {}

    def __enter__(self) -> Self:
        from tempfile import TemporaryDirectory

        # With "stty tostop" a group that is not in the foreground could not write otherwise.
        self._handlers[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._caught)
        self._created = TemporaryDirectory(prefix="nsqtools-demo-")
        self.folder = Path(self._created.name)
        (self.folder / _CONFIG).touch()
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        for process in self._processes:
            process.wait()
            if process.stdout:
                process.stdout.close()
        if self._created:
            self._created.cleanup()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start_sandbox(self) -> str:
        """Start ``nsqtools sandbox`` and return the line that it prints: addresses, as JSON."""
        from select import select

        process = self._start([*_NSQTOOLS, "sandbox", "--port", "0"], capture=True)
        assert process.stdout
        ready, _, _ = select([process.stdout], [], [], _TIMEOUT)
        line = process.stdout.readline() if ready else ""
        self.check()
        if not line:
            raise click.ClickException("the sandbox did not start")
        return line.rstrip("\n")

    def know(self, addresses: dict[str, str]) -> None:
        """Write the addresses of the servers to the configuration file; keep them as variables."""
        _write_configuration(self.folder / _CONFIG, addresses)
        self._addresses = {
            "NSQD_TCP": addresses["nsqd_tcp_address"],
            "NSQD_HTTP": addresses["nsqd_http_address"],
        }

    def run(self, step: Scene) -> None:
        """Run a command line in a shell; raises ClickException if it fails or prints other text."""
        from shlex import join

        capture = bool(step.expected)
        script = f'nsqtools() {{ {join(_NSQTOOLS)} "$@"; }}\n{step.line}'
        process = self._start(["/bin/sh", "-c", script], capture=capture)
        with suppress(subprocess.TimeoutExpired):
            output, _ = process.communicate(timeout=_TIMEOUT)
        self.check()
        if process.returncode is None:
            raise click.ClickException(f"'{step.line}' still runs after {_TIMEOUT:g} s")
        if process.returncode in (Exit.PIPE_CLOSED, -signal.SIGPIPE):
            raise BrokenPipeError
        if process.returncode:
            raise click.ClickException(f"'{step.line}' ended with exit status {process.returncode}")
        if capture:
            click.echo(output, nl=False)
            if output.strip() != step.expected:
                raise click.ClickException(
                    f"'{step.line}' printed {output.strip()!r}, not {step.expected}"
                )

    def check(self) -> None:
        """Raise KeyboardInterrupt or ClickException if a signal came."""
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self._signal:
            name = signal.Signals(self._signal).name
            raise click.ClickException(f"stopped by {name} before the end")

    def _start(self, command: Sequence[str], *, capture: bool) -> subprocess.Popen[str]:
        process = subprocess.Popen(  # noqa: S603 - our own lines
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if capture else None,
            cwd=self.folder,
            env=self._environment(),
            process_group=0,
            text=True,
        )
        self._processes.append(process)
        self.check()
        return process

    def _environment(self) -> dict[str, str]:
        own = {name: text for name, text in os.environ.items() if not name.startswith("NSQTOOLS_")}
        return {**own, **self._addresses, "NSQTOOLS_CONFIG": str(self.folder / _CONFIG)}

    def _caught(self, number: int, _: object) -> None:
        self._signal = self._signal or number
        self._kill()

    def _kill(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _tell(story: str) -> None:
    click.secho(f"\n{story}", fg="cyan")


def _prompt(line: str) -> None:
    click.secho(f"$ {line}", bold=True)


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
