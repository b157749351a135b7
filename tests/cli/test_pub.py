"""How ``pub`` ends while nsqd does not answer; in virtual time."""

import asyncio
import os
import signal

import pytest

from nsqtools.cli.commands.pub.publication import PubRun
from nsqtools.config.connection import ProducerConfig
from nsqtools.config.publishing import PubOptions, TargetOptions
from tests.support.clock import elapse, virtual
from tests.support.gathering import exit_code
from tests.support.scripted import Network


@pytest.mark.parametrize(
    ("answers", "number", "code"),
    [
        (True, 0, 0),
        (True, signal.SIGTERM, 0),
        (True, signal.SIGINT, 130),
        (False, 0, 1),
        (False, signal.SIGTERM, 4),
        (False, signal.SIGHUP, 4),
        (False, signal.SIGINT, 130),
    ],
)
@virtual
async def test_what_was_read_and_cannot_be_published_decides_the_exit_code(
    answers: bool, number: int, code: int
) -> None:
    nsqd = Network().nsqd()
    nsqd.answers = answers
    target = TargetOptions(topic="t", nsqd_tcp_address=(str(nsqd.address),))
    job = PubRun(target, PubOptions(rate=1.0), ProducerConfig(publish_timeout=30.0))
    run = asyncio.create_task(exit_code(job.run([b"1", b"2", b"3"])))
    await elapse(1.5)
    if number:
        os.kill(os.getpid(), number)
    assert await run == code
