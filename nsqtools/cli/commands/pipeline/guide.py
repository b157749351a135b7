"""The manual page nsqtools-pipeline(7): how to run the pipeline, on one machine or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.cli.docs.manpages import assemble, named
from nsqtools.cli.docs.roff import paragraphs, xr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.cli.tree import Node

NAME = "nsqtools-pipeline"

_DESCRIPTION = """\
The commands of nsqtools pipeline run in Spark, and need it: Java 17 or later and

\b
pip install 'nsqtools[spark]'

In Python the source and the sink are formats of Spark:

\b
from nsqtools.spark import register
register(spark)
events = (spark.readStream.format("nsq")
    .option("nsqd.tcp.addresses", "127.0.0.1:4150")
    .option("subscribe", "events")
    .option("channel", "lake")
    .option("stagingLocation", "/lake/_nsqtools/staging")
    .load())

On one machine (a local master) register has Spark start its workers with the Python that the script
runs in, unless PYSPARK_PYTHON names another one. On a cluster that variable, set before the session
is made, or spark-submit --conf spark.pyspark.python=PATH, names the Python of the executors, which
has nsqtools, pyarrow and the same version."""

_HOW = """\
nsqd pushes messages and forgets what is finished: it has no positions that a query could go back
to. So what a batch receives is staged. The driver looks at how many messages wait and writes into
Spark's log of offsets how many of them each nsqd is to give. Executors connect to the nsqds
themselves. They write messages to --staging in segments of some hundreds or thousands, sync each,
and only then finish its messages. Spark gets the rows when all of a partition is staged. A batch
that is repeated, because a task failed or the run was killed, has the rows that are staged
already, and receives what is missing. A task that was replaced and comes to life again finds its
directory renamed: it can finish nothing any more.

A batch that is used by several actions, in a foreachBatch function of your own, is read from the
staging by each of them, with the same rows: batch.persist() before them spares that.

So a message that nsqd counts as finished is on disk, under the path of a batch that the checkpoint
names, until Spark has committed that batch."""

_PROMISE = """\
pipeline archive writes each batch to directories that are its own and replaces them whole when it
is repeated. Whoever reads them sees each message once, with Spark or without. There are these
limits:

What comes again
  since a process was killed, or a connection broke, between the sync and the finish, is known from
  the staging, and is finished without being written twice. There twice, with one message_id and
  timestamp_ns, is what nsqd hands out as new after a crash of its own, and what had timed out
  before it was staged and so reached two tasks. So is what comes again from an nsqd that has
  another address by then: name nsqd as before. pipeline compact keeps one of each.
Two checkpoints
  on one channel share its messages. Each has its own once; but what one has staged when it is
  killed may come again to either.
The memory of nsqd
  is lost with it: what -mem-queue-size keeps there, and what is in flight.
Output, checkpoint and staging
  belong together. Without the checkpoint, messages of its last batch may be in the staging alone.
  A batch under way needs the staging that it was begun with; another one is refused until then.
  What a query committed without reading it all, since it went on after an error, stays in
  unread-* there, with a warning that names it: nobody removes that.
The console
  shows each row at least once. Messages that a query has taken and not shown are kept, and the next
  query of the same topics, channel and servers begins with them: see nsqtools-pipeline-sql(1).
Topics
  that pipeline replay or a query publishes to get each message at least once: what is repeated
  after a crash is published again.

Messages of a killed run that were in flight come back after the message timeout of nsqd. A run
that begins sooner does not see them."""

_STAGING = """\
The directory must be one that all executors and the driver see under the same path, and that
renames directories atomically: a local one with a local master, else NFS (mounted with actimeo=0)
or HDFS. Stores of objects, such as S3, do not, and are refused: archive with nsqtools to-file there
instead, copy its files, and let nsqtools pipeline compact make a lake of them. It does the same
job in two steps.

It holds what is under way, and the last batch until the next run begins: at most twice
--max-per-trigger messages. Put it on a disk that survives the machine if the messages have to."""

_SIZING = """\
A batch takes about a quarter of a second however small it is, and writes a file for each hour and
partition. For few and large files choose --trigger 1m or more, or run from cron, and have pipeline
compact --older-than 1h merge them once an hour. --max-per-trigger bounds a batch, and so the time
until its messages can be read; 500000 messages of 200 bytes take a few seconds.

Each of the --connections is a task, which receives and then writes: two keep a machine of two cores
busy. More help where there are more cores, and bodies are big or are parsed at length; each writes
a file of its own.

The driver and its Java take about 1 GB, Python workers some 150 MB each. --conf
spark.driver.memory=512m is enough for an archive."""

_CRON = """\
Java loads ten thousand classes when Spark starts, which takes most of the seconds of a run that has
little to do. It can load them from an archive (AppCDS). Record it once, with a run that has some
messages to do:

\b
nsqtools pipeline archive --topic events --channel lake --output lake \\
  --conf 'spark.driver.extraJavaOptions=-Xlog:disable
  -XX:ArchiveClassesAtExit=/var/cache/nsqtools.jsa'

Then have it used, in the configuration file:

\b
[pipeline]
conf = "spark.driver.extraJavaOptions=-Xlog:disable -XX:SharedArchiveFile=/var/cache/nsqtools.jsa"

Record it anew after an update of Java or Spark; until then it is not used. A run that finds nothing
to do ends without starting Java at all."""

_STANDALONE = """\
The package from PyPI has all that a cluster needs. On the machine of the master:

\b
export SPARK_HOME=$(python3 -c 'import pyspark; print(pyspark.__path__[0])')
$SPARK_HOME/bin/spark-class org.apache.spark.deploy.master.Master --host 10.0.0.1 --port 7077

On each worker:

\b
$SPARK_HOME/bin/spark-class org.apache.spark.deploy.worker.Worker spark://10.0.0.1:7077

And anywhere that the workers can connect to:

\b
nsqtools pipeline archive --topic events --channel lake --lookupd-http-address lookup1:4161 \\
  --output /nfs/lake --continuous --master spark://10.0.0.1:7077 \\
  --conf spark.pyspark.python=/opt/python/bin/python3 --conf spark.executor.memory=1g

The package nsqtools itself is sent to the executors. They need a Python of the same version as that
of the command, 3.11 say, with pyarrow, with python-snappy if --snappy is given, and with
backports.zstd to read archives of to-file that are compressed with zstd. That is looked at before
anything is done."""

_YARN = """\
The driver runs where the command does (client mode). Pack a Python for the executors, with
venv-pack or conda-pack, and have YARN unpack it:

\b
python3 -m venv env && env/bin/pip install pyarrow venv-pack
env/bin/venv-pack -o env.tar.gz
HADOOP_CONF_DIR=/etc/hadoop/conf nsqtools pipeline archive --topic events --channel lake \\
  --lookupd-http-address lookup1:4161 --output hdfs:///lake --staging hdfs:///lake/_staging \\
  --checkpoint hdfs:///lake/_checkpoint --continuous --master yarn \\
  --conf spark.yarn.dist.archives=env.tar.gz#env \\
  --conf spark.pyspark.python=./env/bin/python3 --conf spark.executor.instances=4

For a staging in HDFS pyarrow loads libhdfs, on executors and on the driver: set HADOOP_HOME, and
CLASSPATH to the output of hadoop classpath --glob (spark.executorEnv.CLASSPATH)."""

_KUBERNETES = """\
Run the command in a pod that has a service account which may create pods. Executors use an image
with Spark, Python of the same version and pyarrow, and share a volume with the driver:

\b
nsqtools pipeline archive --topic events --channel lake --lookupd-http-address lookup1:4161 \\
  --output /lake --continuous --master k8s://https://kubernetes.default.svc \\
  --conf spark.kubernetes.container.image=registry.example/spark-nsq:4.3.0 \\
  --conf spark.kubernetes.namespace=lake --conf spark.executor.instances=4 \\
  --conf spark.driver.host=nsq-lake.lake.svc --conf spark.driver.port=7078 \\
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.lake.mount.path=/lake \\
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.lake.options.claimName=lake

The claim must be ReadWriteMany. nsqds must be reachable from the executors at the addresses that
nsqlookupd gives (--broadcast-address of nsqd).

The tests of nsqtools run on one machine and on a standalone cluster. YARN and Kubernetes differ
from the latter only in how Spark starts executors."""

_OPTIONS = """\
nsqd.tcp.addresses
  HOST:PORT of nsqds, with commas between; HOST:PORT/HTTPPORT where the HTTP port is not the next.
nsqlookupd.http.addresses
  HOST:PORT or URLs of nsqlookupds, in place of these.
subscribe
  Topics, with commas between.
channel
  The channel. Required. What another consumer of it takes is not in the stream.
stagingLocation
  The staging, an absolute path or URL. Required.
maxMessagesPerTrigger
  Most messages of a batch; 0, the default, for no limit.
connectionsPerNsqd, maxInFlight
  Partitions for each topic on an nsqd (2), and messages in flight for each of them (5000); where
  nsqd allows a connection fewer (-max-rdy-count), several share them.
checkpointPath
  The checkpoint of the query, where that is a local directory. Spark does not sync what it notes
  there; the source does, and nothing is lost in a power failure.
streamName
  What a new checkpoint calls its stream, in place of a random name. It then begins with what a
  stream of that name has left in the staging. One query at a time may use a name: nothing checks
  that.
waitForServers
  true to begin also while no nsqd, and no nsqlookupd, answers, which is an error otherwise.
idleTimeoutMs, maxReadMs, pollIntervalMs
  After how much silence, and after how long at most, a partition ends without all that was
  planned for it; and how often it is looked for messages.
nsq.NAME
  What --consumer-opt NAME sets, such as nsq.tls_v1. nsq.auth_secret_file and
  nsq.auth_secret_env name a file or a variable of the executors; a secret itself is refused.
topic
  Of the sink: where rows go that have no column topic. It takes the addresses and nsq.NAME too."""


def guide(nodes: Sequence[Node]) -> str:
    """The page, for the commands there are."""
    commands = [node for node in nodes if node.words.startswith("nsqtools pipeline")]
    sections = {
        "NAME": named(NAME, "topics and data lakes, with Spark"),
        "DESCRIPTION": paragraphs(_DESCRIPTION),
        "HOW IT WORKS": paragraphs(_HOW),
        "EXACTLY ONCE": paragraphs(_PROMISE),
        "STAGING": paragraphs(_STAGING),
        "SIZING": paragraphs(_SIZING),
        "QUICK STARTS": paragraphs(_CRON),
        "STANDALONE CLUSTER": paragraphs(_STANDALONE),
        "YARN": paragraphs(_YARN),
        "KUBERNETES": paragraphs(_KUBERNETES),
        "OPTIONS OF THE SOURCE AND THE SINK": paragraphs(_OPTIONS),
        "SEE ALSO": xr([(node.page, 1) for node in commands]),
    }
    return assemble(NAME, 7, sections)
