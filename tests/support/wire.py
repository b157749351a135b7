"""NSQ's bytes, written and read with struct alone.

Independent of ``nsqtools.proto``, so that a misreading there does not agree with itself here
(tcp_protocol_spec, Data Format).
"""

import json
import struct

MAGIC = b"  V2"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
DEFAULTS = (
    '{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,'
    '"tls_v1":false,"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,'
    '"sample_rate":0,"auth_required":false,"output_buffer_size":16384,"output_buffer_timeout":250}'
)


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", len(data) + 4, kind) + data


def response(text: bytes) -> bytes:
    return frame(RESPONSE, text)


def negotiated(**settings: object) -> bytes:
    """The reply to IDENTIFY of an nsqd v1.3.0 with default options, with some settings changed."""
    return response(json.dumps(json.loads(DEFAULTS) | settings).encode())


def error(text: str) -> bytes:
    return frame(ERROR, text.encode())


def message_id(number: int) -> bytes:
    return b"%016x" % number


def message(number: int, body: bytes = b"body", timestamp: int = 1, attempts: int = 1) -> bytes:
    """A message frame; ``timestamp`` in ns."""
    head = struct.pack(">qH16s", timestamp, attempts, message_id(number))
    return frame(MESSAGE, head + body)


OK = response(b"OK")
HEARTBEAT = response(b"_heartbeat_")
CLOSE_WAIT = response(b"CLOSE_WAIT")


def commands(stream: bytes) -> list[str]:
    """What a client sent, one readable text each; ValueError if the last command is not whole.

    For example ``["  V2", 'IDENTIFY {"client_id": "x"}', "SUB t c", "RDY 5", "PUB t b'body'"]``;
    the keys of IDENTIFY are sorted.
    """
    found, rest = split_commands(stream)
    if rest:
        raise ValueError(f"an incomplete command: {rest[:80]!r}")
    return found


def split_commands(stream: bytes) -> tuple[list[str], bytes]:
    """As ``commands()``, with the beginning of a command that has not wholly arrived."""
    found: list[str] = []
    if stream.startswith(MAGIC):
        found.append(MAGIC.decode())
        stream = stream[len(MAGIC) :]
    while (end := stream.find(b"\n")) >= 0:
        line, rest = stream[:end].decode(), stream[end + 1 :]
        name = line.partition(" ")[0]
        if name in ("IDENTIFY", "AUTH", "PUB", "DPUB", "MPUB"):
            if len(rest) < 4:
                break
            (size,) = struct.unpack_from(">I", rest)
            if len(rest) < 4 + size:
                break
            line = f"{line} {_show_body(name, rest[4 : 4 + size])}"
            rest = rest[4 + size :]
        found.append(line)
        stream = rest
    return found, stream


def _show_body(name: str, body: bytes) -> str:
    match name:
        case "IDENTIFY":
            return json.dumps(json.loads(body), sort_keys=True)
        case "AUTH":
            return body.decode()
        case "MPUB":
            return repr(_split_mpub(body))
    return repr(body)


def _split_mpub(body: bytes) -> list[bytes]:
    (count,) = struct.unpack_from(">I", body)
    found, offset = [], 4
    for _ in range(count):
        (size,) = struct.unpack_from(">I", body, offset)
        found.append(body[offset + 4 : offset + 4 + size])
        offset += 4 + size
    if offset != len(body) or sum(map(len, found)) + 4 * (count + 1) != len(body):
        raise ValueError(f"an MPUB of {count} messages that is not {len(body)} bytes long")
    return found
