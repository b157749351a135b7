"""The examples of the library, in docstrings, README and guide: they run, and have their types."""

import asyncio
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import nsqtools
from nsqtools import Address, Batch, Consumer, Handler, Runner, StopOptions, Subscription
from nsqtools.cli.docs import sections
from tests.support.examples import TIMEOUT, shown
from tests.support.servers import Nsqd

README = Path(__file__).parents[1] / "README.md"
GUIDE = sections("library", "guides")
_PUBLIC = [name for name in dir(nsqtools) if name[0].isupper()]
_SELF_EXPLAINING = {
    *("AuthError", "ConnectionLostError", "LockedError", "OutputError", "RefusedError"),
    "ServerError",
}
_PRELUDE = """
import asyncio, json, sys
from datetime import UTC, datetime
from nsqtools import *
"""
_GIVEN = """
handler: Handler
consumer: Consumer
runner: Runner
"""


def example(name: str) -> str:
    """What follows ``::`` in the docstring of a class, or ""."""
    text = inspect.getdoc(getattr(nsqtools, name))
    shown = re.search(r"::\n\n((?:    .*\n|\n)+)", f"{text}\n")
    return textwrap.dedent(shown[1]).strip() + "\n" if shown else ""


EXAMPLES = {name: text for name in _PUBLIC if (text := example(name))}


def test_every_public_class_has_an_example_that_is_short() -> None:
    assert set(_PUBLIC) - set(EXAMPLES) == _SELF_EXPLAINING
    assert all(3 <= len(text.splitlines()) <= 8 for text in EXAMPLES.values())


def test_the_guide_lists_the_public_classes() -> None:
    listed = re.search(r"import \((.*?)\)", GUIDE["Install"], re.DOTALL)
    assert listed
    assert sorted(re.findall(r"\w+", listed[1])) == sorted(_PUBLIC)


def here(program: str, nsqd: Nsqd) -> str:
    """The program, which uses this nsqd."""
    depth = f'until_empty=True, nsqd_http_address=("{nsqd.http}",)'
    return program.replace("4150", str(nsqd.tcp.port)).replace("until_empty=True", depth)


PROGRAMS = {
    title: next(block for block in shown(GUIDE[title]) if "asyncio.run" in block)
    for title in ("Consumer", "Consumer beside other work", "A sink of your own", "Producer")
}
PROGRAMS["README"] = README.read_text().partition("```python\n")[2].partition("```")[0]


@pytest.mark.parametrize(("title", "program"), PROGRAMS.items(), ids=PROGRAMS)
def test_a_program_of_the_guide_or_the_readme_runs(
    nsqd: Nsqd, tmp_path: Path, title: str, program: str
) -> None:
    for topic in ("events", "orders", "users"):
        for channel in ("print", "journal"):
            nsqd.create(topic, channel)
        nsqd.publish(topic, [*[b"one"] * 59, b"end"])  # fewer than Journal settles at once
    run = [sys.executable, "-c", here(program, nsqd)]
    ran = subprocess.run(
        run, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    if title == "README":
        assert ran.stdout.splitlines()[-1] == "120 messages finished"


class Sink(Handler):
    async def handle(self, batch: Batch) -> None:
        pass


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(nsqd: Nsqd, name: str) -> None:
    for topic in ("events", "users"):
        nsqd.create(topic, "print")
    nsqd.publish("events", [b"even"])

    def runner(handler: Handler) -> Runner:
        stop = StopOptions(count=1, max_duration=TIMEOUT)
        return Runner(["events"], "print", handler, nsqds=[nsqd.tcp], stop=stop)

    nowhere = Subscription(topic="events", channel="c", nsqds=(Address("127.0.0.1", 1),))
    names: dict[str, Any] = {
        "handler": Sink(),
        "runner": runner(Sink()),
        "consumer": Consumer(nowhere, Sink()),
    }
    program = here(EXAMPLES[name], nsqd)
    exec(_PRELUDE + program, names)
    if "asyncio.run" not in program:
        for kind in names.values():
            if isinstance(kind, type) and kind.__bases__ == (Handler,):
                outcome = asyncio.run(runner(kind()).run())
                assert (outcome.reason, outcome.totals.finished) == ("count", 1)


@pytest.mark.full("the types of the examples in docstrings and of the guide's programs")
def test_examples_are_typed(tmp_path: Path) -> None:
    programs = [block for text in GUIDE.values() for block in shown(text) if "def " in block]
    assert len(programs) > 3
    programs += [f"{_PRELUDE}{_GIVEN}{program}" for program in EXAMPLES.values()]
    for number, program in enumerate(programs):
        (tmp_path / f"program{number}.py").write_text(f"{program}\n")
    run = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(tmp_path)]
    ran = subprocess.run(run, cwd=tmp_path, capture_output=True, timeout=TIMEOUT, check=False)
    assert ran.returncode == 0, ran.stdout
