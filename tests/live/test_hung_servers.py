"""Real servers that are not there yet: a service waits for them, and a job does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.eventually import eventually
from tests.support.servers import at

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd

SOON = 10.0
"""Seconds; a handshake, or a request to nsqlookupd, that hangs takes 20 or more."""


def test_a_service_waits_for_its_first_server_and_says_so_once(
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    make_nsqlookupd: MakeNsqlookupd,
    topic: str,
    tmp_path: Path,
) -> None:
    """nsqlookupd, nsqd, or the destination of relay."""
    lookupd = make_nsqlookupd()
    nsqd, goal = make_nsqd(lookupds=[lookupd]), make_nsqd()
    nsqd.create(topic, "c")
    eventually(lambda: lookupd.lookup(topic))
    nsqd.publish(topic, [b"x"] * 3)
    consumed = ("--topic", topic, "--channel", "c")
    relay = ("--destination-nsqd-tcp-address", str(goal.tcp), "--destination-topic", "copy")
    for missing, words in (
        (lookupd, ("tail", *consumed, "--lookupd-http-address", str(lookupd.http))),
        (nsqd, ("tail", *consumed, *at(nsqd))),
        (goal, ("relay", *consumed, *at(nsqd), *relay)),
    ):
        missing.stop()
        with (tmp_path / "log").open("w+b") as log:
            process = nsqtools_cli.start(*words, stdout=log, stderr=log)
            eventually(lambda: b"waiting until" in (tmp_path / "log").read_bytes())
            missing.start()
            if missing is lookupd:
                nsqd.restart()  # or it notices nsqlookupd only 15 s later
            nsqd.create(topic, "c")
            eventually(lambda: nsqd.channel(topic, "c")["client_count"])
            process.terminate()
            assert process.wait(SOON) == 0
            said = (tmp_path / "log").read_bytes()
        assert said.count(b"waiting until") == 1
        missing.stop()
        job = nsqtools_cli(*words, "--max-duration", "60s")
        assert (job.code, job.stderr.count("\n")) == (3, 1), job.stderr
        missing.start()
