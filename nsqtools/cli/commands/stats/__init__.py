"""``nsqtools stats``: what topics, channels and consumers are doing."""

from __future__ import annotations

import click

from nsqtools.cli.commands.stats.check import PluginCommand
from nsqtools.cli.commands.stats.notes import CHECK_EXAMPLES, CHECK_NOTES
from nsqtools.cli.options import options
from nsqtools.config import CheckOptions, ClusterOptions, StatsOptions


@click.command(
    "stats",
    cls=PluginCommand,
    examples=(
        (
            "A channel every two seconds, as nsq_stat",
            "nsqtools stats --topic events --channel archive",
        ),
        ("Everything once", "nsqtools stats --once"),
        ("A live view of the cluster", "nsqtools stats --watch"),
        (
            "The deepest channels now",
            "nsqtools stats --once --csv | sort -t, -k6 -nr | head",
        ),
        (
            "Consumers that have not finished anything",
            "nsqtools stats --once --clients --json | "
            "jq -r '.topics[].channels[].consumers[] | select(.finished == 0).hostname'",
        ),
        *CHECK_EXAMPLES,
    ),
    notes={
        "OUTPUT": """\
On a terminal each report is a table. In a pipe, and for one channel of one topic, it has the
columns of nsq_stat, with a header each 25 lines: rates of messages in and out, per second; depth,
how much of it is in memory and on disk, in flight and deferred; counts of requeued and timed out
messages since nsqd was started or the channel was made, of all messages, and of clients. Topic and
channel stand behind them unless both are given, with "-" for the topic itself: what no channel has
taken yet. A blank line ends such a report. Then there may be notes:

paused
  The channel or topic is paused on at least one nsqd.
missing=N
  N nsqds had it and do not answer now: the numbers are those of the others.
p99=1.5s
  In this time 99 % of the messages were finished, on the slowest nsqd; for nsqds that run with
  -e2e-processing-latency-percentile.

Rates are over the time that passed, not over --interval. What is in flight or deferred has not
left: it is no part of the rate out. The rates of an nsqd that was restarted or silent, and of what
was deleted and made anew, count again from the next report; "-" is a rate that is not known. The
first report comes after --interval; with --once it comes at once, and has no rates.

With --json each report is a line: topics with their channels, each with its part on every nsqd,
and all nsqds and nsqlookupds with what is wrong with them.""",
        "KEYS": """\
With --watch:

q, Ctrl-C
  End.
s, S
  Sort by the next column, or by the one before.
r
  Reverse the order.
/
  Filter: rows whose topic/channel have all words that are typed. Enter keeps it, Esc drops it.
space
  Hold the view still; measuring goes on.
arrows, j, k, PgUp, PgDn, Home, End, g, G
  Scroll.""",
        "SIGNALS": """\
SIGINT, SIGTERM, SIGHUP
  End. The exit status is 130 after SIGINT, else 0.""",
        **CHECK_NOTES,
    },
)
@options(where=ClusterOptions, asked=StatsOptions, check=CheckOptions)
def stats(*, where: ClusterOptions, asked: StatsOptions, check: CheckOptions) -> int:
    """Report depths, rates and consumers of topics and channels.

    All nsqds are asked at once, those that nsqlookupds list and those that are given, and their
    numbers are added up. One that does not answer is a warning and marks the rows that it had a
    part in; if none answers at the start the exit status is 3.
    """
    if check.serve:
        from nsqtools.cli.commands.stats.serve import serve

        return serve(where, asked, check)
    if check.check:
        from nsqtools.cli.commands.stats.check import run as run_check

        return run_check(where, asked, check)
    if asked.watch:
        from nsqtools.cli.commands.stats.watch import run
    else:
        from nsqtools.cli.commands.stats.stream import run
    return run(where, asked)
