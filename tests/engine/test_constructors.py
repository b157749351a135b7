"""Arguments of a wrong type are refused when a thing is made, by an error that names them."""

# mypy: disable-error-code="arg-type, list-item"
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


def subscription(**values: Any) -> Subscription:
    return Subscription(**{"topic": "t", "channel": "c", "nsqds": (HERE,), **values})


@pytest.mark.parametrize(
    ("argument", "made"),
    [
        ("host", lambda: Address(4150, 4150)),
        ("port", lambda: Address("here", "4150")),
        ("topic", lambda: subscription(topic=b"t")),
        ("channel", lambda: subscription(channel=None)),
        ("nsqds", lambda: subscription(nsqds="127.0.0.1:4150")),
        ("nsqds", lambda: subscription(nsqds=HERE)),
        ("lookupds", lambda: subscription(nsqds=(), lookupds="127.0.0.1:4161")),
        ("subscription", lambda: Consumer("t", Recorder(), ConsumerConfig())),
        ("handler", lambda: Consumer(subscription(), print, ConsumerConfig())),
        ("config", lambda: Consumer(subscription(), Recorder(), ProducerConfig())),
        ("nsqds", lambda: Producer(["127.0.0.1:4150"], ProducerConfig())),
        ("nsqd", lambda: Producer([], ProducerConfig())),
        ("config", lambda: Producer([HERE], None)),
        ("--max-in-flight", lambda: ConsumerConfig(max_in_flight=True)),
        ("--dial-timeout", lambda: ConsumerConfig(dial_timeout=None)),
        ("--snappy", lambda: ConsumerConfig(snappy=1)),
        ("--auth-secret", lambda: ConsumerConfig(auth_secret=b"secret")),
        ("--publish-timeout", lambda: ProducerConfig(publish_timeout="1m")),
    ],
)
def test_a_wrong_type_is_refused_at_once_by_name(argument: str, made: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=argument) as caught:
        made()
    assert "secret" not in str(caught.value).removeprefix("--auth-secret")


def test_the_package_has_what_it_lists_and_listing_it_loads_little() -> None:
    assert {"Address", "Consumer", "NSQError", "PublishError"} <= set(dir(nsqtools))
    assert all(getattr(nsqtools, name) for name in dir(nsqtools))
    code = "import nsqtools, sys; dir(nsqtools); print({'asyncio', 'httpx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"
