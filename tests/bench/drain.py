"""``python -m tests.bench.drain consumer|socket HOST:PORT TOPIC COUNT``: receive and FIN, no more.

``socket`` is the floor in Python: one blocking socket, no options, no failures expected.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import TYPE_CHECKING

from nsqtools import Consumer, ConsumerConfig, Handler, Subscription
from nsqtools.names import Address

if TYPE_CHECKING:
    from nsqtools import Batch

MAX_IN_FLIGHT = 2500


class Counter(Handler):
    """Stops its consumer after ``count`` messages."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.consumer: Consumer

    async def handle(self, batch: Batch) -> None:
        self.left -= len(batch)
        if self.left <= 0:
            self.consumer.stop()


def drain_consumer(address: Address, topic: str, count: int) -> None:
    handler = Counter(count)
    config = ConsumerConfig(max_in_flight=MAX_IN_FLIGHT, max_attempts=0)
    subscription = Subscription(topic=topic, channel="bench", nsqds=(address,))

    async def run() -> None:
        handler.consumer = Consumer(subscription, handler, config)
        await handler.consumer.run()

    asyncio.run(run())


def drain_socket(address: Address, topic: str, count: int) -> None:
    header = struct.Struct(">iiqH16s")
    identify = b'{"feature_negotiation":true,"output_buffer_size":65536}'
    with socket.create_connection(address) as connection:
        connection.sendall(b"  V2IDENTIFY\n" + struct.pack(">I", len(identify)) + identify)
        connection.recv(65536)
        connection.sendall(b"SUB %b bench\nRDY %d\n" % (topic.encode(), MAX_IN_FLIGHT))
        data = b""
        while count > 0:
            data += connection.recv(262144)
            start, ids, bodies = 0, [], []
            while len(data) - start >= 8:
                size, kind = struct.unpack_from(">ii", data, start)
                end = start + 4 + size
                if end > len(data):
                    break
                if kind == 2:
                    *_, id_ = header.unpack_from(data, start)
                    bodies.append(data[start + 34 : end])
                    ids.append(id_)
                elif data[start + 8 : end] == b"_heartbeat_":
                    connection.sendall(b"NOP\n")
                start = end
            data = data[start:]
            count -= len(bodies)
            if ids:
                connection.sendall(b"FIN " + b"\nFIN ".join(ids) + b"\n")


def main() -> None:
    kind, address, topic, count = sys.argv[1:]
    drain = {"consumer": drain_consumer, "socket": drain_socket}[kind]
    drain(Address.parse(address), topic, int(count))


if __name__ == "__main__":
    main()
