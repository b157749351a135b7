"""Protocol Buffers: messages of one type, by the package protobuf and a file of descriptors."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, RecordError
from nsqtools.records.bodies.bodydecoder import BodyDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.descriptor import FieldDescriptor

_MOST_NAMED = 5
_WELL_KNOWN = "google.protobuf."
"""Types below have a JSON form of their own, as Timestamp has (protobuf.dev, ProtoJSON)."""
_pack_float = struct.Struct("<f").pack


class ProtobufDecoder(BodyDecoder):
    """Decodes messages of the type ``name``; ``data`` is a FileDescriptorSet.

    Fields have the names of the .proto file, and those that are not set are left out. Integers of
    64 bits are numbers; enums are names. A body is not of the type if none of its fields is known.
    Raises ConfigError for unusable descriptors, or an unknown type.
    """

    def __init__(self, spec: str, data: bytes, name: str) -> None:
        super().__init__(spec)
        from google.protobuf import json_format, message_factory
        from google.protobuf.descriptor import FieldDescriptor
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError

        pool = DescriptorPool()
        try:
            files = FileDescriptorSet.FromString(data).file
            for file in files:
                pool.AddSerializedFile(file.SerializeToString())
            if not files:
                raise ConfigError(f"--decode {spec}: the file has no descriptors")
            found = pool.FindMessageTypeByName(name)
        except KeyError:
            known = ", ".join(_types(files))
            text = f"--decode {spec}: no message type {name}: the last file has {known}"
            raise ConfigError(text) from None
        except (DecodeError, TypeError) as error:
            raise ConfigError(
                f"--decode {spec}: not a complete FileDescriptorSet: write it with "
                "protoc --include_imports --descriptor_set_out=FILE"
            ) from error
        self._parse = message_factory.GetMessageClass(found).FromString
        self._pool = pool
        self._to_dict = json_format.MessageToDict
        self._kinds = FieldDescriptor

    def value(self, body: bytes) -> Any:
        """Return the message in a body; raises RecordError, or any error of protobuf."""
        message = self._parse(body)
        if not message.ListFields():
            raise RecordError("no field of the type")
        return self._object(message)

    def _object(self, message: Any) -> Any:
        if message.DESCRIPTOR.full_name.startswith(_WELL_KNOWN):
            if [field.name for field in message.DESCRIPTOR.fields] == ["value"]:  # a wrapper
                return self._one(message.DESCRIPTOR.fields[0], message.value)
            return self._to_dict(
                message, preserving_proto_field_name=True, descriptor_pool=self._pool
            )
        found = {}
        for field, value in message.ListFields():
            name = f"[{field.full_name}]" if field.is_extension else field.name
            found[name] = self._field(field, value)
        return found

    def _field(self, field: FieldDescriptor, value: Any) -> Any:
        """Return the value of a field: one, a list, or a map."""
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            of = inner.fields_by_name["value"]
            return {_key(key): self._one(of, value[key]) for key in value}
        if field.is_repeated:
            return [self._one(field, each) for each in value]
        return self._one(field, value)

    def _one(self, field: FieldDescriptor, value: Any) -> Any:
        kind = field.cpp_type
        if kind == self._kinds.CPPTYPE_MESSAGE:
            return self._object(value)
        if kind == self._kinds.CPPTYPE_ENUM:
            known = field.enum_type.values_by_number.get(value)
            return known.name if known else value
        if kind == self._kinds.CPPTYPE_FLOAT:
            return _shortest(value)
        return value


def _types(files: Sequence[Any]) -> list[str]:
    """Return types of the last file, for which the set was made: the others are its imports."""
    package = files[-1].package
    found = [f"{package}.{each.name}".lstrip(".") for each in files[-1].message_type]
    return found[:_MOST_NAMED]


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _shortest(value: float) -> float:
    """Return the number with the fewest digits that is the same in 32 bits."""
    packed = _pack_float(value)
    for digits in range(6, 9):
        if _pack_float(short := float(f"{value:.{digits}g}")) == packed:
            return short
    return value
