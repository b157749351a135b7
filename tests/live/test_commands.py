"""``pub`` and ``tail`` together, as processes on real servers."""

from __future__ import annotations

import base64
import json
import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.servers import at, drained

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd

BINARY = [
    b"\x00",
    b"\n",
    b"a\nb\x00c",
    bytes(range(256)),
    b"\xff\xfe\xfd",
    "käse \u2028 \U0001f9c0".encode(),
    b'{"quoted": "\\"}',
    b"x" * 100_000,
]


def test_many_messages_pass_pub_and_tail_over_three_nsqds_unchanged(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str, full: bool
) -> None:
    count = 200_000 if full else 20_000
    lookupd = make_nsqlookupd()
    nsqds = [make_nsqd(lookupds=[lookupd]) for _ in range(3)]
    for nsqd in nsqds:
        nsqd.create(topic, "copy")
    eventually(lambda: len(lookupd.lookup(topic)) == 3)
    lines = [b"%d %s" % (number, os.urandom(12).hex().encode()) for number in range(count)]
    addresses = [word for nsqd in nsqds for word in at(nsqd)]
    one = ("--mode", "round-robin")
    published = nsqtools_cli("pub", "--topic", topic, *one, *addresses, stdin=b"\n".join(lines))
    assert (published.code, published.stdout, published.stderr) == (0, b"", "")
    assert all(nsqd.topic(topic)["message_count"] > count // 20 for nsqd in nsqds)

    tailed = nsqtools_cli(
        *("tail", "--topic", topic, "--channel", "copy", "-n", str(count)),
        *("--lookupd-http-address", str(lookupd.http)),
    )

    assert (tailed.code, tailed.stderr) == (0, "")
    assert sorted(tailed.stdout.splitlines()) == sorted(lines)
    assert all(drained(nsqd, topic, "copy") for nsqd in nsqds)


def test_any_bytes_survive_both_ways(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    other = f"{topic}.copy"
    nsqd.create(topic, "c")
    nsqd.create(other, "c")
    nsqd.publish(topic, BINARY)
    tail = ["tail", "--channel", "c", "-n", str(len(BINARY)), "--json", *at(nsqd), "--topic"]

    first = nsqtools_cli(*tail, topic)
    copied = nsqtools_cli("pub", "--topic", other, "--json", *at(nsqd), stdin=first.stdout)
    second = nsqtools_cli(*tail, other)

    assert (first.code, copied.code, copied.stderr) == (0, 0, "")
    envelopes = [json.loads(line) for line in second.stdout.split(b"\n")[:-1]]
    assert {each["topic"] for each in envelopes} == {other}
    bodies = [
        each["body"].encode() if "body" in each else base64.b64decode(each["body_b64"])
        for each in envelopes
    ]
    assert sorted(bodies) == sorted(BINARY)


def test_go_spellings_and_options_of_the_go_tools_work(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    address = f"-nsqd-tcp-address={nsqd.tcp}"
    published = nsqtools_cli(
        *("pub", "-topic", topic, address, "-delimiter", ";", "-rate=100000"),
        *("-producer-opt", "client_id,tests"),
        stdin=b"a;b;c",
    )
    tailed = nsqtools_cli(
        *("tail", "-topic", topic, "-channel", "c", address, "-n", "3", "-max-in-flight=10"),
        *("-consumer-opt", "max_attempts,3", "--consumer-opt=snappy", "-print-topic"),
    )
    assert (published.code, tailed.code, tailed.stderr) == (0, 0, "")
    assert sorted(tailed.stdout.splitlines()) == [f"{topic} | {x}".encode() for x in "abc"]


@pytest.mark.nsqd_only("the sandbox's limits of output buffers are fixed")
def test_defaults_that_nsqd_refuses_are_left_to_nsqd(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    """Only ``-v`` tells of it."""
    nsqd = make_nsqd(
        *("-max-output-buffer-size=32768", "-max-heartbeat-interval=5s"),
        "-max-output-buffer-timeout=50ms",
    )
    nsqd.create(topic, "c")
    published = nsqtools_cli("pub", "--topic", topic, *at(nsqd), "-v", "hello")
    words = ("--topic", topic, "--channel", "c", "-n", "1", *at(nsqd))
    seen = nsqtools_cli("tail", *words)
    assert (published.code, seen.code, seen.stdout) == (0, 0, b"hello\n")
    names = ["heartbeat_interval", "output_buffer_size", "output_buffer_timeout"]
    assert sorted(re.findall(r"refuses our (\w+)", published.stderr)) == names
    assert seen.stderr == ""
    assert drained(nsqd, topic, "c")
    doctor = nsqtools_cli("doctor", "--topic", topic, "--channel", "c", *at(nsqd))
    assert "E_BAD_BODY" not in doctor.stdout.decode()
