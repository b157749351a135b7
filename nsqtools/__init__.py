"""The command line and library for NSQ: ``from nsqtools import Consumer, Producer, Message``."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__date__ = "2026-11-21"  # of its release

if TYPE_CHECKING:
    from nsqtools.config import ConsumerConfig as ConsumerConfig
    from nsqtools.config import ProducerConfig as ProducerConfig
    from nsqtools.config import StopOptions as StopOptions
    from nsqtools.engine.consumer import Consumer as Consumer
    from nsqtools.engine.handler import Batch as Batch
    from nsqtools.engine.handler import Handler as Handler
    from nsqtools.engine.membership import Subscription as Subscription
    from nsqtools.engine.producer import Producer as Producer
    from nsqtools.engine.runner import Runner as Runner
    from nsqtools.errors import ConfigError as ConfigError
    from nsqtools.errors import NSQError as NSQError
    from nsqtools.errors import PublishError as PublishError
    from nsqtools.errors import UnreachableError as UnreachableError
    from nsqtools.names import Address as Address
    from nsqtools.proto.messages import Message as Message

# Served by __getattr__, so that a TAB press does not load asyncio.
_HOMES = {
    "Address": "nsqtools.names",
    "Batch": "nsqtools.engine.handler",
    "ConfigError": "nsqtools.errors",
    "Consumer": "nsqtools.engine.consumer",
    "ConsumerConfig": "nsqtools.config",
    "Handler": "nsqtools.engine.handler",
    "Message": "nsqtools.proto.messages",
    "NSQError": "nsqtools.errors",
    "Producer": "nsqtools.engine.producer",
    "ProducerConfig": "nsqtools.config",
    "PublishError": "nsqtools.errors",
    "Runner": "nsqtools.engine.runner",
    "StopOptions": "nsqtools.config",
    "Subscription": "nsqtools.engine.membership",
    "UnreachableError": "nsqtools.errors",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
