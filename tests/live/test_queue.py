"""``queue`` on the files of a real nsqd: one that runs, was stopped, was killed, or met damage."""

import json
from typing import Any

import pytest

from tests.support.decoding import program
from tests.support.diskqueues import QueueFiles
from tests.support.eventually import eventually
from tests.support.process import Cli, Result
from tests.support.raw import Raw
from tests.support.servers import MakeNsqd, Nsqd, empty

pytestmark = pytest.mark.nsqd_only("it is about messages on disk")

ALL = range(1000)
BODIES = [b"%d " % number for number in ALL]


def start(make_nsqd: MakeNsqd, in_memory: int = 0) -> Nsqd:
    """An nsqd whose topic ``t`` has the channels ``a`` and ``b``, each with all messages."""
    nsqd = make_nsqd(f"-mem-queue-size={in_memory}", "-sync-timeout=50ms")
    for channel in "ab":
        nsqd.create("t", channel)
    nsqd.publish("t", BODIES)
    eventually(lambda: {depth(nsqd, channel) for channel in "ab"} == {len(ALL)})
    return nsqd


def depth(nsqd: Nsqd, channel: str) -> int:
    found: int = nsqd.channel("t", channel)["depth"]
    return found


def queue(cli: Cli, nsqd: Nsqd, verb: str, *options: str, **more: Any) -> Result:
    return cli("queue", verb, str(nsqd.data_path), *options, **more)


def cat(cli: Cli, nsqd: Nsqd, *options: str, code: int = 0, warns: bool = False) -> list[int]:
    done = queue(cli, nsqd, "cat", "--topic", "t", "--channel", "b", *options)
    assert (done.code, bool(done.stderr)) == (code, bool(code) or warns)
    return [int(line) for line in done.stdout.splitlines()]


def ls(cli: Cli, nsqd: Nsqd) -> dict[str, dict[str, Any]]:
    """What queues hold, by channel; "" is the topic."""
    done = queue(cli, nsqd, "ls", "--json")
    assert (done.code, done.stderr) == (0, "")
    return {each["channel"]: each for each in json.loads(done.stdout)["queues"]}


def drain(cli: Cli, nsqd: Nsqd) -> list[int]:
    """Consume all that a channel has, without regard to order."""
    done = cli("tail", "--topic", "t", "--channel", "b", *empty(nsqd))
    assert done.code == 0
    return sorted(int(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("in_memory", [0, 100])
def test_a_running_nsqd_is_not_disturbed_and_a_stopped_one_has_all_on_disk(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, in_memory: int
) -> None:
    nsqd = start(make_nsqd, in_memory)
    nsqd.request("POST", "/pub", b"1000", topic="t", defer=3_600_000)
    eventually(lambda: nsqd.channel("t", "b")["deferred_count"] == 1)
    before = nsqd.stats()["topics"]
    found = cat(nsqtools_cli, nsqd)
    assert set(found) <= set(ALL)
    assert len(found) == len(ALL) - in_memory
    assert ls(nsqtools_cli, nsqd)["a"]["messages"] == len(ALL) - in_memory
    assert queue(nsqtools_cli, nsqd, "push", "--topic", "t", "--channel", "b").code == 75
    assert nsqd.stats()["topics"] == before
    with Raw(nsqd.tcp) as client:
        client.subscribe("t", "b", ready=7)
        for _ in range(7):
            client.message()
        nsqd.stop()
    assert sorted(cat(nsqtools_cli, nsqd)) == [*ALL, 1000]
    held = ls(nsqtools_cli, nsqd)
    assert {name: each["messages"] for name, each in held.items()} == {"": 0, "a": 1001, "b": 1001}
    assert all(each["messages"] == each["meta"]["depth"] for each in held.values())
    nsqd.start()
    assert drain(nsqtools_cli, nsqd) == [*ALL, 1000]


def test_damage_costs_no_message_that_is_whole(nsqtools_cli: Cli, make_nsqd: MakeNsqd) -> None:
    """nsqd was killed; then there is garbage, at which it gives a file up."""
    nsqd = start(make_nsqd)
    files = QueueFiles(nsqd.data_path, "t:b")
    eventually(lambda: files.path("meta").read_bytes().startswith(b"1000\n"))
    nsqd.kill()
    file = files.path(0)
    data = file.read_bytes()
    middle = data.index(b"500 ") - 30
    file.write_bytes(data[:middle] + b"garbage " * 20 + data[middle:] + b"garbage ")
    assert cat(nsqtools_cli, nsqd, code=4) == [*ALL]
    assert ls(nsqtools_cli, nsqd)["b"]["damaged"] == 168
    nsqd.start()
    assert set(drain(nsqtools_cli, nsqd)) >= {*range(500)}  # some come from the topic, once more
    nsqd.stop()
    assert file.with_name(f"{file.name}.bad").exists()
    assert cat(nsqtools_cli, nsqd, warns=True) == []
    assert cat(nsqtools_cli, nsqd, "--damaged", code=4) == [*ALL]
    assert ls(nsqtools_cli, nsqd)["b"]["bad"] == [f"{file}.bad"]


def test_what_is_printed_can_be_given_to_one_channel_alone(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd
) -> None:
    nsqd = start(make_nsqd)
    nsqd.create("without.channels")  # which nsqd stores as null
    nsqd.stop()
    chosen = ("--topic", "t", "--channel", "a", "--json", "-n", "3")
    printed = queue(nsqtools_cli, nsqd, "cat", *chosen).stdout
    options = ("--topic", "t", "--channel", "b", "--json")
    for _ in range(2):  # the first file of a queue, and one after it
        assert queue(nsqtools_cli, nsqd, "push", *options, stdin=printed).code == 0
    times = [json.loads(line)["timestamp"] for line in printed.splitlines()]
    last = queue(nsqtools_cli, nsqd, "cat", *options[:4], "--format", r"%T %s\n").stdout
    assert last.splitlines()[-3:] == [
        b"%d %d " % each for each in zip(times, range(3), strict=True)
    ]
    nsqd.start()
    assert (depth(nsqd, "a"), depth(nsqd, "b"), nsqd.topic("t")["depth"]) == (1000, 1006, 0)
    assert drain(nsqtools_cli, nsqd) == sorted([*ALL, *range(3), *range(3)])
    nsqd.stop()
    assert queue(nsqtools_cli, nsqd, "push", *options, stdin=printed).code == 0
    nsqd.start()
    assert drain(nsqtools_cli, nsqd) == [0, 1, 2]
    assert not [*nsqd.data_path.glob("*.bad")]


def test_cat_decodes_and_counts_what_it_prints(nsqtools_cli: Cli, make_nsqd: MakeNsqd) -> None:
    nsqd = start(make_nsqd)
    chosen = ("--decode", program("for l in iter(input, ''): print('[1]', flush=True)"))
    done = queue(
        nsqtools_cli, nsqd, "cat", "--topic", "t", "--channel", "b", "--count", "3", *chosen
    )
    assert (done.code, done.stdout) == (0, b"[1]\n" * 3)
    assert cat(nsqtools_cli, nsqd, "--where", ". % 400 == 399", "--count", "1") == [399]
    assert cat(nsqtools_cli, nsqd, "--where", ". % 400 == 399") == [399, 799]
