"""AUTH with a real nsqd and the tests' auth server."""

from pathlib import Path
from typing import Any

import pytest

from nsqtools.config.connection import ProducerConfig
from nsqtools.engine.producer import Producer
from nsqtools.errors import AuthError
from tests.support.authd import Authd
from tests.support.eventually import eventually_async
from tests.support.process import Cli
from tests.support.scripted import Recorder, consume, running, undisturbed
from tests.support.servers import MakeNsqd, Nsqd, at, drained
from tests.support.tls import Certificates


@pytest.fixture
def guarded(make_nsqd: MakeNsqd, authd: Authd, certificates: Certificates) -> Nsqd:
    authd.grant("open sesame", identity="ali")
    return make_nsqd(*authd.nsqd_args(), *certificates.server.nsqd_args())


async def test_the_right_secret_publishes_and_consumes_over_tls(
    guarded: Nsqd, authd: Authd, certificates: Certificates, topic: str
) -> None:
    options: dict[str, Any] = {"auth_secret": "open sesame", "tls_v1": True}
    options["tls_root_ca_file"] = str(certificates.ca)
    guarded.create(topic, "c")
    async with undisturbed(), Producer([guarded.tcp], ProducerConfig(**options)) as producer:
        await producer.publish(topic, [b"1", b"2"])
    recorder = Recorder()
    async with running(consume(recorder, guarded.tcp, topic=topic, **options)):
        await eventually_async(lambda: drained(guarded, topic, "c"))
        (client,) = guarded.channel(topic, "c")["clients"]
    assert len(recorder.seen) == 2
    assert (client["authed"], client["auth_identity"], client["tls"]) == (True, "ali", True)
    assert {query["tls"] for query in authd.queries} == {"true"}


@pytest.mark.parametrize(("secret", "words"), [("barley", "E_AUTH_FAILED"), ("", "requires AUTH")])
async def test_a_wrong_or_missing_secret_ends_the_start(
    secret: str, words: str, guarded: Nsqd, topic: str
) -> None:
    async with undisturbed():
        with pytest.raises(AuthError, match=f"^{guarded.tcp}: .*{words}"):
            await consume(Recorder(), guarded.tcp, topic=topic, auth_secret=secret).run()
        with pytest.raises(AuthError, match=f"^{guarded.tcp}: .*{words}"):
            await Producer([guarded.tcp], ProducerConfig(auth_secret=secret)).connect()


def test_where_tls_is_required_too_it_is_named_before_the_secret(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, authd: Authd, certificates: Certificates, tmp_path: Path
) -> None:
    nsqd = make_nsqd(
        *authd.nsqd_args(), *certificates.server.nsqd_args(), "-tls-required=tcp-https"
    )
    secret = tmp_path / "secret"
    secret.write_text("open sesame")
    secret.chmod(0o600)
    for options in ((), ("--auth-secret-file", str(secret))):
        for name, words in (("tail", ("--channel", "c")), ("doctor", ()), ("pub", ("hello",))):
            ended = nsqtools_cli(name, "--topic", "t", *at(nsqd), *options, *words)
            assert ended.code
            text = ended.stdout.decode() + ended.stderr
            assert "--tls-v1" in text, name
            assert "--auth-secret-file" not in text, name
