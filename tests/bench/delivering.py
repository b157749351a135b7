"""``to-http`` and ``relay`` beside the Go tools, until nsqd has heard of every message."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from tests.bench.measuring import Pair, Side, drain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.binaries import Nsq
    from tests.support.servers import Nsqd

_AT_ONCE = "100"
_DESTINATION = "benchrelay#ephemeral"


def delivering(nsqd: Nsqd, nsq: Nsq, n: int, endpoint: str) -> list[Pair]:
    """What is compared, in order; an HTTP request a message is so much dearer that n is a tenth."""
    fewer = n // 10

    def side(name: str, argv: Sequence[str], messages: int) -> Side:
        body = b'{"x": "%b"}' % (b"x" * 191)
        return Side(name, partial(drain, nsqd, messages, argv, bodies=[body], settled=True))

    ours = [sys.executable, "-m", "nsqtools"]
    http = ["--post", endpoint, "-n", _AT_ONCE]
    relayed = ["--destination-topic", _DESTINATION, "--destination-nsqd-tcp-address", str(nsqd.tcp)]
    go_http = side("nsq_to_http -n 100", [nsq.path("nsq_to_http"), *http], fewer)
    return [
        Pair(side("to-http -n 100", [*ours, "to-http", *http], fewer), go_http),
        Pair(side("to-http --batch 100", [*ours, "to-http", *http, "--batch", "100"], n), go_http),
        Pair(
            side("relay", [*ours, "relay", *relayed], n),
            side("nsq_to_nsq", [nsq.path("nsq_to_nsq"), *relayed], n // 4),
        ),
    ]
