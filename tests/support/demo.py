"""``python -m tests.support.demo``: the main job in a few seconds, on a real nsqd."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.servers import Nsqd, Nsqlookupd


def show(line: str, addresses: dict[str, str]) -> None:
    """Print a command line, and run it with short addresses put in."""
    print(f"\n$ {line}", flush=True)
    for name, value in addresses.items():
        line = line.replace(name, value)
    program = Path(sys.executable).parent / "nsqtools"
    subprocess.run(line.replace("nsqtools", str(program)), shell=True, check=True)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        Nsqlookupd(Path(scratch, "lookupd")) as lookupd,
        Nsqd(Path(scratch, "nsqd"), lookupds=[lookupd]) as nsqd,
    ):
        addresses = {"$NSQD": str(nsqd.tcp), "$HTTP": str(nsqd.http)}
        addresses["$LOOKUPD"] = str(lookupd.http)
        print("A real nsqd and nsqlookupd:", addresses)
        nsqd.create("events", "reader")
        for line in (
            "nsqtools pub --topic events --nsqd-tcp-address $NSQD 'hello, NSQ'",
            "seq 100000 | nsqtools pub -v --topic events --nsqd-tcp-address $NSQD",
            "nsqtools lookup producers events --lookupd-http-address $LOOKUPD",
            "nsqtools tail --topic events --channel reader --lookupd-http-address $LOOKUPD"
            " -n 3 --json",
            "nsqtools tail --topic events --channel reader --nsqd-tcp-address $NSQD"
            " --nsqd-http-address $HTTP --until-empty | sort -n | uniq | wc -l",
        ):
            show(line, addresses)


if __name__ == "__main__":
    try:
        main()
    except pytest.skip.Exception as reason:
        sys.exit(f"the demo needs nsqd: {reason}")
