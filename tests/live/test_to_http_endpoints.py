"""``to-http`` over TLS, and nginx; deliveries are counted exactly by the endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.nginx import Nginx
from tests.support.webserver import WebServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.posting import Posting
    from tests.support.tls import Certificates


def test_tls_that_cannot_be_trusted_carries_nothing_unless_it_need_not_be_verified(
    posting: Posting, certificates: Certificates
) -> None:
    posting.publish([b"1", b"2"])
    trust = ("--http-tls-root-ca-file", str(certificates.ca))
    with WebServer(tls=certificates.other_server) as web:
        poster = posting.start("--post", web.url(), "-vv", *trust, *posting.dead_after(2))
        poster.finish()
        assert web.requests == []
        assert [letter["body"] for letter in posting.dead_letters()] == ["1", "2"]
        assert "--http-tls-root-ca-file" in poster.said
        assert "Traceback" not in poster.said
        posting.publish([b"1", b"2"])
        posting.start("--post", web.url(), "--http-tls-insecure-skip-verify").finish()
        assert list(web.deliveries.values()) == [1, 1]


def test_nginx_over_tls_wants_a_certificate_and_refuses_what_is_too_long(
    posting: Posting, certificates: Certificates, tmp_path: Path
) -> None:
    """It closes each connection after seven requests, and refuses before it has read the body."""
    location = """
        client_max_body_size 100;
        if ($ssl_client_verify != SUCCESS) { return 403; }
        return 200 "OK";
    """
    client = certificates.client
    bad = [b"x" * 1_000_000, b"y" * 4_000]
    with Nginx(tmp_path / "nginx", location, certificates) as nginx:
        options = ("--post", nginx.url, "--http-tls-root-ca-file", str(certificates.ca))
        posting.numbers(2)
        posting.start(*options, *posting.dead_after(2)).finish()
        assert [row[1:] for row in nginx.answers()] == [["403", "NONE"]] * 4
        assert len(posting.dead_letters()) == 2
        identity = "--http-tls-cert", str(client.cert), "--http-tls-key", str(client.key)
        posting.publish([*(b"%d" % number for number in range(100)), *bad])
        posting.start(*options, *identity, "--drop-on", "413", *posting.dead_after(0)).finish()
        answers = nginx.answers()[4:]
        assert len({row[0] for row in answers if row[1] == "200"}) == len(answers) - 2 == 100
        assert len(posting.dead_letters()) == 4
