"""Makes small mistakes in nsqtools, one at a time, and prints which of them no test notices.

Works in a private copy. Which lines a test file runs is recorded once, by the package coverage, and
kept until a source changes. The test files that run a mistake's line are run until one fails, those
first that run much of its module in little time, but no more than take some ``--seconds`` together.
"""

import argparse
import ast
import hashlib
import importlib.util
import itertools
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")

ROOT = Path(__file__).parents[1]
LEFT_OUT = re.compile(r"nsqtools/(spark/(?!staging/)|cli/docs/|sandbox/|ui/)")
UNTOLD = re.compile(
    r"lru_cache|(.*\.)?_?log(ger)?\.(debug|info|warning|error|exception|critical|log)"
)
EFFECT = re.compile(r"(.*\.)?_?(f?sync\w*|flush|unlink|replace|close)")
FALSE = ("None", "0", "[]", "()", "{}")  # which None as a result does not differ from in an if
COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
COMPARED |= {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
TOGETHER = 20.0  # seconds of test files that are run by one pytest, which takes a few to start
RECORD = """\
[run]
data_file = {data}
include = {tree}/nsqtools/*
parallel = true
patch = _exit, fork
disable_warnings = no-data-collected, module-not-imported, module-not-measured, already-imported
"""


class Mutation(NamedTuple):
    """A mistake: the bytes of ``path`` from ``start`` to ``end`` become ``new``."""

    path: str
    line: int
    lines: range  # a test that runs one of them may notice
    around: range  # those of its function, some of which count as not run after an exception
    start: int
    end: int
    change: str
    new: str


class Recorded(NamedTuple):
    """What a test file does without any mistake; one that fails has no lines."""

    seconds: float
    lines: dict[str, list[int]]


def changes(node: ast.AST, returned: str) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """What is replaced in a node, and by which text, in a function annotated with ``returned``."""
    match node:
        case ast.Return(value=ast.Constant(value="") as value):
            yield value, "'?'"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in FALSE:
            yield value, f"(not ({ast.unparse(value)}))" if returned == "bool" else "None"
        case ast.Compare(left=left, ops=ops, comparators=others):
            for at, kind in enumerate(ops):
                if other := COMPARED.get(type(kind)):
                    changed = ast.Compare(left, [*ops[:at], other(), *ops[at + 1 :]], others)
                    yield node, f"({ast.unparse(changed)})"
        case ast.BoolOp(op=joined, values=values):
            opposite = ast.Or() if isinstance(joined, ast.And) else ast.And()
            yield node, f"({ast.unparse(ast.BoolOp(opposite, values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            yield node, str(number + 1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=right):
            if not re.search("(?m)^[bf]?['\"]", f"{ast.unparse(left)}\n{ast.unparse(right)}"):
                swapped = ast.Sub() if isinstance(sign, ast.Add) else ast.Add()
                yield node, f"({ast.unparse(ast.BinOp(left, swapped, right))})"
        case ast.Expr(value=ast.Await(value=ast.Call())):
            yield node, "pass"  # with its call, so that no coroutine is left that nobody awaits
        case ast.Expr(value=ast.Call(func=called)) if EFFECT.fullmatch(ast.unparse(called)):
            yield node, "pass"
        case ast.If(test=test) if ast.unparse(test) != "TYPE_CHECKING":
            yield test, f"({ast.unparse(test)}) or True"
            yield test, f"({ast.unparse(test)}) and False"
        case ast.Break() | ast.Continue():
            yield node, "continue" if isinstance(node, ast.Break) else "break"


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node that may hold a mistake.

    There are none in annotations, messages and log calls, nor where a number only trades memory for
    speed: the size of a cache, and a constant such as ``_READ = 64 << 10``.
    """
    match node:
        case ast.Call(func=called) if UNTOLD.fullmatch(ast.unparse(called)):
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.JoinedStr():  # whose places Python 3.11 does not tell
            return
        case ast.Assign(value=ast.BinOp(op=ast.LShift(), right=ast.Constant(value=int(bits)))):
            if bits >= 10:
                return
    annotations = [getattr(node, name, None) for name in ("annotation", "returns")]
    yield from (each for each in ast.iter_child_nodes(node) if each not in annotations)


def mutations_of(path: str) -> list[Mutation]:
    """Every mistake of one file."""
    source = (ROOT / path).read_bytes()
    ends = list(itertools.accumulate(map(len, source.splitlines(keepends=True)), initial=0))
    found = []

    def visit(node: ast.AST, statement: ast.stmt | None, around: range, returned: str) -> None:
        if isinstance(node, ast.stmt):
            statement = node
        for place, new in changes(node, returned):
            last = place.end_lineno or place.lineno
            start = ends[place.lineno - 1] + place.col_offset
            end = ends[last - 1] + (place.end_col_offset or 0)
            first = min(statement.lineno if statement else 1, place.lineno)  # or in a decorator
            lines = range(first, last + 1)
            old = " ".join(source[start:end].decode().split())
            change = f"{old} -> {new}"
            found.append(Mutation(path, place.lineno, lines, around, start, end, change, new))
        for part in parts(node):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                around = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
                returned = ast.unparse(node.returns) if node.returns else ""
            visit(part, statement, around, returned)

    visit(ast.parse(source), None, range(0), "")
    return found


class Copy:
    """A private copy of the repository, whose tests can be run."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir()
        self.root = folder / "copy"
        self._folder, self._seed, self._moment = folder, seed, time.time()
        others = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, self.root, ignore=others)

    def write(self, path: str, source: bytes) -> None:
        """Write a file, with a time that it never had, or Python would use its old bytecode."""
        (self.root / path).write_bytes(source)
        self._moment += 2
        os.utime(self.root / path, (self._moment, self._moment))

    def run(self, tests: Sequence[str], limit: float, **environment: str) -> str:
        """Run test files until one fails, which is returned, or else ""."""
        paths = environment.get("PYTHONPATH"), str(self.root), os.environ.get("PYTHONPATH")
        env = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        # A pytest that is interrupted ends what its tests have started; Ctrl-C reaches it too.
        argv = ["timeout", "--foreground", "--signal=INT", "--kill-after=10", f"{limit + 10}"]
        argv += [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        argv += ["--seed", str(self._seed), "--timeout", f"{limit}", *tests]
        output = self._folder / "output"  # not a pipe, which what a test leaves behind would hold
        with output.open("wb") as out:
            code = subprocess.call(argv, cwd=self.root, env=env, stdout=out, stderr=out)
        if code in (0, 5):  # 5: there are no tests, or only such that are left out here
            return ""
        failed = re.search(r"(?m)^(?:FAILED|ERROR) ([^\s:]+)", output.read_text(errors="replace"))
        return failed[1] if failed else f"{tests[0]}, exit code {code}"

    def record(self, test: str) -> Recorded:
        """Run a test file, and see which lines it and the processes that it starts run."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        config, data = folder / "config", folder / "lines"
        config.write_text(RECORD.format(data=data, tree=self.root))
        (folder / "sitecustomize.py").write_text("import coverage; coverage.process_startup()")
        started = time.monotonic()
        failed = self.run([test], 300, PYTHONPATH=str(folder), COVERAGE_PROCESS_START=str(config))
        coverage = importlib.import_module("coverage").Coverage(str(data), config_file=False)
        coverage.combine()
        found = coverage.get_data()
        files = () if failed else found.measured_files()
        lines = {os.path.relpath(file, self.root): sorted(found.lines(file)) for file in files}
        return Recorded(time.monotonic() - started, lines)


def in_copies(copies: Sequence[Copy], call: Callable[[Copy, T], R], items: Iterable[T]) -> list[R]:
    """Call for all items, each with a copy that is free, and return the results in their order."""
    free = queue.SimpleQueue[Copy]()
    for copy in copies:
        free.put(copy)

    def work(item: T) -> R:
        copy = free.get()
        try:
            return call(copy, item)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(work, items))


def record(copies: Sequence[Copy], tests: Sequence[str]) -> dict[str, Recorded]:
    """What each test file runs, from the cache where that is known."""
    root = copies[0].root
    sources = [path for path in root.rglob("*.py") if path.name != Path(__file__).name]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources)))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "nsqtools-tests")
    cache.mkdir(parents=True, exist_ok=True)
    file = cache / f"mutations-{digest.hexdigest()[:12]}.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    lock = threading.Lock()

    def add(copy: Copy, test: str) -> None:
        found = copy.record(test)
        with lock:
            known[test] = found
            file.write_text(json.dumps(known))
        print(f"recorded {test}: {found.seconds:.1f} s, {len(found.lines)} modules", flush=True)

    in_copies(copies, add, [test for test in tests if test not in known])
    return {test: Recorded(*known[test]) for test in tests}


def judge(copy: Copy, mutation: Mutation, recorded: dict[str, Recorded], most: float) -> str:
    """Which test file notices a mistake, or "SURVIVED" after ``most`` seconds of tests or all."""
    lines = {test: set(recorded[test].lines.get(mutation.path, ())) for test in recorded}
    may = {*mutation.lines, *mutation.around}
    near = [test for test in recorded if not may.isdisjoint(lines[test])]
    near = near or [test for test in recorded if lines[test]]  # a killed process told no lines
    near.sort(
        key=lambda test: (
            lines[test].isdisjoint(mutation.lines),
            recorded[test].seconds / len(lines[test]),
        )
    )
    runs: list[tuple[int, str]] = []
    end = 0.0
    for test in near:
        if end + recorded[test].seconds <= most:
            end += recorded[test].seconds
            runs.append((int(end // TOGETHER), test))
    path, source = mutation.path, (ROOT / mutation.path).read_bytes()
    copy.write(path, source[: mutation.start] + mutation.new.encode() + source[mutation.end :])
    try:
        for _, group in itertools.groupby(runs, key=lambda each: each[0]):
            tests = [test for _, test in group]
            if failed := copy.run(tests, 30 + 3 * sum(recorded[each].seconds for each in tests)):
                return f"caught by {failed}"
    finally:
        copy.write(path, source)
    return f"SURVIVED {len(runs)} of {len(near)} test files that run it"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--count", type=int, default=100, help="how many mistakes")
    parser.add_argument("--folder", nargs="+", default=["nsqtools"], help="where they are made")
    parser.add_argument("--at", default="", help="FILE:LINE, to make every mistake of this line")
    parser.add_argument("--without", nargs="+", default=[], help="folders or files of tests")
    parser.add_argument("--seconds", type=float, default=300, help="of tests, for one mistake")
    parser.add_argument("--jobs", type=int, default=2, help="mistakes that are judged at a time")
    args = parser.parse_args()
    if not importlib.util.find_spec("coverage"):
        parser.error("which test runs which line is found with coverage: pip install coverage")
    tests = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/**/test_*.py"))]
    tests = [test for test in tests if not test.startswith(tuple(args.without))]
    paths = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("nsqtools/**/*.py"))]
    paths = [path for path in paths if path.startswith(tuple(args.folder))]
    sites = [site for path in paths if not LEFT_OUT.match(path) for site in mutations_of(path)]
    sites = [site for site in sites if args.at in ("", f"{site.path}:{site.line}")]
    count = min(args.count, len(sites))
    chosen = random.Random(args.seed).sample(sites, count)
    print(f"--seed {args.seed}: {count} of {len(sites)} mistakes, {len(tests)} test files")
    with tempfile.TemporaryDirectory(prefix="nsqtools-mutations-") as folder:
        copies = [Copy(Path(folder, str(number)), args.seed) for number in range(args.jobs)]
        recorded = record(copies, tests)

        def is_caught(copy: Copy, mutation: Mutation) -> bool:
            verdict = judge(copy, mutation, recorded, args.seconds)
            print(f"{mutation.path}:{mutation.line}: {mutation.change}: {verdict}", flush=True)
            return verdict.startswith("caught")

        caught = sum(in_copies(copies, is_caught, chosen))
    print(f"caught {caught} of {count}: {caught / max(count, 1):.0%}")


if __name__ == "__main__":
    main()
