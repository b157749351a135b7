"""Options of a command converted to options of Spark's source and sink ``nsq``."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from nsqtools.config.units import format_duration
from nsqtools.errors import ConfigError
from nsqtools.records.layout import Layout
from nsqtools.spark.properties import is_local

if TYPE_CHECKING:
    from nsqtools.config.connection import ClientConfig
    from nsqtools.config.lake import InputOptions, StreamConfig, StreamOptions, StreamSourceOptions

_SECRET = "NSQTOOLS_PIPELINE_AUTH_SECRET"  # noqa: S105 - names a variable


def source_options(
    source: StreamSourceOptions,
    stream: StreamOptions,
    config: StreamConfig,
    *,
    master: str,
    staging: str,
) -> dict[str, str]:
    """Options of the source.

    Puts a secret into the environment, for local executors. Raises ConfigError if there is a secret
    and the executors are on other machines.
    """
    found = {
        "subscribe": ",".join(source.topic),
        "channel": source.channel,
        "stagingLocation": staging,
        "maxMessagesPerTrigger": str(stream.max_per_trigger),
        "connectionsPerNsqd": str(stream.connections),
        "maxInFlight": str(config.max_in_flight),
        **servers(source),
        **connection_options(config, master, leave_out=("max_in_flight", "auth_secret_env")),
    }
    if stream.continuous:
        found["waitForServers"] = "true"
    if config.auth_secret_env:
        found["nsq.auth_secret_env"] = config.auth_secret_env
    return found


def servers(source: StreamSourceOptions) -> dict[str, str]:
    """The option with the nsqds or the nsqlookupds."""
    if source.lookupd_http_address:
        return {"nsqlookupd.http.addresses": ",".join(source.lookupd_http_address)}
    https = source.nsqd_http_address or [""] * len(source.nsqd_tcp_address)
    pairs = zip(source.nsqd_tcp_address, https, strict=True)
    return {"nsqd.tcp.addresses": ",".join(f"{tcp}/{http}".rstrip("/") for tcp, http in pairs)}


def connection_options(
    config: ClientConfig, master: str, *, leave_out: tuple[str, ...] = ()
) -> dict[str, str]:
    """``nsq.NAME`` for each option with another value than its default; paths are made absolute.

    Handles secrets like ``source_options``. The added option ``flags`` makes errors name flags.
    """
    found = {"flags": "true"}
    for name, declared in config.declared().items():
        value = getattr(config, name)
        if name == "auth_secret" and value:
            if not is_local(master):
                raise ConfigError(
                    f"the executors of --master {master} cannot read the secret of this machine: "
                    "give --auth-secret-file with a file that they can read"
                )
            os.environ[_SECRET] = value
            found["nsq.auth_secret_env"] = _SECRET
        elif name not in leave_out and value != declared.default:
            if declared.kind == "duration":
                found[f"nsq.{name}"] = format_duration(value)
            elif declared.kind == "path":
                found[f"nsq.{name}"] = os.path.abspath(value)
            else:
                found[f"nsq.{name}"] = str(value)
    return found


def layout(inputs: InputOptions) -> Layout | None:
    """The record format of files of ``to-file``, or None without --input-format."""
    if not inputs.input_format:
        return None
    return Layout.parse(inputs.input_format, inputs.delimiter)


def schema_text(text: str) -> str:
    """The value of --schema, or the text of the file named there. Raises ConfigError."""
    if not os.path.isfile(text):
        if re.fullmatch(r"[^\s:{]+", text):  # a column has a space, or a colon, before its type
            raise ConfigError(f"--schema {text}: no such file")
        return text
    try:
        with open(text, encoding="utf-8-sig") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"--schema {text}: {reason}") from error
