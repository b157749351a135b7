"""Reports of ``stats`` made of what a test names."""

from nsqtools.cli.commands.stats.report import Report
from nsqtools.engine.cluster import Node, Snapshot
from nsqtools.errors import HTTPError
from nsqtools.names import Address
from nsqtools.net.http.replies import NsqdStats
from nsqtools.policy.rates import Counters, Row

NSQD = "127.0.0.1:4151"
SILENT = "127.0.0.1:4251"
LOOKUPD = "127.0.0.1:4161"
REFUSED = HTTPError("connection refused", Address("127.0.0.1", 4251))


def row(
    topic: str = "t",
    channel: str = "c",
    *,
    depth: int = 0,
    ingress: float | None = 0.0,
    egress: float | None = 0.0,
    missing: int = 0,
    paused: bool = False,
) -> Row:
    """Counters that differ from each other, so that columns cannot be mistaken."""
    totals = Counters(70, 50, 60, depth, depth // 2, 3, 4, 8, paused)
    return Row(topic, channel, totals, 1, missing, ingress, egress, 0.5, 0.25, 1)


def report(*rows: Row, silent: bool = False, lookupd: bool = False) -> Report:
    """Of one nsqd that answers; also, if ``silent``, of one that does not."""
    nodes = {NSQD: Node(NSQD, f"http://{NSQD}", Address("127.0.0.1", 4150), "host", "1.3.0")}
    failures = {}
    if silent:
        nodes[SILENT] = Node(SILENT, f"http://{SILENT}")
        failures[SILENT] = REFUSED
    stats = {NSQD: NsqdStats("1.3.0", "OK", 5, ())}
    lookupds = {LOOKUPD: HTTPError("connection refused", Address("127.0.0.1", 4161))}
    snapshot = Snapshot(1.0, stats, failures, nodes, lookupds if lookupd else {})
    return Report(1_700_000_000.0, 2.0, rows, None, {}, snapshot)
