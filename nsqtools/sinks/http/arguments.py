"""Endpoints from command line options."""

from __future__ import annotations

import base64
import re
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import httpx

from nsqtools.config.option import MASK
from nsqtools.errors import ConfigError
from nsqtools.sinks.http.requests import BATCH_FORMATS, Endpoint, GetEndpoint
from nsqtools.sinks.http.signing import HEADERS as SIGNING_HEADERS
from nsqtools.sinks.http.signing import read_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.net.http.wire import Header
    from nsqtools.sinks.http.signing import Signer

_HEADER = re.compile(r"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*[:=](.*)", re.DOTALL)
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f]")  # a value may contain tabs
_HOST = re.compile(rb"[a-z0-9._-]+|[0-9a-fA-F:.]+(%25[A-Za-z0-9._~-]+)?")
_USER = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*://)?.*@", re.DOTALL)
_HALF_ESCAPE = re.compile(rb"%[0-9A-Fa-f]?\Z")

_CONNECTION = frozenset(
    b"host content-length transfer-encoding connection keep-alive proxy-connection te trailer "
    b"upgrade expect".split()
)
"""Headers of the connection. Setting them would allow one request to pass for two."""

_SINGLE = (b"authorization", b"content-type", b"content-encoding", b"user-agent")


def make_endpoints(
    *,
    post: Sequence[str] = (),
    get: Sequence[str] = (),
    headers: Sequence[Header] = (),
    content_type: str = "",
    batch_format: str = "",
    compress: bool = False,
    signer: Signer | None = None,
) -> list[Endpoint]:
    """Return the endpoints of these URLs, in order; either ``post`` or ``get`` is empty.

    A user and password in a URL become its Authorization header. ``headers`` come from
    ``read_headers``; they are sent unchanged and replace default headers of the same name. Without
    ``content_type``, batches have the type of their format and other bodies
    application/octet-stream. Raises ConfigError, which names the flag.
    """
    given = {key.lower() for key, _ in headers}
    for flag, value, sets in (
        ("--content-type", content_type, (b"content-type",)),
        ("--compress", compress, (b"content-encoding",)),
        ("--sign-secret-file", signer, SIGNING_HEADERS),
    ):
        if value and (twice := sorted(given.intersection(sets))):
            raise ConfigError(f"{flag}: a --header also sets {twice[0].decode()}; omit one of them")
    if _CONTROL.search(content_type):
        raise ConfigError("--content-type: contains a line break or another control character")
    endpoints: list[Endpoint] = []
    taken = Counter[str]()
    for text in post or get:
        url, access = parse_url("--post" if post else "--get", text)
        own = [*([] if b"authorization" in given else access), *headers]
        name = _name_of(url)
        taken[name] += 1
        if taken[name] > 1:
            name = f"{name} #{taken[name]}"
        if get:
            endpoints.append(GetEndpoint(url, name, own))
            continue
        endpoints.append(
            Endpoint(
                url,
                name,
                own,
                content_type=_encode(content_type.strip(" \t")),
                form=BATCH_FORMATS.get(batch_format),
                signer=signer,
                compress=compress,
            )
        )
    return endpoints


def parse_url(flag: str, text: str) -> tuple[httpx.URL, list[Header]]:
    """Return the URL without user and password, and their header; raises ConfigError."""
    shown = _USER.sub(rf"\1{MASK}@", text).partition("?")[0]
    where = f"{flag} {shown!r}"
    if not text.isprintable() or " " in text:
        raise ConfigError(f"{where}: contains a space, a line break or another control character")
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:  # its text may show part of a password
        raise ConfigError(f"{where}: not a valid URL: check its host and port") from None
    if url.scheme not in ("http", "https"):
        raise ConfigError(f"{where}: expected http:// or https://")
    if not _HOST.fullmatch(url.raw_host):
        raise ConfigError(f"{where}: expected a host name or an IP address")
    if url.port is not None and not 0 < url.port < 65536:
        raise ConfigError(f"{where}: expected a port from 1 to 65535")
    if "#" in text:
        raise ConfigError(f"{where}: the part after # is never sent; write %23 for a literal #")
    if flag == "--get":
        _check_placeholder(where, text.count("%s"), url.raw_path)
    access = []
    if url.userinfo:
        user, _, password = (unquote_to_bytes(part) for part in url.userinfo.partition(b":"))
        token = base64.b64encode(b"%b:%b" % (user, password))
        access = [(b"Authorization", b"Basic " + token)]
    return url.copy_with(userinfo=b""), access


def _check_placeholder(where: str, count: int, raw_path: bytes) -> None:
    if count != 1:
        raise ConfigError(f"{where}: expected exactly one %s, found {count}")
    before, found, _ = raw_path.partition(b"%s")
    if not found:
        raise ConfigError(f"{where}: %s is allowed only in the path and the query")
    if _HALF_ESCAPE.search(before):
        raise ConfigError(f"{where}: the text before %s would form an escape with the body")


def _name_of(url: httpx.URL) -> str:
    path, mark, query = url.raw_path.decode("ascii").partition("?")
    values = [part.partition("=") for part in query.split("&")] if mark else []
    shown = [
        key + equals + value if "%s" in (key, value) else f"{key}={MASK}" if equals else MASK
        for key, equals, value in values
    ]
    return f"{url.scheme}://{url.netloc.decode('ascii')}{path}{mark}{'&'.join(shown)}"


def read_headers(lines: Sequence[str] = (), files: Sequence[str] = ()) -> list[Header]:
    """Return the headers of ``--header`` and of the files of ``--header-file``, in order.

    Each is written ``Name: value`` or ``Name=value``. Raises ConfigError, which names the place and
    never shows a value.
    """
    headers = [_parse_header(f"--header number {n}", line) for n, line in enumerate(lines, 1)]
    for path in files:
        headers += [_parse_header(*line) for line in read_lines(path, "--header-file")]
    keys = Counter(key.lower() for key, _ in headers)
    for key in _SINGLE:
        if keys[key] > 1:
            raise ConfigError(f"--header: {key.decode()} is given {keys[key]} times; give it once")
    return headers


def _parse_header(where: str, text: str) -> Header:
    match = _HEADER.fullmatch(text)
    if match is None:
        raise ConfigError(f"{where}: expected 'Name: value' or 'Name=value'")
    name, value = match[1], match[2]
    if _CONTROL.search(value):
        raise ConfigError(
            f"{where}: the value of {name} contains a line break or another control character"
        )
    key = name.encode()
    if key.lower() in _CONNECTION:
        raise ConfigError(f"{where}: {name} is set by the connection and cannot be given")
    return key, _encode(value.strip(" \t"))


def _encode(text: str) -> bytes:
    """Encode an argument; bytes that were not UTF-8 are restored."""
    return text.encode("utf-8", "surrogateescape")
