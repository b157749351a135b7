"""What to-http makes of its options, and what it refuses before it connects anywhere."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.cli.delivering import http_sink, make_transport
from nsqtools.config import ConsumerConfig, DeadLetterOptions, HttpOptions, SourceOptions
from nsqtools.errors import ConfigError, OutputError
from nsqtools.metrics import Measured

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nsqtools.sinks.http.sink import HttpSink
    from tests.support.tls import Certificates

URL = "http://127.0.0.1:1/"


def make(dead: Mapping[str, str] | None = None, **options: Any) -> HttpSink:
    """The sink of these options, to one URL unless told."""
    if "get" not in options:
        options.setdefault("post", (URL,))
    return http_sink(
        SourceOptions(topic=("events",), nsqd_tcp_address=("127.0.0.1:1",)),
        HttpOptions(**options),
        DeadLetterOptions(**(dead or {})),
        ConsumerConfig(),
    )


def states(sink: HttpSink) -> list[str]:
    """The endpoints that metrics are told of."""
    (up,) = (each for each in sink.metrics() if each.name == "nsqtools_http_endpoint_up")
    return [labels["endpoint"] for labels, _ in up.samples]


@pytest.mark.parametrize("mode", ["hostpool", "round-robin", "epsilon-greedy", "all"])
async def test_every_mode_has_all_urls_as_endpoints(mode: str) -> None:
    sink = make(post=("http://a/", "http://b/?key=secret"), mode=mode)
    assert isinstance(sink, Measured)
    assert states(sink) == ["http://a/", "http://b/?key=********"]
    await sink.close()


async def test_a_file_of_secrets_that_others_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer x\n")
    for mode, warned in ((0o600, 0), (0o644, 1)):
        file.chmod(mode)
        await make(post=("http://a/",), header_file=(str(file),)).close()
        assert [record.message for record in caplog.records] == [
            f"{file} may be read by others: chmod 600 it"
        ] * warned


async def test_nothing_is_connected_to_or_written_before_it_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    sink = make({"dead_letter_dir": str(folder)})
    assert not folder.exists()
    await sink.open()
    assert folder.is_dir()
    await sink.close()


async def test_a_place_for_dead_letters_that_cannot_be_is_known_at_the_start(
    tmp_path: Path,
) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"")
    sink = make({"dead_letter_dir": str(place)})
    with pytest.raises(OutputError, match=str(place)):
        await sink.open()
    await sink.close()


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_dry_run_writes_no_dead_letters_and_tells_no_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dry_run: bool
) -> None:
    caplog.set_level(logging.INFO, "nsqtools.status")
    folder = tmp_path / "dead"
    sink = make({"dead_letter_dir": str(folder)}, dry_run=dry_run, status_every=1000)
    await sink.open()
    await sink.close()
    assert folder.exists() != dry_run
    told = [message.partition(":")[0] for message in caplog.messages]
    assert told == [] if dry_run else ["http"]


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"mode": "hostpol"}, "--mode"),
        ({"post": ("ftp://a/",)}, "--post"),
        ({"post": ("http://a/\r\nX: y",)}, "--post"),
        ({"get": ("http://a/",)}, "--get"),
        ({"get": ("http://a/%s",), "batch": 2}, "--batch"),
        ({"get": ("http://a/%s",), "compress": "gzip"}, "--compress"),
        ({"get": ("http://a/%s",), "content_type": "text/plain"}, "--content-type"),
        ({"header": ("X: a\r\nY: b",)}, "--header number 1"),
        ({"header": ("Content-Length: 3",)}, "--header number 1"),
        ({"header": ("Content-Type: a",), "content_type": "b"}, "--content-type"),
        ({"header_file": ("/nonexistent/headers",)}, "--header-file /nonexistent/headers"),
        ({"sign_secret_file": "/nonexistent/secret"}, "--sign-secret-file /nonexistent/secret"),
        ({"success_on": "404", "drop_on": "404"}, "--success-on 404 and --drop-on 404"),
        ({"proxy": "socks5://a:1080"}, "--proxy"),
        ({"sample": 1.5}, "--sample"),
        ({"rate": -1.0}, "--rate"),
        ({"concurrency": 0}, "--concurrency"),
        ({"http_client_request_timeout": 0.0}, "--http-client-request-timeout"),
        ({"http_tls_cert": "cert.pem"}, "--http-tls-cert and --http-tls-key"),
        ({"http_tls_root_ca_file": "/nonexistent/ca"}, "--http-tls-root-ca-file /nonexistent/ca"),
    ],
)
async def test_what_is_wrong_is_said_in_one_line_that_names_the_flag(
    options: dict[str, Any], flag: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**options)
    assert str(caught.value).startswith(flag)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["ftp://a/", "http://", "http://a:0/", "http://a:port/", "http://a b/", "x"]
)
def test_a_url_for_dead_letters_is_checked(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^--dead-letter-url: "):
        DeadLetterOptions(dead_letter_url=url)


async def test_no_secret_is_in_an_error(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("whsec_hidden!\n")
    headers = tmp_path / "headers"
    headers.write_text("hidden value\n")
    for options in (
        {"post": ("http://me:hidden@a:port/",)},
        {"post": ("http://me:hidden@/",)},
        {"header": ("hidden",)},
        {"header": ("Authorization: hidden\n",)},
        {"header_file": (str(headers),)},
        {"sign_secret_file": str(secret)},
        {"proxy": "http://me:hidden@a:port"},
        {"proxy": "ftp://me:hidden@a"},
    ):
        with pytest.raises(ConfigError) as caught:
            make(**options)
        assert "hidden" not in str(caught.value), options


class TestTLS:
    def options(self, **files: Path) -> HttpOptions:
        names: dict[str, Any] = {f"http_tls_{name}": str(path) for name, path in files.items()}
        return HttpOptions(post=(URL,), **names)

    def test_files_that_fit_are_taken(self, certificates: Certificates) -> None:
        client = certificates.client
        make_transport(self.options(root_ca_file=certificates.ca, cert=client.cert, key=client.key))

    @pytest.mark.parametrize(
        ("cert", "key", "text"),
        [
            ("client.pem", "server.key", "--http-tls-key"),
            ("client.key", "client.key", "--http-tls-cert"),
            ("client.pem", "ca.pem", "--http-tls-(cert|key)"),
            ("none.pem", "client.key", "--http-tls-cert .*none.pem"),
        ],
    )
    def test_those_that_do_not_are_named_with_their_flag(
        self, certificates: Certificates, cert: str, key: str, text: str
    ) -> None:
        folder = certificates.ca.parent
        with pytest.raises(ConfigError, match=f"^{text}"):
            make_transport(self.options(cert=folder / cert, key=folder / key))
