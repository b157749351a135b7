"""Who may import whom, whose a name is, and how big a file may be."""

import ast
import functools
import gc
import re
from collections.abc import Callable, Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

Rule = Callable[[str, "Source"], Iterator[str]]

ROOT = Path(__file__).parents[1]
MIN_FILE, MAX_FILE, MAX_FUNCTION, MAX_FOLDER = 40, 600, 60, 12

LAYERS = {
    part: tuple(re.findall(r"`(.+?)`", row[3]))
    for row in (
        line.split("|") for line in (ROOT / ".github/CONTRIBUTING.md").read_text().splitlines()
    )
    if len(row) == 5
    for part in re.findall(r"`(.+?)`", row[1])
}
"""What each part may import, besides itself and the release: the table of CONTRIBUTING."""

RELEASE = ("__version__", "__date__")

AT_HOME = {
    "click": ("cli",),
    "rich": ("cli",),
    "fastavro": ("records.bodies",),
    "google": ("records.bodies",),
    "httpx": ("sinks.http",),
    "jq": ("records.bodies",),
    "msgpack": ("records.bodies",),
    "prometheus_client": ("cli.prometheus",),
    "h11": ("net.http",),
    "jinja2": ("ui",),
    "starlette": ("ui",),
    "uvicorn": ("ui",),
    "pyspark": ("spark",),
    "pyarrow": ("spark", "stores.hadoop"),
    "snappy": ("proto.codecs",),
    "socket": ("net", "sandbox"),
    "ssl": ("net", "sandbox", "sinks.http"),
}
"""Where the only imports of some libraries are."""

NO_SOCKET = "socket.gethostname"

SANDBOX = ("sandbox", "cli.commands.sandbox", "cli.commands.demo")
"""Who may import the sandbox: itself with its pytest plugin, its command, and the demo."""

PURE = {
    "proto": "__future__ collections dataclasses enum json re snappy struct typing zlib",
    "policy": "__future__ array bisect collections contextlib dataclasses datetime difflib enum "
    "itertools math operator re typing",
}
"""All that these parts may import, besides parts of the package: no I/O, no clock, no chance."""

CLOCKS = ("now", "today", "utcnow")
BUILT_IN_IO = ("__import__", "eval", "exec", "input", "open", "print")

DIALERS = (
    *("create_connection", "create_datagram_endpoint", "create_server", "create_unix_connection"),
    *("create_unix_server", "open_connection", "open_unix_connection", "sock_connect"),
    *("start_server", "start_unix_server", "urlopen"),
)
"""What opens sockets in the standard library."""

OWNERS = (
    (DIALERS, r"(net|sandbox)(\..*)?"),
    # Tables of commands, and what Spark ships to executors.
    (
        ("__import__", "import_module", "run_module", "run_path"),
        r"cli|cli\.commands\.pipeline|spark\.executors",
    ),
    # Programs and Spark's workers tune it.
    (("gc",), r"cli(\..*)?|spark\.source\.receive"),
    # sys.modules is the business of the process; it is read there.
    (("modules",), r"spark\.sparksession"),
)
"""Names, and the modules that alone may use them."""


class Source(NamedTuple):
    """A module of the package or of the tests."""

    path: Path
    text: str
    tree: ast.Module
    nodes: Sequence[ast.AST]
    """All of the tree: to walk it takes longer than to parse the text."""


@functools.cache
def sources(folder: str) -> dict[str, Source]:
    """The source of each module by its name below the folder, such as ``proto.session``."""
    found = {}
    gc.disable()  # nothing of this is garbage
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT / folder).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        text = path.read_text()
        tree = ast.parse(text)
        found[name] = Source(path, text, tree, list(ast.walk(tree)))
    gc.enable()
    return found


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Later tests have no garbage collector that looks through a million nodes."""
    yield
    sources.cache_clear()


class Import(NamedTuple):
    """``target`` is a dotted name: of a module, or of something in one."""

    target: str
    in_function: bool = False
    for_types: bool = False


def imports(tree: ast.AST, in_function: bool = False, for_types: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                source = ""
                if isinstance(node, ast.ImportFrom):
                    source = f"{'.' * node.level}{node.module or ''}."
                for alias in node.names:
                    yield Import(f"{source}{alias.name}", in_function, for_types)
            case ast.expr():
                pass  # has no statements in it
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from imports(node, in_function, for_types=True)
            case _:
                inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                yield from imports(node, in_function or inside, for_types)


def within(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


@functools.cache
def home(target: str) -> str:
    """Where a name of the package is defined, if the target takes it from where it is imported."""
    module, _, name = target.rpartition(".")
    source = sources("nsqtools").get(module.partition(".")[2] or "__init__")
    for each in imports(source.tree) if source and target not in modules() else ():
        if each.target.rpartition(".")[2] == name and within(each.target, ("nsqtools",)):
            return home(each.target)
    return target


@functools.cache
def modules() -> set[str]:
    return {f"nsqtools.{name}" for name in sources("nsqtools")}


def origins(source: Source) -> dict[str, str]:
    """The dotted name behind each name that an import binds."""
    found: dict[str, str] = {}
    for node in source.nodes:
        match node:
            case ast.Import():
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    found[alias.asname or root] = alias.name if alias.asname else root
            case ast.ImportFrom(module=str(module), level=0):
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{module}.{alias.name}"
    return found


def reached(source: Source) -> Iterator[Import]:
    """The imports, and what is reached through an imported module of the package."""
    yield from imports(source.tree)
    known = origins(source)
    for node in source.nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if (
                module := known.get(name)
            ) in modules():
                yield Import(f"{module}.{attr}")


def broken_layers(module: str, source: Source) -> Iterator[str]:
    part = module.partition(".")[0]
    for each in reached(source):
        root, _, name = home(each.target).partition(".")
        if root == "":
            yield f"{module}: relative import of {each.target}"
        elif root == "nsqtools":
            if name not in RELEASE and not within(name, (part, *LAYERS.get(part, ()))):
                yield f"{module}: {part} must not import {name}"
            elif within(name, ("sandbox",)) and not within(module, SANDBOX):
                yield f"{module}: {each.target} is for {', '.join(SANDBOX)} alone"
        elif each.target == NO_SOCKET:
            continue
        elif root in AT_HOME and not within(module, AT_HOME[root]):
            yield f"{module}: {root} belongs in {' and '.join(AT_HOME[root])} alone"
        elif root == "snappy" and not each.in_function:
            yield f"{module}: snappy is imported inside the function that needs it"


def names(source: Source) -> Iterator[tuple[str, int]]:
    """All names and attributes that a module uses or imports, each with its line."""
    for node in source.nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name, node.lineno
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    yield alias.name.rpartition(".")[2], node.lineno


def misplaced(module: str, source: Source) -> Iterator[str]:
    for name, line in names(source):
        for owned, owners in OWNERS:
            if name in owned and not re.fullmatch(owners, module):
                yield f"{module}:{line}: {name} belongs in {owners} alone"


def broken_purity(module: str, source: Source) -> Iterator[str]:
    allowed = PURE.get(module.partition(".")[0])
    if allowed is None:
        return
    for each in imports(source.tree):
        rng = ("random.Random",) if each.for_types and within(module, ("policy",)) else ()
        if not within(each.target, ("nsqtools", *rng, *allowed.split())):
            yield f"{module}: {each.target} has no place in a part that decides or parses"
    for node in source.nodes:
        match node:
            case ast.Attribute(attr=attr) if attr in CLOCKS:
                yield f"{module}:{node.lineno}: reads the clock"
            case ast.Name(id=name) if name in BUILT_IN_IO:
                yield f"{module}:{node.lineno}: {name} has no place here"


WALL_CLOCK = (
    *("time.time", "time.time_ns", "time.clock_gettime", "time.clock_gettime_ns"),
    *("datetime.datetime.now", "datetime.datetime.utcnow"),
    *("datetime.datetime.today", "datetime.date.today"),
)
TIME_OF_NOW = {
    **dict.fromkeys(("time.localtime", "time.gmtime", "time.ctime", "time.asctime"), 0),
    **dict.fromkeys(("email.utils.formatdate", "email.utils.localtime"), 0),
    "time.strftime": 1,
}
"""What reads the wall clock as well, unless it has more positional arguments than this."""


def reads_of_the_wall_clock(module: str, source: Source) -> Iterator[str]:
    """``nsqtools.clock`` alone reads it, so that tests can move it."""
    if module == "clock":
        return
    known = origins(source)
    given = {id(node.func): len(node.args) for node in source.nodes if isinstance(node, ast.Call)}
    for node in source.nodes:
        match node:
            case ast.Name(id=name) if name in known:
                target = known[name]
            case ast.Attribute(value=value, attr=attr):
                root, dot, rest = ast.unparse(value).partition(".")
                target = f"{known.get(root, root)}{dot}{rest}.{attr}"
            case _:
                continue
        if target in WALL_CLOCK or given.get(id(node), 0) <= TIME_OF_NOW.get(target, -1):
            yield f"{module}:{node.lineno}: {target} reads the wall clock: use nsqtools.clock"


SIZE = re.compile(r"^ *# size: \S", re.MULTILINE)
"""The comment that gives the reason for a size."""

TO_DIVIDE = {"spark": 34}
"""Folders that need subfolders, with the number of modules that they must not exceed."""


def oversize(module: str, source: Source) -> Iterator[str]:
    """A long file or function; a ``# size:`` comment in it excuses it."""
    lines = source.text.splitlines()
    if len(lines) > MAX_FILE and not SIZE.search(source.text):
        yield f"{module}: has {len(lines)} lines, and no '# size: REASON'"
    for node in source.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = lines[node.lineno - 1 : node.end_lineno]
            if len(body) > MAX_FUNCTION and not SIZE.search("\n".join(body)):
                yield f"{module}: {node.name} has {len(body)} lines, and no '# size: REASON'"


def undersize(module: str, source: Source) -> Iterator[str]:
    """A short file; those that Python itself names, and mere docstrings, are as short as can be."""
    count = len(source.text.splitlines())
    if module in ("__init__", "__main__") or not source.tree.body[1:]:
        return
    if count < MIN_FILE and not SIZE.search(source.text):
        yield f"{module}: has {count} lines, and no '# size: REASON'"


def crowded(module: str, source: Source) -> Iterator[str]:
    """A folder of many modules."""
    count = len(list(source.path.parent.glob("*.py"))) - 1
    most = TO_DIVIDE.get(module, MAX_FOLDER)
    excused = module not in TO_DIVIDE and SIZE.search(source.text)
    if source.path.name == "__init__.py" and count > most and not excused:
        yield f"{module}: has {count} modules"


ALIAS = re.compile("_?[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")


def named(source: Source) -> Iterator[tuple[str, set[str]]]:
    """The classes and module-level aliases with their bases, without leading underscores."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
            yield node.name.lstrip("_"), {base.rpartition(".")[2].lstrip("_") for base in bases}
    for node in (inner for outer in source.tree.body for inner in getattr(outer, "body", [outer])):
        match node:
            case ast.Assign(targets=[ast.Name(id)]) | ast.AnnAssign(target=ast.Name(id)) if (
                ALIAS.fullmatch(id)
            ):
                yield id.lstrip("_"), set()


SLEEPERS = ("support", "simulation", "live.test_engine", "test_layers")
"""Where real time may pass: polling, faults of a proxy, and handlers that stall on purpose; time in
the simulation is virtual.
"""
PROGRAMS = ("bench", "mutations", "simulation")


def real_sleeps(module: str, source: Source) -> Iterator[str]:
    """``sleep(0)`` yields and ``tests.support.clock.elapse`` is virtual; all else is a guess."""
    if within(module, SLEEPERS):
        return
    for node in source.nodes:
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="asyncio" | "time"), attr="sleep"),
                args=[ast.Constant(value=0)],
            ):
                pass
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio" | "time"), attr="sleep")):
                yield f"{module}:{node.lineno}: sleeps; wait for a condition, or use elapse"


def borrowed(module: str, source: Source) -> Iterator[str]:
    """What tests share is in ``tests.support``; ``PROGRAMS`` are not tests alone."""
    part, _, name = module.rpartition(".")
    if within(module, ("support", *PROGRAMS)):
        part = module.partition(".")[0]
    elif source.tree.body[1:] and name != "conftest" and not name.startswith("test_"):
        yield f"{module}: is no test: what tests share belongs in tests/support"
    for each in imports(source.tree):
        if each.target.startswith(("test_", "conftest.")):
            yield f"{module}: imports {each.target}"
        elif within(each.target, ("tests",)) and not within(
            each.target,
            ("tests.support", f"tests.{part}" if part in PROGRAMS else "tests.support"),
        ):
            yield f"{module}: imports {each.target}: what tests share belongs in tests/support"


def test_the_table_of_contributing_lists_every_part() -> None:
    assert LAYERS.keys() == {name.partition(".")[0] for name in sources("nsqtools")}


@pytest.mark.parametrize(
    ("rule", "folder"),
    [
        (broken_layers, "nsqtools"),
        (broken_purity, "nsqtools"),
        (misplaced, "nsqtools"),
        (reads_of_the_wall_clock, "nsqtools"),
        (oversize, "nsqtools"),
        (undersize, "nsqtools"),
        (crowded, "nsqtools"),
        (oversize, "tests"),
        (real_sleeps, "tests"),
        (borrowed, "tests"),
    ],
)
def test_a_rule_is_kept(rule: Rule, folder: str) -> None:
    assert [text for name, each in sources(folder).items() for text in rule(name, each)] == []


def test_no_two_modules_or_classes_have_one_name_unless_one_extends_the_other() -> None:
    """Packages and ``__main__`` aside; a command's modules are named after the command."""
    found: dict[str, list[tuple[str, bool]]] = {}
    packages = {name.rpartition(".")[0] for name in sources("nsqtools")}
    for module, source in sources("nsqtools").items():
        for name, bases in named(source):
            found.setdefault(name, []).append((module, name in bases))
        last = module.rpartition(".")[2]
        if last != "__main__" and module not in packages and not within(module, ("cli.commands",)):
            is_of_options = module == "config.connection"  # those of net.connection
            found.setdefault(last, []).append((module, is_of_options))
    for name, places in found.items():
        modules = [module for module, _ in places]
        assert len(set(modules)) == len(modules), f"{name} is twice in one of {modules}"
        roots = [module for module, extends in places if not extends]
        assert len(roots) <= 1, f"{name} is in {' and '.join(roots)}"


def test_no_imports_of_modules_go_in_a_circle() -> None:
    """So each can be imported first. A package is imported before what it contains."""
    graph: dict[str, set[str]] = {}
    for name, source in sources("nsqtools").items():
        module = f"nsqtools.{name}".removesuffix(".__init__")
        needed = graph.setdefault(module, set())
        for each in imports(source.tree):
            if each.for_types or each.in_function or not within(each.target, ("nsqtools",)):
                continue
            target = each.target if each.target in modules() else each.target.rpartition(".")[0]
            needed.add(target)
            needed |= parents(target) - parents(module) - {module}
    TopologicalSorter(graph).prepare()


def parents(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}
