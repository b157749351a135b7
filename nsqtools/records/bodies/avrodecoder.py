"""Avro: data of one schema, plain or in the single-object encoding, by the package fastavro."""

from __future__ import annotations

import io
import json
from typing import Any

from nsqtools.errors import ConfigError, RecordError
from nsqtools.records.bodies.bodydecoder import ValueDecoder

_SINGLE_OBJECT = b"\xc3\x01"
"""Avro 1.12, Single object encoding: these bytes, the fingerprint in 8 bytes, the datum."""
_HEADER = 10


class AvroDecoder(ValueDecoder):
    """Decodes data of the schema in ``data``, the JSON of a file .avsc.

    A body that begins with the bytes C3 01 must have the fingerprint of the schema. Raises
    ConfigError for an unusable schema, and for one that allows a few bytes to become any number of
    values.
    """

    def __init__(self, spec: str, data: bytes) -> None:
        super().__init__(spec)
        import fastavro
        from fastavro import _read_py
        from fastavro.schema import fingerprint, to_parsing_canonical_form

        try:
            declared = json.loads(data)
            self._schema = fastavro.parse_schema(declared)
            canonical = to_parsing_canonical_form(declared)
            self._mark = _SINGLE_OBJECT + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
            shape = _SchemaShape(declared)
        except ConfigError as error:
            raise ConfigError(f"--decode {spec}: {error}") from None
        except Exception as error:  # fastavro raises KeyError and others for faulty schemas
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"--decode {spec}: not an Avro schema: {reason}") from error
        # Nested data of a recursive schema would overflow the stack of the compiled reader.
        self._read = (_read_py if shape.is_recursive else fastavro).schemaless_reader

    def value(self, body: bytes) -> Any:
        """Return the datum in a body; raises RecordError, or any error of fastavro."""
        file = io.BytesIO(body)
        if body.startswith(_SINGLE_OBJECT):
            if not body.startswith(self._mark):
                raise RecordError("has the fingerprint of another schema")
            file.seek(_HEADER)
        found = self._read(file, self._schema, None)
        if file.tell() != len(body):
            raise RecordError("has bytes after the datum")
        return found


class _SchemaShape:
    """What a schema allows; raises ConfigError for items of arrays that take no bytes."""

    def __init__(self, schema: Any) -> None:
        self.is_recursive = False
        self._takes_none: dict[str, bool | None] = {}
        """Named types, and whether they take no bytes; None while that is being found out."""
        self._examine(schema, "")

    def _examine(self, schema: Any, space: str) -> bool:
        """Whether values of a schema take no bytes; ``space`` is the namespace around it."""
        if isinstance(schema, list):
            for each in schema:
                self._examine(each, space)
            return False
        if isinstance(schema, str):
            return self._of_name(schema, space)
        kind = schema["type"]
        match kind:
            case "array":
                if self._examine(schema["items"], space):
                    text = "an array whose items take no bytes could have any number of them"
                    raise ConfigError(f"{text}: change the schema")
                return False
            case "map":
                self._examine(schema["values"], space)
                return False
            case "record" | "error" | "fixed" | "enum":
                return self._of_named(schema, space)
        return self._examine(kind, space)

    def _of_name(self, name: str, space: str) -> bool:
        for full in (f"{space}.{name}", name):
            if full in self._takes_none:
                found = self._takes_none[full]
                self.is_recursive |= found is None
                return bool(found)
        return name == "null"

    def _of_named(self, schema: Any, space: str) -> bool:
        name = schema["name"]
        if "." in name:
            space = name.rpartition(".")[0]
        else:
            space = schema.get("namespace", space)
            name = f"{space}.{name}" if space else name
        if schema["type"] in ("fixed", "enum"):
            takes_none = bool(schema.get("size") == 0)
        else:
            self._takes_none[name] = None
            takes = [not self._examine(each["type"], space) for each in schema.get("fields", ())]
            takes_none = not any(takes)
        self._takes_none[name] = takes_none
        return takes_none
