"""Every option, declared once.

Each class of ``Options`` covers one concern, and each option is a field of it. The field's name
gives the flag (``--max-in-flight``), the TOML key, the environment variable and, for classes that
mirror go-nsq's ``Config`` (``config.go``), the name for ``--consumer-opt`` and ``--producer-opt``.
Durations are in seconds, sizes in bytes.
"""

# size: one module per concern; users import from the package

from nsqtools.config.admin import ApiOptions as ApiOptions
from nsqtools.config.admin import ChangeOptions as ChangeOptions
from nsqtools.config.admin import ClusterOptions as ClusterOptions
from nsqtools.config.admin import DoctorOptions as DoctorOptions
from nsqtools.config.admin import DrainOptions as DrainOptions
from nsqtools.config.admin import LookupOptions as LookupOptions
from nsqtools.config.admin import LossOptions as LossOptions
from nsqtools.config.admin import TombstoneOptions as TombstoneOptions
from nsqtools.config.admin import TrimOptions as TrimOptions
from nsqtools.config.bench import BenchOptions as BenchOptions
from nsqtools.config.bench import BenchServerOptions as BenchServerOptions
from nsqtools.config.bench import EndToEndOptions as EndToEndOptions
from nsqtools.config.bench import PubBenchOptions as PubBenchOptions
from nsqtools.config.bench import SubBenchOptions as SubBenchOptions
from nsqtools.config.connection import BatchConsumerConfig as BatchConsumerConfig
from nsqtools.config.connection import ClientConfig as ClientConfig
from nsqtools.config.connection import ConsumerConfig as ConsumerConfig
from nsqtools.config.connection import ProducerConfig as ProducerConfig
from nsqtools.config.connection import checked_secret as checked_secret
from nsqtools.config.connection import read_secret as read_secret
from nsqtools.config.consuming import DeadLetterOptions as DeadLetterOptions
from nsqtools.config.consuming import DeliveryStopOptions as DeliveryStopOptions
from nsqtools.config.consuming import MetricsOptions as MetricsOptions
from nsqtools.config.consuming import ServerOptions as ServerOptions
from nsqtools.config.consuming import SourceOptions as SourceOptions
from nsqtools.config.consuming import StopOptions as StopOptions
from nsqtools.config.consuming import TailOptions as TailOptions
from nsqtools.config.consuming import TailSourceOptions as TailSourceOptions
from nsqtools.config.files import ArchiveOptions as ArchiveOptions
from nsqtools.config.files import ArchiveSourceOptions as ArchiveSourceOptions
from nsqtools.config.files import VerifyOptions as VerifyOptions
from nsqtools.config.http import HttpConsumerConfig as HttpConsumerConfig
from nsqtools.config.http import HttpOptions as HttpOptions
from nsqtools.config.http import HttpSourceOptions as HttpSourceOptions
from nsqtools.config.lake import BodyOptions as BodyOptions
from nsqtools.config.lake import CompactOptions as CompactOptions
from nsqtools.config.lake import InputOptions as InputOptions
from nsqtools.config.lake import LakeOptions as LakeOptions
from nsqtools.config.lake import QueryInputOptions as QueryInputOptions
from nsqtools.config.lake import QueryOptions as QueryOptions
from nsqtools.config.lake import QuerySourceOptions as QuerySourceOptions
from nsqtools.config.lake import ReplayOptions as ReplayOptions
from nsqtools.config.lake import SparkOptions as SparkOptions
from nsqtools.config.lake import StreamConfig as StreamConfig
from nsqtools.config.lake import StreamOptions as StreamOptions
from nsqtools.config.lake import StreamSourceOptions as StreamSourceOptions
from nsqtools.config.program import FileOptions as FileOptions
from nsqtools.config.program import LogOptions as LogOptions
from nsqtools.config.program import ShowOptions as ShowOptions
from nsqtools.config.publishing import PubOptions as PubOptions
from nsqtools.config.publishing import TargetOptions as TargetOptions
from nsqtools.config.queue import ChannelQueueOptions as ChannelQueueOptions
from nsqtools.config.queue import QueueCatOptions as QueueCatOptions
from nsqtools.config.queue import QueueListOptions as QueueListOptions
from nsqtools.config.queue import QueueOptions as QueueOptions
from nsqtools.config.queue import QueuePushOptions as QueuePushOptions
from nsqtools.config.records import ArchiveRecordOptions as ArchiveRecordOptions
from nsqtools.config.records import RecordOptions as RecordOptions
from nsqtools.config.relay import DestinationConfig as DestinationConfig
from nsqtools.config.relay import RelayOptions as RelayOptions
from nsqtools.config.relay import RelaySourceOptions as RelaySourceOptions
from nsqtools.config.sandbox import NsqdOptions as NsqdOptions
from nsqtools.config.sandbox import SandboxOptions as SandboxOptions
from nsqtools.config.stats import CheckOptions as CheckOptions
from nsqtools.config.stats import StatsOptions as StatsOptions
