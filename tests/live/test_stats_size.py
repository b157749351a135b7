"""``stats`` of a large cluster stays small."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.process import COMMAND

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import MakeNsqd

TOPICS, CHANNELS = 500, 4
MOST = 80 << 10  # KiB

# A process of its own, as the highest memory of a forked one is that of its parent too.
MEASURE = """\
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, done.stdout.count(b"\\n"))
"""


@pytest.mark.nsqd_only("the sandbox keeps no topics over a restart")
@pytest.mark.parametrize(
    ("form", "lines"),
    [((), 3), (("--csv",), 1), (("--json",), -TOPICS * (CHANNELS + 1) + 1)],
    ids=["text", "csv", "json"],
)
def test_a_report_of_a_large_cluster_takes_little_memory(
    make_nsqd: MakeNsqd, tmp_path: Path, form: tuple[str, ...], lines: int
) -> None:
    known = [
        {"name": f"topic-{n}", "channels": [{"name": f"channel-{m}"} for m in range(CHANNELS)]}
        for n in range(TOPICS)
    ]
    where = []
    for _ in range(3):
        nsqd = make_nsqd()
        nsqd.stop()
        (nsqd.data_path / "nsqd.dat").write_text(json.dumps({"version": "1.3.0", "topics": known}))
        nsqd.start()
        where += ["--nsqd-http-address", str(nsqd.http)]
    command = [*COMMAND, "stats", "--once", *form, *where]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, check=True
    )
    memory, counted = map(int, done.stdout.split())
    assert counted == TOPICS * (CHANNELS + 1) + lines
    assert memory < MOST
