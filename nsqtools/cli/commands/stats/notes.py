"""What the manual page of ``stats`` says of monitoring."""

CHECK_NOTES = {
    "CHECKS": """\
With --check the result is one of four, and so is the exit status: OK, WARNING, CRITICAL or UNKNOWN.
A threshold is for each topic and each channel by itself, over all nsqds together, as the columns of
a report are; the worst of them decides, CRITICAL before WARNING before UNKNOWN. It is exceeded by
more than its number, so --depth-crit 0 is CRITICAL from one message on. With no threshold at all a
check finds out who answers, and whether what was named is there.

depth
  Messages that wait in a channel, or in a topic that has no channel or is paused, as nsqadmin shows
  it: without those in flight and deferred.
in flight, requeued, timed out, clients
  Of channels alone. Rates are measured over --interval, so a check that asks for one takes as long.
  What was made anew in this time, or is on an nsqd that was restarted, has none: UNKNOWN.
age
  An estimate, as nsqd does not tell since when messages wait: depth divided by the messages that
  leave per second over --interval. That is how long a message waits that comes now, and at a
  steady pace the age of the oldest. Where messages wait and none is taken it is infinite. Let
  --interval be longer than consumers need for a message.
an nsqd or nsqlookupd that does not answer
  WARNING, and the others decide the rest. A killed nsqd is no longer listed by nsqlookupd: to
  notice that, name nsqds with --nsqd-http-address, or say with --nsqds-min how many there are. That
  none of the nsqds answers is CRITICAL. That nobody at all answers, nsqlookupd included, is
  UNKNOWN.
an nsqd that says that it is not well
  CRITICAL: it cannot write to its disk.
a topic or channel that was named and that no nsqd has
  CRITICAL.

The first line holds state, reason and performance data, as the Monitoring Plugins Development
Guidelines want them; where there is more than one finding a line for each follows. Performance data
are those of the named topic and its channels, or of the named channel, which alone is checked then;
without --topic they are sums over all, and the highest value of what has a threshold.""",
    "METRICS": """\
With --serve each scrape of /metrics asks all nsqds and nsqlookupds; one that comes while they are
asked gets the same answer, so they are never asked twice at a time. --topic and --channel narrow it
down.

nsq_up, nsq_nsqlookupd_up
  1 for each nsqd, and each nsqlookupd, that answers, else 0. An nsqd that nsqlookupd does not list
  any more is asked for five minutes, and counts as down if it does not answer.
nsq_nsqd_info, nsq_nsqd_healthy, nsq_nsqd_start_time_seconds
  Of each nsqd.
nsq_topic_depth, nsq_topic_backend_depth, nsq_topic_paused
  Of a topic on an nsqd: what is in none of its channels yet. nsq_topic_messages_total and
  nsq_topic_message_bytes_total count what was published.
nsq_channel_depth, nsq_channel_backend_depth, nsq_channel_in_flight, nsq_channel_deferred
  Of a channel on an nsqd, with nsq_channel_clients and nsq_channel_paused.
nsq_channel_messages_total, nsq_channel_requeued_total, nsq_channel_timed_out_total
  What nsqd counts since it was started.
nsq_topic_e2e_latency_seconds, nsq_channel_e2e_latency_seconds
  Quantiles, of an nsqd that is told to keep them, with -e2e-processing-latency-percentile.

The labels are nsqd and nsqlookupd, where it is asked, topic and channel. As a service it tells
systemd when it listens (Type=notify), answers the watchdog, and ends with exit status 0 after
SIGTERM.""",
    "EXIT STATUS": """\
With --check it is that of a monitoring plugin instead, whatever happens: 0 for OK, 1 for WARNING, 2
for CRITICAL, and 3 for UNKNOWN. That is what comes of a wrong command line or configuration file
too, and where nobody answers; the result says why. A signal, or a reader of standard output that
goes away, ends it as any other command.""",
}

CHECK_EXAMPLES = (
    (
        "Tell a monitoring system of more than 10000 messages that wait in a channel",
        "nsqtools stats --check --topic events --channel archive --depth-warn 1000 "
        "--depth-crit 10000",
    ),
    ("Serve metrics for Prometheus", "nsqtools stats --serve 127.0.0.1:9117"),
)
