"""Protocol Buffers: messages of one type, by the package protobuf and a file of descriptors."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqtools.errors import ConfigError, RecordError
from nsqtools.records.bodies.bodydecoder import ValueDecoder, rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

_MOST_NAMED = 5
_WELL_KNOWN = "google.protobuf."
"""Types below have a JSON form of their own, as Timestamp has (protobuf.dev, ProtoJSON)."""
_pack_float = struct.Struct("<f").pack


class ProtobufDecoder(ValueDecoder):
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
        self._plans: dict[FieldDescriptor, _FieldPlan] = {}

    def value(self, body: bytes) -> Any:
        """Return the message in a body; raises RecordError, or any error of protobuf."""
        message = self._parse(body)
        if not message.ListFields():
            raise RecordError("no field of the type")
        return self._object(message)

    def _object(self, message: Any) -> Any:
        name = message.DESCRIPTOR.full_name
        if name.startswith(_WELL_KNOWN):
            return self._well_known(name, message)
        found = {}
        for field, value in message.ListFields():
            plan = self._plans.get(field) or self._plan(field)
            if plan.is_map:
                result: Any = {_key(key): self._one(plan, value[key]) for key in value}
            elif plan.is_list:
                result = [self._one(plan, each) for each in value]
            else:
                result = self._one(plan, value)
            found[plan.name] = result
        return found

    def _well_known(self, name: str, message: Any) -> Any:
        if name == f"{_WELL_KNOWN}Timestamp":
            return rfc3339(message.seconds, message.nanos)
        fields = message.DESCRIPTOR.fields
        if [field.name for field in fields] == ["value"]:  # a wrapper
            return self._one(self._plans.get(fields[0]) or self._plan(fields[0]), message.value)
        return self._to_dict(message, preserving_proto_field_name=True, descriptor_pool=self._pool)

    def _one(self, plan: _FieldPlan, value: Any) -> Any:
        """Return one value of a field, of its list, or of its map."""
        if plan.is_message:
            return self._object(value)
        if plan.is_float:
            return _shortest(value)
        return plan.names.get(value, value) if plan.names else value

    def _plan(self, field: FieldDescriptor) -> _FieldPlan:
        """Look a field up, once: its descriptor takes longer to read than its values."""
        kinds, of, inner = self._kinds, field, field.message_type
        is_map = inner is not None and inner.GetOptions().map_entry
        if is_map:
            of = inner.fields_by_name["value"]
        self._plans[field] = plan = _FieldPlan(
            name=f"[{field.full_name}]" if field.is_extension else field.name,
            is_map=is_map,
            is_list=field.is_repeated,
            is_message=of.cpp_type == kinds.CPPTYPE_MESSAGE,
            is_float=of.cpp_type == kinds.CPPTYPE_FLOAT,
            names=_names(of.enum_type) if of.enum_type else {},
        )
        return plan


class _FieldPlan(NamedTuple):
    """How the values of a field become JSON; ``names`` are those of an enum, by number."""

    name: str
    is_map: bool
    is_list: bool
    is_message: bool
    is_float: bool
    names: Mapping[int, str]


def _names(enum: EnumDescriptor) -> dict[int, str]:
    return {number: value.name for number, value in enum.values_by_number.items()}


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
