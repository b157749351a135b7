"""pynsq publishes and consumes, until it is killed; it has no way to stop.

``python -m tests.support.pynsq_copy HOST:PORT TOPIC COUNT OPTIONS``, with pynsq's options as JSON:
publishes COUNT bodies, ``0`` and so on, a third each by PUB, MPUB and DPUB; consumes them from
channel ``c``, refusing each tenth once; and prints, as one JSON list, how often it got each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import nsq  # type: ignore[import-not-found, import-untyped, unused-ignore]
from nsq import deflate_socket, snappy_socket


def repair() -> None:
    """pynsq hangs up when what it reads decompresses to nothing.

    It means to say "nothing yet", but an OSError of one argument has no errno.
    """
    wanted = SimpleNamespace(error=lambda number: BlockingIOError(number, "nothing yet"))
    deflate_socket.socket = snappy_socket.socket = wanted


async def publish(writer: Any, topic: str, count: int) -> None:
    loop = asyncio.get_running_loop()
    while not writer.conns:  # noqa: ASYNC110 - pynsq has no event for it
        await asyncio.sleep(0.01)
    bodies = [b"%d" % number for number in range(count)]
    third = count // 3
    for send, argument in (
        *((writer.pub, (body,)) for body in bodies[:third]),
        (writer.mpub, (bodies[third : 2 * third],)),
        *((writer.dpub, (0, body)) for body in bodies[2 * third :]),
    ):
        answer: asyncio.Future[bytes] = loop.create_future()
        send(topic, *argument, callback=lambda _, data, answer=answer: answer.set_result(data))
        if (said := await answer) != b"OK":
            raise RuntimeError(repr(said))


async def main(address: str, topic: str, count: int, options: dict[str, Any]) -> None:
    got: Counter[int] = Counter()

    def handle(message: Any) -> bool:
        number = int(message.body)
        got[number] += 1
        if sum(got.values()) == count + count // 10:
            print(json.dumps([got[n] for n in range(count)]), flush=True)
        if number % 10 == 0 and got[number] == 1:
            message.requeue(backoff=False, time_ms=0)
        return True

    settings: dict[str, Any] = {"nsqd_tcp_addresses": [address], **options}
    await publish(nsq.Writer(**settings), topic, count)
    nsq.Reader(
        topic=topic,
        channel="c",
        message_handler=handle,
        max_in_flight=50,
        **settings,
    )
    await asyncio.Event().wait()


if __name__ == "__main__":
    repair()
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])))
