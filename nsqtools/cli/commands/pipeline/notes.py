"""Sections of manual pages that commands of the pipeline share."""

from __future__ import annotations

STREAM_SIGNALS = """\
SIGINT, SIGTERM, SIGHUP
  Finish the batch under way and end, with exit status 0.
A second signal
  Leave at once. The next run repeats the batch that was under way, with the same messages. The exit
  status is 130 if the first signal was SIGINT, else 1.

A signal that was ignored when the command started, as by nohup, stays ignored."""

SYSTEMD = """\
The command tells systemd when it is ready, what it does, and that it is alive. Spark runs in other
processes, which must not get the signal: hence KillMode.

\b
[Unit]
Description=Archive of NSQ topics
After=network-online.target
Wants=network-online.target

\b
[Service]
Type=notify
ExecStart=/usr/bin/nsqtools pipeline archive --continuous --config /etc/nsqtools/lake.toml
KillMode=mixed
TimeoutStartSec=120
TimeoutStopSec=300
Restart=on-failure

\b
[Install]
WantedBy=multi-user.target"""
