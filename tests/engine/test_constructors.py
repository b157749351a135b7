"""Arguments of a wrong type are refused when a thing is made, by an error that names them."""

# mypy: disable-error-code="arg-type, list-item, call-overload"
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import nsqtools
from nsqtools import (
    Address,
    Batch,
    ConfigError,
    Consumer,
    ConsumerConfig,
    Handler,
    Producer,
    ProducerConfig,
    Runner,
    StopOptions,
    Subscription,
)
from tests.support.scripted import Recorder

HERE = Address("127.0.0.1", 4150)


class Blocking(Handler):
    def handle(self, batch: Batch) -> None:  # type: ignore[override]
        pass


def subscription(**values: Any) -> Subscription:
    return Subscription(**{"topic": "t", "channel": "c", "nsqds": (HERE,), **values})


def runner(topics: Any = ("t",), **values: Any) -> Runner:
    usual = {"channel": "c", "handler": Recorder(), "nsqds": [HERE]}
    return Runner(topics, **{**usual, **values})


@pytest.mark.parametrize(
    ("argument", "made"),
    [
        ("host", lambda: Address(4150, 4150)),
        ("port", lambda: Address("here", "4150")),
        ("topic", lambda: subscription(topic=b"t")),
        ("channel", lambda: subscription(channel=None)),
        ("nsqds", lambda: subscription(nsqds=("127.0.0.1:4150",))),
        ("lookupds", lambda: subscription(nsqds=(), lookupds="127.0.0.1:4161")),
        ("subscription", lambda: Consumer("t", Recorder(), ConsumerConfig())),
        ("subscription", lambda: Consumer(None, Recorder())),
        ("handler", lambda: Consumer(subscription(), print, ConsumerConfig())),
        ("handler", lambda: Consumer(subscription(), Recorder)),
        ("handler: Blocking.handle", lambda: Consumer(subscription(), Blocking())),
        ("config", lambda: Consumer(subscription(), Recorder(), ProducerConfig())),
        ("nsqds", lambda: Producer(["127.0.0.1:4150"], ProducerConfig())),
        ("nsqd", lambda: Producer([], ProducerConfig())),
        ("config", lambda: Producer([HERE], "config")),
        ("^max_in_flight: ", lambda: ConsumerConfig(max_in_flight=True)),
        ("^dial_timeout: ", lambda: ConsumerConfig(dial_timeout=None)),
        ("^snappy: ", lambda: ConsumerConfig(snappy=1)),
        ("^auth_secret: ", lambda: ConsumerConfig(auth_secret=b"secret")),
        ("^idle_timeout: ", lambda: StopOptions(idle_timeout=timedelta(seconds=5))),
        ("^nsqd_http_address: ", lambda: StopOptions(nsqd_http_address="127.0.0.1:4151")),
        ("topics", lambda: runner("events")),
        ("topics", lambda: runner([b"events"])),
        ("topics", lambda: runner(None)),
        ("topics", lambda: runner([])),
        ("topic", lambda: runner(re.compile(b"events"), nsqds=(), lookupds=["127.0.0.1:4161"])),
        ("channel", lambda: runner(channel=None)),
        ("handler", lambda: runner(handler=print)),
        ("config", lambda: runner(config={})),
        ("nsqds", lambda: runner(nsqds="127.0.0.1:4150")),
        ("lookupds", lambda: runner(nsqds=(), lookupds="127.0.0.1:4161")),
        ("host is missing", lambda: subscription(nsqds=(), lookupds=["http://"])),
        ("4161x", lambda: runner(re.compile("t"), nsqds=(), lookupds=["127.0.0.1:4161x"])),
        ("stop", lambda: runner(stop=False)),
        ("refresh", lambda: runner(refresh="60")),
        ("timeouts", lambda: runner(timeouts=5.0)),
        ("timeouts", lambda: runner(timeouts=("2", "5"))),
        ("topic", lambda: runner(["no topic"])),
        ("channel", lambda: runner(channel="no channel")),
        ("max-in-flight", lambda: runner(config=ConsumerConfig(max_in_flight=0))),
        ("nsqd", lambda: runner(nsqds=())),
        ("nsqd", lambda: runner(lookupds=["127.0.0.1"])),
        ("nsqlookupd", lambda: runner(re.compile("t"))),
    ],
)
def test_a_wrong_type_is_refused_at_once_by_name(argument: str, made: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=argument) as caught:
        made()
    assert "secret" not in str(caught.value).removeprefix("auth_secret")


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("topic", {"topic": None}),
        ("bodies", {"bodies": b"one"}),
        ("'no spaces'", {"topic": "no spaces"}),
        ("bodies", {"bodies": ["one"]}),
        ("defer", {"defer": "5"}),
        ("defer", {"defer": -1.0}),
        ("defer", {"defer": float("nan")}),
    ],
)
async def test_a_wrong_argument_of_publish_is_refused_by_name(
    argument: str, values: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=argument):
        await Producer([HERE]).publish(**{"topic": "t", "bodies": [b"one"], **values})


def test_the_package_lists_what_it_has_and_importing_it_loads_little() -> None:
    assert {"Address", "Consumer", "NSQError", "PublishError"} <= set(dir(nsqtools))
    assert all(getattr(nsqtools, name) for name in dir(nsqtools))
    assert not hasattr(nsqtools, "Nobody")
    code = """import sys, nsqtools, nsqtools.config
print({"asyncio", "click", "httpx", "nsqtools.public"} & set(sys.modules))
from nsqtools import *
print(Consumer.__name__, {"click", "httpx", "rich"} & set(sys.modules))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\nConsumer set()\n"
