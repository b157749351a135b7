"""Receiving over all kinds of connections, and from an nsqd that refuses them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import AuthError, ConfigError, NSQError, RefusedError
from tests.support.proxy import Faults, Proxy
from tests.support.pulling import NONE, Staging, bodies_of, depth, numbered, publish
from tests.support.servers import drained

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nsqtools.names import Address
    from tests.support.authd import Authd
    from tests.support.pulling import Found
    from tests.support.servers import MakeNsqd, Nsqd
    from tests.support.tls import Certificates


@pytest.fixture
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staging:
    return Staging(tmp_path / "staging", monkeypatch)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nsq.snappy": "true"},
        {"nsq.deflate": "true"},
        {"nsq.tls_v1": "true"},
        {"nsq.tls_v1": "true", "nsq.snappy": "true"},
    ],
    ids=["plain", "snappy", "deflate", "tls", "tls-snappy"],
)
def test_connections_are_encrypted_compressed_and_authorised_as_told(
    make_nsqd: MakeNsqd,
    staging: Staging,
    topic: str,
    certificates: Certificates,
    authd: Authd,
    tmp_path: Path,
    options: dict[str, str],
) -> None:
    authd.grant("open sesame")
    nsqd = make_nsqd(*certificates.server.nsqd_args(), *authd.nsqd_args())
    bodies = [*numbered(3000), bytes(1 << 20), Random(3).randbytes(1 << 20)]
    publish(nsqd, topic, bodies)
    (secret := tmp_path / "secret").write_text("open sesame\n")
    options = options | {"nsq.auth_secret_file": str(secret)}
    if "nsq.tls_v1" in options:
        options["nsq.tls_root_ca_file"] = str(certificates.ca)
    rows = staging.pull(nsqd.tcp, topic, len(bodies), options=options)
    assert bodies_of(rows) == Counter(bodies)
    assert drained(nsqd, topic, "c")
    assert "reset by peer" not in nsqd.log.read_text()


def refused(
    staging: Staging, address: Address, topic: str, options: Mapping[str, str] = NONE
) -> NSQError:
    with pytest.raises(NSQError) as caught:
        staging.pull(address, topic, 10, options=options)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)
    return caught.value


def test_an_nsqd_that_wants_a_secret_is_an_error_of_the_query(
    make_nsqd: MakeNsqd, staging: Staging, topic: str, authd: Authd, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = make_nsqd(*authd.nsqd_args())
    publish(nsqd, topic, numbered(10))
    error = refused(staging, nsqd.tcp, topic)
    assert isinstance(error, AuthError)
    assert "nsq.auth_secret_file" in str(error)
    monkeypatch.setenv("NSQ_SECRET", "wrong")
    for variable, kind in (("NSQ_SECRET", AuthError), ("NSQ_NONE", ConfigError)):
        options = {"nsq.auth_secret_env": variable}
        assert isinstance(refused(staging, nsqd.tcp, topic, options), kind)
    assert depth(nsqd, topic) == 10


def test_tls_that_cannot_be_is_an_error_of_the_query(
    make_nsqd: MakeNsqd, staging: Staging, topic: str, certificates: Certificates
) -> None:
    plain = make_nsqd()
    secure = make_nsqd(*certificates.server.nsqd_args())
    strict = make_nsqd(
        *certificates.server.nsqd_args(),
        f"-tls-root-ca-file={certificates.ca}",
        "-tls-client-auth-policy=require-verify",
    )
    elsewhere = make_nsqd(*certificates.other_host.nsqd_args())
    publish(secure, topic, numbered(10))

    def text(nsqd: Nsqd, ca: object) -> str:
        options = {"nsq.tls_root_ca_file": str(ca)}
        error = refused(staging, nsqd.tcp, topic, options)
        assert isinstance(error, RefusedError | ConfigError)
        return str(error)

    assert "does not offer TLS" in text(plain, certificates.ca)
    assert "signed it with nsq.tls_root_ca_file" in text(secure, certificates.other_ca)
    assert "connect by a name that it holds" in text(elsewhere, certificates.ca)
    assert "client certificate" in text(strict, certificates.ca)
    assert "nsq.tls_root_ca_file /no/such: no such file" in text(secure, "/no/such")
    assert depth(secure, topic) == 10


def test_what_is_no_nsqd_is_an_error_of_the_query(nsqd: Nsqd, staging: Staging, topic: str) -> None:
    assert "not nsqd's TCP port" in str(refused(staging, nsqd.http, topic))


def test_an_nsqd_that_falls_silent_in_the_handshake_gives_an_empty_partition(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    async def pull() -> Found:
        faults = [Faults(cut_down_after=1, cut="fin")]
        async with Proxy(nsqd.tcp, faults) as proxy:
            return await asyncio.to_thread(staging.pull, proxy.address, topic, 10)

    assert asyncio.run(pull()) == []


def test_executors_need_none_of_the_libraries_that_only_the_driver_uses() -> None:
    code = (
        "import sys; sys.modules.update(httpx=None, click=None, rich=None); "
        "import nsqtools.spark.source"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
