"""TLS for nsqd and the HTTP APIs: contexts from the options, and readable errors."""

from __future__ import annotations

import logging
import os
import re
import ssl
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from nsqtools.config.connection import without_waiting
from nsqtools.errors import ConfigError, with_fix
from nsqtools.names import is_loopback

if TYPE_CHECKING:
    from nsqtools.config.connection import ClientConfig
    from nsqtools.names import Address

log = logging.getLogger(__name__)

_GIVE_CERTIFICATE = "set --tls-cert and --tls-key to one that it accepts"

_MAYBE_CERTIFICATE = "it may require a client certificate (--tls-cert, --tls-key)"

# Reasons of OpenSSL without their prefixes, because the prefixes differ between its versions. A
# server requiring a certificate sends the alert CERTIFICATE_REQUIRED in TLS 1.3. In TLS 1.2 Go
# sends HANDSHAKE_FAILURE, and older releases of Go send BAD_CERTIFICATE (crypto/tls,
# handshake_server.go).
_REASONS = {
    "CERTIFICATE_REQUIRED": f"the server requires a client certificate: {_GIVE_CERTIFICATE}",
    "ALERT_BAD_CERTIFICATE": "the server refused the client certificate or found none: "
    + _GIVE_CERTIFICATE,
    "ALERT_HANDSHAKE_FAILURE": f"the server aborted the TLS handshake: {_MAYBE_CERTIFICATE}",
    "ALERT_UNKNOWN_CA": "the server does not know the CA that signed the client certificate: "
    + _GIVE_CERTIFICATE,
    "ALERT_CERTIFICATE_EXPIRED": "the client certificate has expired: renew it",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS here: check the port, or connect "
    "without TLS",
    "ALERT_PROTOCOL_VERSION": "the server supports no TLS version that --tls-min-version allows",
    "UNSUPPORTED_PROTOCOL": "the server supports no TLS version that --tls-min-version allows",
    "UNEXPECTED_EOF": "the server closed the connection during the TLS handshake or just after: "
    f"check that it speaks TLS here; {_MAYBE_CERTIFICATE}",
}

_WRONG_HOST = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_WRONG_TIME = frozenset({9, 10})  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED

_VERSION, _UTC_TIME = 0xA0, 0x17  # tags in DER

_unused: set[str] = set()
"""TLS options without effect, already reported."""

_in_clear: list[Address] = []
"""The first destination of a secret sent without TLS, already reported."""


def uses_tls(config: ClientConfig) -> bool:
    """Whether to ask nsqd for TLS: only with tls_v1, as in go-nsq (``conn.go``, identify)."""
    return config.tls_v1


def _names_tls(config: ClientConfig) -> list[str]:
    """Return the names of the TLS options in use, apart from tls_v1."""
    names = ("tls_root_ca_file", "tls_cert", "tls_insecure_skip_verify")
    return [name for name in names if getattr(config, name)]


def warn_of_no_tls(config: ClientConfig) -> None:
    """Warn, once per process and option, of TLS options without tls_v1."""
    if config.tls_v1:
        return
    for name in _names_tls(config):
        if name not in _unused:
            _unused.add(name)
            log.warning(
                "%s is set without %s, so connections to nsqd do not use TLS (as in go-nsq)",
                config.spelled(name),
                config.spelled("tls_v1"),
            )


def http_context(config: ClientConfig) -> ssl.SSLContext | None:
    """Return the context for HTTPS to nsqlookupd and nsqd; None for the default context.

    Raises ConfigError like ``client_context``.
    """
    return client_context(config) if config.tls_v1 or _names_tls(config) else None


def client_context(config: ClientConfig, *, flags: str = "--tls") -> ssl.SSLContext:
    """Return the TLS context for these options, cached until a file changes.

    TLS 1.2 is the minimum. A lower ``tls_min_version``, allowed by go-nsq, has no effect. As in Go,
    any certificate in ``tls_root_ca_file`` is trusted: a root, an intermediate or the server's own.
    Raises ConfigError naming the file and the option, with a flag beginning with ``flags``.
    """
    files = (config.tls_root_ca_file, config.tls_cert, config.tls_key)
    verify = not config.tls_insecure_skip_verify
    lowest = config.tls_min_version
    if lowest not in ("tls1.2", "tls1.3") and lowest not in _unused:
        _unused.add(lowest)
        log.info(
            "%s %s: ignored, TLS 1.2 is the minimum", config.spelled("tls_min_version"), lowest
        )
    newest = lowest == "tls1.3"
    return _context(files, tuple(map(_version, files)), verify, newest, flags)


@lru_cache(maxsize=16)
def _context(
    files: tuple[str, str, str], _versions: object, verify: bool, newest: bool, flags: str
) -> ssl.SSLContext:
    ca, cert, key = files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if newest else ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if ca:
        load_certificates(context, f"{flags}-root-ca-file", ca)
    else:
        context.load_default_certs()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert:
        load_identity(context, flags, cert, key)
    return context


def _version(path: str) -> object:
    """Return a value that changes when the file is replaced or written to; None if unreadable."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def warn_of_secret_in_clear(address: Address) -> None:
    """Warn, once per process, of a secret sent unencrypted to another host."""
    if not is_loopback(address.host) and not _in_clear:
        _in_clear.append(address)
        fix = "use --tls-v1 with nsqd, and https:// with nsqlookupd"
        log.warning("%s: the AUTH secret is sent without TLS: %s", address, fix)


def explain(error: BaseException, *, flags: str = "--tls") -> str:
    """Explain an error of the TLS handshake or the first read in one line, with the fix if known.

    The first read matters because a TLS 1.3 server refuses a client certificate only after the
    client's part of the handshake.
    """
    return _explained(error).replace("--tls", flags)


def _explained(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error)
    if isinstance(error, ssl.SSLError):
        text = getattr(error, "reason", None) or str(error)
        key = text.upper().replace(" ", "_")
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):  # varies with Python
            key = "UNEXPECTED_EOF"
        for reason, explanation in _REASONS.items():
            if reason in key:
                return explanation
        return f"TLS failed: {text.replace('_', ' ').lower()}"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return (
            "the server reset the connection during the TLS handshake or just after: check that "
            f"it speaks TLS here; {_MAYBE_CERTIFICATE}"
        )
    if isinstance(error, OSError):
        return plain(error)
    return " ".join(str(error).split()) or type(error).__name__


def plain(error: OSError) -> str:
    """Return the system's text for an OSError of asyncio, such as "connection refused".

    For a host with several addresses asyncio joins the texts ``[Errno 111] Connect call failed
    (...)`` and sets no errno: ``plain`` uses the first.
    """
    found = re.search(r"\[Errno (\d+)\]", str(error))
    number = error.errno or (int(found[1]) if found else 0)
    if number > 0:
        return with_fix(number, os.strerror(number).lower())
    return " ".join((error.strerror or str(error)).split()) or type(error).__name__


def _explain_certificate(error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message.rstrip(".")
    if error.verify_code in _WRONG_HOST:
        fix = "connect by a host name in the certificate"
    elif error.verify_code in _WRONG_TIME:
        fix = "renew it, or correct this host's clock"
    else:
        fix = "give its CA with --tls-root-ca-file"
    return f"the server's certificate cannot be verified: {reason}: {fix}"


def expiry(certificate: bytes) -> float:
    """Return the end of a certificate in DER, in seconds since the epoch; 0 if it is malformed.

    ssl decodes only verified certificates. The validity is the fifth field of TBSCertificate, after
    the optional version (RFC 5280, section 4.1).
    """
    try:
        _, body, _ = _element(_element(certificate)[1])
        tag, _, rest = _element(body)
        for _ in range(3 if tag == _VERSION else 2):
            _, _, rest = _element(rest)
        _, _, after = _element(_element(rest)[1])
        tag, text, _ = _element(after)
        form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
        return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC).timestamp()
    except (ValueError, IndexError):
        return 0.0


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Split off the first element: its tag, its content, and the rest. Raises IndexError."""
    size, start = data[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[2:start])
    return data[0], data[start : start + size], data[start + size :]


def load_certificates(context: ssl.SSLContext, option: str, path: str) -> None:
    """Trust the certificates of a file; raises ConfigError."""
    _check_readable(option, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(f"{option} {path}: not a PEM certificate") from error


def load_identity(context: ssl.SSLContext, flags: str, cert: str, key: str) -> None:
    """Load certificate and key; raises ConfigError naming the file at fault."""
    # Load the certificate first: load_cert_chain does not name the unusable file.
    load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), f"{flags}-cert", cert)
    _check_readable(f"{flags}-key", key)
    encrypted = False

    def no_passphrase() -> bytes:
        # Without this function OpenSSL would prompt for the passphrase on the terminal.
        nonlocal encrypted
        encrypted = True
        return b""

    try:
        context.load_cert_chain(cert, key, password=no_passphrase)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if encrypted:
            text = f"{flags}-key {key}: the key is encrypted: decrypt it with openssl pkey"
        elif "MISMATCH" in reason:
            text = f"{flags}-key {key}: not the key of the certificate {flags}-cert {cert}"
        elif reason:
            text = f"{flags}-cert {cert}: cannot be used: {reason.replace('_', ' ').lower()}"
        else:
            text = f"{flags}-key {key}: not a PEM private key"
        raise ConfigError(text) from error


def _check_readable(option: str, path: str) -> None:
    try:
        with open(path, "rb", opener=without_waiting) as file:
            file.read(1)
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise ConfigError(f"{option} {path}: {str(reason).lower()}") from error
