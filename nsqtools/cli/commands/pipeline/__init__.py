"""``nsqtools pipeline``: topics, files and topics again, through Spark."""

from __future__ import annotations

import click

from nsqtools.cli.commands.pipeline.archive import archive
from nsqtools.cli.commands.pipeline.compact import compact
from nsqtools.cli.commands.pipeline.replay import replay
from nsqtools.cli.commands.pipeline.sql import sql
from nsqtools.cli.options import CommandGroup


@click.group("pipeline", cls=CommandGroup)
def pipeline() -> None:
    """Carry topics into a data lake and back, with Spark.

    Spark runs on this machine or on a cluster. A message is finished once it is on disk in the
    staging of its batch; a batch that was not done is repeated with the same messages, so that a
    run can be killed at any moment and the next one goes on.

    These commands need Java 17 and pip install 'nsqtools[spark]'.
    """


for command in (archive, compact, replay, sql):
    pipeline.add_command(command)
