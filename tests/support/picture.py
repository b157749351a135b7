"""``python -m tests.support.picture`` makes the terminal picture at the top of README.md anew.

It shows what ``nsqtools demo`` prints on a terminal, with fixed values for what changes from run to
run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from fcntl import ioctl
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from rich.console import Console
from rich.text import Text

from tests.support.process import COMMAND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PICTURE = Path(__file__).parents[2] / ".github" / "demo.svg"
WIDTH = 92
_TIMEOUT = 250.0

_ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")
_ERASED = "starting Spark"  # by moving the cursor up
_ADDRESSES = {
    "nsqd_tcp_address": "127.0.0.1:4150",
    "nsqd_http_address": "127.0.0.1:4151",
    "lookupd_tcp_address": "127.0.0.1:4160",
    "lookupd_http_address": "127.0.0.1:4161",
}
_FIXED = (
    (r'("time": )"[^"]+"', r'\1"2026-03-14T09:26:53.589+00:00"'),
    (r'("timestamp":)\d+', r"\g<1>1773480413589793238"),
    (r'("id":)"[0-9a-f]{16}"', r'\1"0f7a3c5e1b402000"'),
    (
        r"^(lake/events\.)\S+(: .*) [\d,]+ bytes",
        r"\1laptop-000000.2026-03-14_09.log.gz\2 51,234 bytes",
    ),
    (
        r"^(parquet/date=)[^/]+/hour=../batch=[0-9a-f]{16}-0{8}/(part-\d{5})-\S+",
        r"\g<1>2026-03-14/hour=09/batch=5e0fa0a19c1d4f0b-00000000/\2.c000.zstd.parquet",
    ),
)
_TABLE = ["tcp", "http", "hostname", "version"]
_HOSTNAME = "laptop"

# rich's own, but with the reader's fonts: one in an <img> may load none from elsewhere.
_SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>nsqtools demo</title>
<style>
text {{
font: {char_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def make() -> str:
    """Run the demo and return its picture."""
    shown = [_cut(line) for line in normalised(_run_on_a_terminal([*COMMAND, "demo"]))]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\n".join(shown)), highlight=False)
    svg = console.export_svg(title="nsqtools demo", unique_id="nsqtools", code_format=_SVG)
    return "".join(f"{line.strip()}\n" for line in svg.splitlines() if line.strip())


def text_lines(svg: str) -> list[str]:
    """What is written in a picture, by lines and without white space, whatever its markup."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        x, y = float(element.get("x", "0")), float(element.get("y", "0"))
        lines.setdefault(y, []).append((x, element.text or ""))
    return ["".join("".join(text for _, text in sorted(lines[y])).split()) for y in sorted(lines)]


def normalised(output: str) -> list[str]:
    """The lines of a run, with their colours, as they are in any other run."""
    written = (_overwritten(line) for line in output.rstrip().split("\n"))
    lines = [line for line in written if _ERASED not in line]
    while not _ESCAPE.sub("", lines[0]):
        lines[1] = lines[0] + lines[1]  # a colour begins there
        del lines[0]
    ports = _ports(lines)
    return [_fixed(line, ports) for line in _with_even_tables(lines, ports)]


def _overwritten(line: str) -> str:
    """What stays on the terminal of a line that went back to its beginning and was erased."""
    return line.rstrip("\r").rpartition("\r\x1b[K")[2]


def _ports(lines: Sequence[str]) -> dict[str, str]:
    """Addresses of this run to the usual ones, from the line in JSON that the sandbox prints."""
    found = next(line for line in lines if line.startswith('{"nsqd_tcp_address"'))
    return {address: _ADDRESSES[name] for name, address in json.loads(found).items()}


def _fixed(line: str, ports: dict[str, str]) -> str:
    for address, usual in ports.items():
        line = line.replace(address, usual)
    for pattern, replacement in _FIXED:
        line = re.sub(pattern, replacement, line)
    return line


def _with_even_tables(lines: Sequence[str], ports: dict[str, str]) -> Iterator[str]:
    """The table of producers set anew: its columns are as wide as ports and host name are."""
    rest = iter(lines)
    for line in rest:
        if _ESCAPE.sub("", line).split() != _TABLE:
            yield line
            continue
        tcp, http, _, version = next(rest).split()
        row = [ports[tcp], ports[http], _HOSTNAME, version]
        widths = [max(map(len, column)) for column in zip(_TABLE, row, strict=True)]
        header, values = (
            "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            for cells in (_TABLE, row)
        )
        yield f"\x1b[1m{header}\x1b[0m"
        yield values


def _cut(line: str) -> str:
    """A line that is not too long; those that are have no colours."""
    return line if len(_ESCAPE.sub("", line)) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _run_on_a_terminal(command: Sequence[str]) -> str:
    """The output of a program that has a terminal; raises RuntimeError if it fails or hangs."""
    ours, its = os.openpty()
    ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    process = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, env=_environment(), start_new_session=True
    )
    os.close(its)
    try:
        output = b"".join(_read(ours)).decode()
        if process.wait(_TIMEOUT):
            raise RuntimeError(f"{command} ended with exit status {process.returncode}:\n{output}")
        return output
    finally:
        os.close(ours)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _read(terminal: int) -> Iterator[bytes]:
    deadline = time.monotonic() + _TIMEOUT
    with contextlib.suppress(OSError):  # how a terminal ends whose other side is closed
        while select.select([terminal], [], [], max(deadline - time.monotonic(), 0))[0]:
            yield os.read(terminal, 1 << 16)
        raise RuntimeError(f"no end of output within {_TIMEOUT:g} s")


def _environment() -> dict[str, str]:
    unwanted = ("NO_COLOR", "FORCE_COLOR", "LINES")
    kept = {name: text for name, text in os.environ.items() if name not in unwanted}
    return {**kept, "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}


if __name__ == "__main__":
    PICTURE.write_text(make(), encoding="utf-8")
