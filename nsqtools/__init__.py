"""The command line and library for NSQ: ``from nsqtools import Consumer, Producer, Message``."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__date__ = "2026-11-21"  # of its release

if TYPE_CHECKING:
    from nsqtools.config import ConsumerConfig, ProducerConfig
    from nsqtools.engine.consumer import Consumer
    from nsqtools.engine.handler import Batch, Handler
    from nsqtools.engine.membership import Subscription
    from nsqtools.engine.producer import Producer
    from nsqtools.proto.messages import Message

# Served by __getattr__, so that a TAB press does not load asyncio.
_HOMES = {
    "Batch": "nsqtools.engine.handler",
    "Consumer": "nsqtools.engine.consumer",
    "ConsumerConfig": "nsqtools.config",
    "Handler": "nsqtools.engine.handler",
    "Message": "nsqtools.proto.messages",
    "Producer": "nsqtools.engine.producer",
    "ProducerConfig": "nsqtools.config",
    "Subscription": "nsqtools.engine.membership",
}

__all__ = [
    "Batch",
    "Consumer",
    "ConsumerConfig",
    "Handler",
    "Message",
    "Producer",
    "ProducerConfig",
    "Subscription",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
