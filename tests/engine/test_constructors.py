"""Arguments of a wrong type are refused when a thing is made, by an error that names them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import nsqtools
from nsqtools import (
    Address,
    ConfigError,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    Subscription,
)
from tests.support.scripted import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Address("127.0.0.1", 4150)
SUBSCRIPTION = Subscription(topic="t", channel="c", nsqds=(HERE,))


def subscription(**values: Any) -> Subscription:
    return Subscription(**{"topic": "t", "channel": "c", "nsqds": (HERE,), **values})


def consumer(*args: Any) -> Consumer:
    return Consumer(*args)


def producer(*args: Any) -> Producer:
    return Producer(*args)


def make(kind: Callable[..., object], *args: Any, **values: Any) -> Callable[[], object]:
    return lambda: kind(*args, **values)


@pytest.mark.parametrize(
    ("argument", "made"),
    [
        ("host", make(Address, 4150, 4150)),
        ("port", make(Address, "here", "4150")),
        ("topic", make(subscription, topic=b"t")),
        ("channel", make(subscription, channel=None)),
        ("nsqds", make(subscription, nsqds="127.0.0.1:4150")),
        ("nsqds", make(subscription, nsqds=HERE)),
        ("lookupds", make(subscription, nsqds=(), lookupds="127.0.0.1:4161")),
        ("subscription", make(consumer, "t", Recorder(), ConsumerConfig())),
        ("handler", make(consumer, SUBSCRIPTION, print, ConsumerConfig())),
        ("config", make(consumer, SUBSCRIPTION, Recorder(), ProducerConfig())),
        ("nsqds", make(producer, "127.0.0.1:4150", ProducerConfig())),
        ("nsqds", make(producer, ["127.0.0.1:4150"], ProducerConfig())),
        ("nsqd", make(producer, [], ProducerConfig())),
        ("config", make(producer, [HERE], None)),
        ("--max-in-flight", make(ConsumerConfig, max_in_flight=True)),
        ("--dial-timeout", make(ConsumerConfig, dial_timeout=None)),
        ("--snappy", make(ConsumerConfig, snappy=1)),
        ("--auth-secret", make(ConsumerConfig, auth_secret=b"secret")),
        ("--publish-timeout", make(ProducerConfig, publish_timeout="1m")),
    ],
)
def test_a_wrong_type_is_refused_at_once_by_name(argument: str, made: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        made()
    assert argument in str(caught.value)
    assert "secret" not in str(caught.value).removeprefix("--auth-secret")


def test_a_handler_that_lacks_a_method_is_told_which() -> None:
    class Half:
        async def handle(self, batch: object) -> None: ...

    with pytest.raises(ConfigError, match="handler: Half has no method 'close'"):
        consumer(SUBSCRIPTION, Half(), ConsumerConfig())


def test_an_address_is_still_a_pair() -> None:
    host, port = HERE
    assert HERE == (host, port) == ("127.0.0.1", 4150)
    assert HERE._replace(port=1) == Address("127.0.0.1", 1)
    assert repr(HERE) == "Address(host='127.0.0.1', port=4150)"


def test_the_package_has_what_it_lists_and_listing_it_loads_little() -> None:
    assert {"Address", "Consumer", "NSQError", "PublishError"} <= set(dir(nsqtools))
    assert all(getattr(nsqtools, name) for name in dir(nsqtools))
    code = "import nsqtools, sys; dir(nsqtools); print({'asyncio', 'httpx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"
