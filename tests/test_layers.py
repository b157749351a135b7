"""Who may import whom, how big a file may be, and what a TAB press may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Rule = Callable[[str, ast.Module], Iterator[str]]

ROOT = Path(__file__).parents[1]
MAX_FILE, MAX_FUNCTION = 400, 60

BASE = ("errors", "names")
ENGINE = (*BASE, "config", "proto", "policy", "net")
LAYERS = {
    "errors": ("names",),
    "names": ("errors",),
    "metrics": (),
    "lean": (),
    "config": BASE,
    "proto": (*BASE, "config"),
    "policy": BASE,
    "net": (*BASE, "lean", "config", "proto"),
    "engine": (*ENGINE, "metrics"),
    "sinks": (*BASE, "lean", "metrics", "config", "policy", "engine.handler", "proto.messages"),
    "sandbox": (*BASE, "config", "proto"),
    "spark": (*ENGINE, "engine", "sinks"),
    "cli": (*ENGINE, "metrics", "engine", "sinks", "sandbox", "spark"),
    "__main__": ("cli",),
    "__init__": ("errors", "names", "config", "engine", "proto.messages"),
}
"""What each part of the package may import, besides itself and what is known of the release."""

RELEASE = ("__version__", "__date__")

AT_HOME = {
    "click": ("cli",),
    "rich": ("cli",),
    "httpx": ("lean",),
    "prometheus_client": ("cli.metrics",),
    "h11": ("sandbox", "sinks.http"),
    "pyspark": ("spark",),
    "pyarrow": ("spark",),
    "snappy": ("proto.codecs",),
    "socket": ("net", "sandbox"),
    "ssl": ("net", "sandbox", "sinks.http"),
}
"""Where the only imports of some libraries are."""

NO_SOCKET = "socket.gethostname"

IMPURE = ("asyncio", "socket", "ssl", "time", "random", "secrets", "threading")
CLOCKS = {"now", "utcnow", "today"}


@dataclass(frozen=True, slots=True)
class Import:
    """``target`` is a dotted name: of a module, or of something in one."""

    target: str
    in_function: bool
    for_types: bool


def imports(tree: ast.AST, in_function: bool = False, for_types: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(alias.name, in_function, for_types)
            case ast.ImportFrom():
                for alias in node.names:
                    source = "." * node.level + (node.module or "")
                    yield Import(f"{source}.{alias.name}", in_function, for_types)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from imports(node, in_function, for_types=True)
            case _:
                inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                yield from imports(node, in_function or inside, for_types)


def within(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def broken_layers(module: str, tree: ast.Module) -> Iterator[str]:
    part = module.partition(".")[0]
    for each in imports(tree):
        root, _, name = each.target.partition(".")
        if root == "":
            yield f"{module}: relative import of {each.target}"
        elif root == "nsqtools":
            if name not in RELEASE and not within(name, (part, *LAYERS.get(part, ()))):
                yield f"{module}: {part} must not import {each.target}"
        elif each.target == NO_SOCKET:
            continue
        elif root in AT_HOME and not within(module, AT_HOME[root]):
            yield f"{module}: {root} belongs in {' and '.join(AT_HOME[root])} alone"
        elif root == "snappy" and not each.in_function:
            yield f"{module}: snappy is imported inside the function that needs it"


def broken_purity(module: str, tree: ast.Module) -> Iterator[str]:
    if not within(module, ("proto", "policy")):
        return
    for each in imports(tree):
        typing_rng = each.for_types and each.target == "random.Random"
        if within(each.target, IMPURE) and not (typing_rng and within(module, ("policy",))):
            yield f"{module}: {each.target} has no place in a part that decides or parses"
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=attr) if attr in CLOCKS:
                yield f"{module}:{node.lineno}: reads the clock"


def oversize(module: str, tree: ast.Module) -> Iterator[str]:
    """A docstring that speaks of its "lines" is taken to give the reason."""
    last = max((node.end_lineno or 0 for node in tree.body), default=0)
    if last > MAX_FILE and "lines" not in (ast.get_docstring(tree) or ""):
        yield f"{module}: {last} lines, and the docstring gives no reason"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION and "lines" not in (ast.get_docstring(node) or ""):
                yield f"{module}:{node.lineno}: {node.name} has {length} lines and no reason"


SLEEPERS = ("support", "live.test_engine", "test_layers")
"""Where real time may pass: polling, faults of a proxy, and handlers that stall on purpose."""


def real_sleeps(module: str, tree: ast.Module) -> Iterator[str]:
    """``sleep(0)`` yields and ``tests.support.clock.elapse`` is virtual; all else is a guess."""
    if within(module, SLEEPERS):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="asyncio" | "time"), attr="sleep"),
                args=[ast.Constant(value=0)],
            ):
                pass
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio" | "time"), attr="sleep")):
                yield f"{module}:{node.lineno}: sleeps; wait for a condition, or use elapse"


def sources(folder: str) -> dict[str, Path]:
    """Module name below the folder, such as ``proto.session``, to its path."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT / folder).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


def broken(rule: Rule, folder: str) -> list[str]:
    trees = {name: ast.parse(path.read_bytes()) for name, path in sources(folder).items()}
    return [text for name, tree in trees.items() for text in rule(name, tree)]


def test_imports_follow_the_layers() -> None:
    assert broken(broken_layers, "nsqtools") == []


def test_proto_and_policy_know_neither_sockets_nor_clocks_nor_chance() -> None:
    assert broken(broken_purity, "nsqtools") == []


@pytest.mark.parametrize("folder", ["nsqtools", "tests"])
def test_a_long_file_or_function_says_why(folder: str) -> None:
    assert broken(oversize, folder) == []


def test_no_test_sleeps_for_luck() -> None:
    assert broken(real_sleeps, "tests") == []


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (broken_layers, "policy.rdy", "from nsqtools.config import ConsumerConfig"),
        (broken_layers, "policy.rdy", "if TYPE_CHECKING:\n    from nsqtools.net import http"),
        (broken_layers, "sinks.files", "from nsqtools.engine.consumer import Consumer"),
        (broken_layers, "sinks.files", "from nsqtools.engine import consumer"),
        (broken_layers, "sinks.files", "from nsqtools import Consumer"),
        (broken_layers, "net.http", "def f():\n    import nsqtools.engine.handler"),
        (broken_layers, "net.http", "from .. import engine"),
        (broken_layers, "newcomer", "import nsqtools.errors"),
        (broken_layers, "net.http", "import httpx"),
        (broken_layers, "engine.consumer", "from nsqtools.lean import httpx"),
        (broken_layers, "sinks.files", "from rich.text import Text"),
        (broken_layers, "proto.codecs", "import snappy"),
        (broken_layers, "cli.values", "def f():\n    from socket import create_connection"),
        (broken_layers, "cli.values", "if TYPE_CHECKING:\n    from ssl import SSLSocket"),
        (broken_layers, "engine.link", "import socket"),
        (broken_layers, "cli.run", "import prometheus_client"),
        (broken_layers, "metrics", "from nsqtools.errors import ConfigError"),
        (broken_layers, "policy.rdy", "from nsqtools.metrics import Metric"),
        (broken_purity, "proto.session", "from time import monotonic"),
        (broken_purity, "proto.session", "async def f():\n    import asyncio"),
        (broken_purity, "policy.rdy", "from random import Random"),
        (broken_purity, "policy.rdy", "if TYPE_CHECKING:\n    import random"),
        (broken_purity, "policy.rotation", "def f():\n    return datetime.now()"),
        (real_sleeps, "net.test_http", "asyncio.sleep(0.01)"),
        (real_sleeps, "live.test_tail", "time.sleep(pause)"),
        (oversize, "x", '"""Long."""\n' * 401),
        (oversize, "x", "def f():\n" + "    pass\n" * 60),
    ],
)
def test_a_breach_is_found(rule: Rule, module: str, source: str) -> None:
    assert len(list(rule(module, ast.parse(source)))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("policy.rdy", "if TYPE_CHECKING:\n    from random import Random"),
        ("proto.codecs", "def f():\n    import snappy"),
        (
            "sinks.http",
            "from nsqtools.lean import httpx\nfrom nsqtools.engine.handler import Batch",
        ),
        ("config", "from nsqtools import __version__\nfrom socket import gethostname"),
        ("net.names", "import socket, ssl"),
        ("sinks.files", "from nsqtools.metrics import Metric"),
        ("x", '"""Over 400 lines for a reason."""\n' + "pass\n" * 400),
    ],
)
def test_what_is_allowed_is_not_a_breach(module: str, source: str) -> None:
    for rule in (broken_layers, broken_purity, oversize):
        assert list(rule(module, ast.parse(source))) == []


# A fork of an interpreter that has imported nothing is a fresh one, without its start-up time.
IMPORT_EACH_ALONE = """
import importlib, os, sys
children = {}
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] not in ("pyspark", "pyarrow"):
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    children[child] = name
for child, name in children.items():
    if os.waitpid(child, 0)[1]:
        print(name)
"""


def test_every_module_can_be_imported_alone() -> None:
    names = [f"nsqtools.{name}".removesuffix(".__init__") for name in sources("nsqtools")]
    done = python(IMPORT_EACH_ALONE, *names)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_the_command_line_loads_nothing_slow_before_a_command_runs() -> None:
    done = python("import nsqtools.cli, sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    slow = {"httpx", "rich", "asyncio", "pyspark", "snappy", "prometheus_client"}
    assert slow & set(done.stdout.split()) == set()


def test_http_is_loaded_without_a_command_line_of_its_own() -> None:
    done = python(
        "import nsqtools.net.http, nsqtools.sinks.http.transport, sys; print(*sys.modules)"
    )
    assert done.returncode == 0, done.stderr
    assert {"click", "pygments", "rich", "httpx._main"} & set(done.stdout.split()) == set()
    later = python("import nsqtools.net.http; from httpx import _main; print(_main.main.name)")
    assert later.stdout == "main\n", later.stderr


def python(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, cwd=ROOT, check=False
    )
