"""The public classes: ``nsqtools`` loads this module on the first access to one of them."""

# size: the list of the public classes, loaded on demand

from nsqtools.config.connection import ConsumerConfig as ConsumerConfig
from nsqtools.config.connection import ProducerConfig as ProducerConfig
from nsqtools.config.consuming import StopOptions as StopOptions
from nsqtools.engine.connector import Subscription as Subscription
from nsqtools.engine.consumer import Consumer as Consumer
from nsqtools.engine.handler import Batch as Batch
from nsqtools.engine.handler import Handler as Handler
from nsqtools.engine.producer import Producer as Producer
from nsqtools.engine.runner import Runner as Runner
from nsqtools.engine.runner import RunOutcome as RunOutcome
from nsqtools.engine.totals import ConsumerStats as ConsumerStats
from nsqtools.errors import AuthError as AuthError
from nsqtools.errors import ConfigError as ConfigError
from nsqtools.errors import ConnectionLostError as ConnectionLostError
from nsqtools.errors import LockedError as LockedError
from nsqtools.errors import NSQError as NSQError
from nsqtools.errors import OutputError as OutputError
from nsqtools.errors import PublishError as PublishError
from nsqtools.errors import RefusedError as RefusedError
from nsqtools.errors import ServerError as ServerError
from nsqtools.errors import UnreachableError as UnreachableError
from nsqtools.names import Address as Address
from nsqtools.proto.messages import Message as Message
