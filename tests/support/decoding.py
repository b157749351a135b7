"""Schemas, descriptors and programs for ``--decode``, and bodies by the libraries' own writers."""

import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import Message

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "key", "type": "bytes"},
        {"name": "rate", "type": "double"},
        {"name": "lines", "type": {"type": "array", "items": "int"}},
        {"name": "tags", "type": {"type": "map", "values": "boolean"}},
    ],
}
NODE: dict[str, Any] = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
"""A recursive schema."""

_PROGRAM = """
import base64, sys
for line in sys.stdin:
    body = base64.b64decode(line)
    if body == b"die":
        sys.exit(3)
    print(body.decode() if body.startswith(b"{") else "", flush=True)
"""


def avro(value: Any, schema: Any = AVRO) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def avro_file(folder: Path, schema: Any = AVRO) -> str:
    """The value of ``--decode`` for a schema."""
    path = folder / "schema.avsc"
    path.write_text(json.dumps(schema))
    return f"avro:{path}"


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """What ``protoc --include_imports`` writes for a file with the message ``shop.Order``."""
    kinds = descriptor_pb2.FieldDescriptorProto
    found = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    file = found.file.add(
        name="shop.proto", package="shop", syntax="proto3", dependency=[found.file[0].name]
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="SALE", number=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT64, label=1)
    fields = (
        ("id", kinds.TYPE_INT64, 1, ""),
        ("user_name", kinds.TYPE_STRING, 1, ""),
        ("at", kinds.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"),
        ("key", kinds.TYPE_BYTES, 1, ""),
        ("rate", kinds.TYPE_FLOAT, 1, ""),
        ("kind", kinds.TYPE_ENUM, 1, ".shop.Kind"),
        ("tags", kinds.TYPE_MESSAGE, 3, ".shop.Order.TagsEntry"),
        ("children", kinds.TYPE_MESSAGE, 3, ".shop.Order"),
    )
    for number, (name, of, label, type_name) in enumerate(fields, 1):
        order.field.add(name=name, number=number, type=of, label=label, type_name=type_name or None)
    return found


def protobuf_file(folder: Path) -> str:
    """The value of ``--decode`` for ``shop.Order``."""
    path = folder / "shop.pb"
    path.write_bytes(descriptors().SerializeToString())
    return f"protobuf:{path}#shop.Order"


def order(**fields: Any) -> Message:
    """A ``shop.Order``."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors().file:
        pool.AddSerializedFile(file.SerializeToString())
    made: Message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(
        **fields
    )
    return made


def program(source: str = _PROGRAM) -> str:
    """The value of ``--decode`` for a program; this one decodes objects of JSON, dies of "die"."""
    return f"cmd:{shlex.join([sys.executable, '-c', source])}"
