"""The registry of decoders: what ``--decode`` may name, and how each is made.

A decoder is written ``KIND`` or ``KIND:ARGUMENT``, as in ``avro:order.avsc``. Libraries are
imported only for the decoder that needs them.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from nsqtools.errors import ConfigError
from nsqtools.records.bodies.bodydecoder import BodyDecoder, ValueDecoder

PACKAGES = {"msgpack": "msgpack", "avro": "fastavro", "protobuf": "google.protobuf", "cmd": ""}
"""The kinds of decoders, each with the module that it needs."""

_MAX_FILE = 64 << 20


class Decoding(NamedTuple):
    """A decoder that can be made anywhere, as in another process.

    ``spec`` is a value that the option ``--decode`` allows; ``data`` is the content of the file
    that it names.
    """

    spec: str
    data: bytes = b""

    @classmethod
    def read(cls, spec: str) -> Decoding:
        """Return a decoding with the content of its file; raises ConfigError."""
        kind, _, argument = spec.partition(":")
        if kind not in ("avro", "protobuf"):
            return cls(spec)
        path = argument.rpartition("#")[0] if kind == "protobuf" else argument
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_FILE + 1)
        except OSError as error:
            raise ConfigError(f"--decode {spec}: {path}: {error.strerror}") from error
        if len(data) > _MAX_FILE:
            raise ConfigError(f"--decode {spec}: {path}: larger than {_MAX_FILE >> 20} MiB")
        return cls(spec, data)

    @property
    def package(self) -> str:
        """The module that the decoder needs; empty if it needs none."""
        return PACKAGES[self.spec.partition(":")[0]]

    def make(self) -> BodyDecoder:
        """Make the decoder; raises ConfigError."""
        kind, _, argument = self.spec.partition(":")
        try:
            match kind:
                case "msgpack":
                    return MsgpackDecoder(self.spec)
                case "avro":
                    from nsqtools.records.bodies.avrodecoder import AvroDecoder

                    return AvroDecoder(self.spec, self.data)
                case "protobuf":
                    from nsqtools.records.bodies.protobufdecoder import ProtobufDecoder

                    return ProtobufDecoder(self.spec, self.data, argument.rpartition("#")[2])
            from nsqtools.records.bodies.programdecoder import ProgramDecoder

            return ProgramDecoder(self.spec, argument)
        except ImportError as error:
            install = f"{sys.executable} -m pip install 'nsqtools[decode]'"
            text = f"--decode {kind} needs the package {self.package}: run {install}"
            raise ConfigError(text) from error


def make_decoder(spec: str) -> BodyDecoder | None:
    """Return the decoder of ``--decode``, or None without one; raises ConfigError."""
    return Decoding.read(spec).make() if spec else None


class MsgpackDecoder(ValueDecoder):
    """Decodes MessagePack; an extension becomes an object of its type and its data."""

    def __init__(self, spec: str) -> None:
        super().__init__(spec)
        from msgpack import unpackb

        self._unpack = unpackb

    def value(self, body: bytes) -> Any:
        """Return the only value in a body; the size of the body bounds all lengths in it."""
        return self._unpack(body, strict_map_key=False, ext_hook=_extension)


def _extension(code: int, data: bytes) -> dict[str, Any]:
    return {"type": code, "data": data}
