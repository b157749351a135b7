"""Certificates for the TLS tests, made afresh in every run."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trustme

HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Certificate:
    """Paths of a certificate and its key (PEM)."""

    cert: Path
    key: Path

    def nsqd_args(self) -> list[str]:
        return [f"-tls-cert={self.cert}", f"-tls-key={self.key}"]

    def options(self) -> list[str]:
        return ["--tls-cert", str(self.cert), "--tls-key", str(self.key)]

    def context(self) -> ssl.SSLContext:
        """Of a server that shows it."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self.cert, self.key)
        return made


@dataclass(frozen=True, slots=True)
class Certificates:
    """Two authorities and what they signed; servers' are valid for localhost and 127.0.0.1."""

    ca: Path
    server: Certificate
    client: Certificate
    expired: Certificate
    other_host: Certificate
    other_ca: Path
    other_server: Certificate
    other_client: Certificate

    def strict_nsqd_args(self) -> list[str]:
        """Of an nsqd that wants a client certificate, but not of plain HTTP."""
        policy = ("-tls-client-auth-policy=require-verify", "-tls-required=tcp-https")
        return [*self.server.nsqd_args(), f"-tls-root-ca-file={self.ca}", *policy]


def make_certificates(folder: Path) -> Certificates:
    """Write all of them into a folder."""
    ca, other_ca = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    other_ca.cert_pem.write_to_path(folder / "other_ca.pem")

    def write(name: str, leaf: trustme.LeafCert) -> Certificate:
        paths = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
        leaf.private_key_pem.write_to_path(paths.key)
        for blob in leaf.cert_chain_pems:
            blob.write_to_path(paths.cert, append=True)
        return paths

    begin, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 2, 1, tzinfo=UTC)
    return Certificates(
        ca=folder / "ca.pem",
        server=write("server", ca.issue_cert(*HOSTS)),
        client=write("client", ca.issue_cert("client.test", common_name="client.test")),
        expired=write("expired", ca.issue_cert(*HOSTS, not_before=begin, not_after=end)),
        other_host=write("other_host", ca.issue_cert("elsewhere.test")),
        other_ca=folder / "other_ca.pem",
        other_server=write("other_server", other_ca.issue_cert(*HOSTS)),
        other_client=write("other_client", other_ca.issue_cert("client.test")),
    )
