"""Options of the page in a browser: who may reach it, and what it may change."""

from __future__ import annotations

import re

from nsqtools.config.connection import read_secret
from nsqtools.config.consuming import DeadLetterOptions
from nsqtools.config.option import Option, Options, duration, flag, like, path, text, texts
from nsqtools.config.records import DECODE
from nsqtools.errors import ConfigError
from nsqtools.names import is_loopback, listening_address


def _base_path(value: str) -> None:
    if not value.startswith("/") or not value.isascii() or set(value) & set("?#%\\\"'<> "):
        raise ConfigError(f"{value!r}: expected a path such as /nsq")


def _host_name(value: str) -> None:
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", value):
        raise ConfigError(f"{value!r}: expected a name such as nsq.example.com, without a port")


def _header_name(value: str) -> None:
    if not re.fullmatch(r"[\w-]+", value, re.ASCII):
        raise ConfigError(f"{value!r}: expected a name such as X-Forwarded-User")


def _endpoint(value: str) -> None:
    if not value.startswith(("http://", "https://")):
        raise ConfigError(f"{value!r}: expected http:// or https://")


class UiOptions(Options):
    """Options of ``ui``: the address, access and changes."""

    title = "Page"

    address: str = text(
        "Address to listen on. Another address than loopback needs --password-file or "
        "--acl-http-header. Port 0 picks a free port.",
        "127.0.0.1:4171",
        metavar="HOST:PORT",
        rule=listening_address,
    )
    base_path: str = text(
        "Path of the page behind a proxy, such as /nsq.", "/", metavar="PATH", rule=_base_path
    )
    server_name: tuple[str, ...] = texts(
        "Further host name by which browsers reach the page, such as the proxy's; may be repeated.",
        metavar="HOST",
        rule=_host_name,
    )
    password_file: str = path(
        "File with a line NAME:PASSWORD for each user.",
        metavar="FILE",
        excludes=("acl_http_header",),
    )
    acl_http_header: str = text(
        "Header in which an authenticating proxy names the user, such as X-Forwarded-User. "
        "Requests without it are refused.",
        metavar="HEADER",
        rule=_header_name,
    )
    admin_user: tuple[str, ...] = texts(
        "User who may make changes; may be repeated.", metavar="NAME", default_note="every user"
    )
    allow_changes: bool = flag("Allow changes. Without it, the page is read-only.")
    audit_log: str = path(
        "File to which each change is appended as a line of JSON.", metavar="FILE"
    )
    notification_http_endpoint: str = Option(  # type: ignore[assignment] # as text() does
        "url",
        "URL to which each change is sent as JSON, as by nsqadmin.",
        "",
        metavar="URL",
        rule=_endpoint,
    )
    dead_letter_dir: str = like(
        DeadLetterOptions.dead_letter_dir,
        help="Directory with dead letters of to-http or relay, to show and publish again.",
    )
    decode: str = like(
        DECODE,
        help="Show bodies decoded to JSON: msgpack, avro:SCHEMA, protobuf:DESCRIPTOR#TYPE or "
        "cmd:PROGRAM.",
    )
    interval: float = duration("Time between polls of the servers.", 5.0, minimum=0.1)

    def validate(self) -> None:
        """Raise ConfigError if others could reach a page without users."""
        address = listening_address(self.address)
        is_guarded = bool(self.password_file or self.acl_http_header)
        if address and not is_loopback(address.host) and not is_guarded:
            raise ConfigError(
                f"--address {self.address}: other hosts reach it: give --password-file or "
                "--acl-http-header, or an address of 127.0.0.1",
                options=("address",),
            )
        if self.admin_user and not is_guarded:
            text = "--admin-user needs --password-file or --acl-http-header"
            raise ConfigError(text, options=("admin_user",))


def read_passwords(options: UiOptions) -> dict[str, str]:
    """Return the passwords in a file by user.

    Raises ConfigError naming the faulty line, or a user of --admin-user without a line.
    """
    where = f"--password-file {options.password_file}"
    found = {}
    for number, line in enumerate(read_secret(options.password_file, where).splitlines(), 1):
        name, colon, password = line.strip().partition(":")
        if line.strip() and not (name and colon and password):
            raise ConfigError(f"{where}: line {number}: expected NAME:PASSWORD")
        if line.strip():
            found[name] = password
    for name in options.admin_user:
        if name not in found:
            raise ConfigError(f"--admin-user {name}: {where} has no such user")
    return found
