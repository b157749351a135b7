import base64
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import WebhookVerificationError

from nsqtools.errors import ConfigError
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.requests import Endpoint
from nsqtools.sinks.http.signing import Signer
from tests.support import webhooks
from tests.support.archiving import message

OLD = bytes(range(32))
NEW = bytes(range(100, 124))


def encoded(secret: bytes) -> str:
    return "whsec_" + base64.b64encode(secret).decode()


def signing(*secrets: bytes, **more: Any) -> Endpoint:
    signer = Signer(secrets or [OLD])
    (endpoint,) = make_endpoints(post=["https://hooks.test/nsq"], signer=signer, **more)
    return endpoint


def signed(endpoint: Endpoint, body: bytes) -> httpx.Request:
    return endpoint.build("t", "c", [message(body)], time.time())


def verify(request: httpx.Request, secret: bytes = OLD, body: bytes | None = None) -> None:
    """Raises WebhookVerificationError unless the signature holds now."""
    webhooks.verify(encoded(secret), request.read() if body is None else body, request.headers)


class TestSignedRequests:
    def test_the_example_of_the_specification_is_reproduced(self) -> None:
        # standardwebhooks, libraries/python/tests/test_webhooks.py
        secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        identity, at, body = b"msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330.9, b'{"test": 2432232314}'
        assert Signer([secret]).sign(identity, at, body) == [
            (b"webhook-id", identity),
            (b"webhook-timestamp", b"1614265330"),
            (b"webhook-signature", b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ]

    def test_while_rotating_old_and_new_secret_both_verify(self) -> None:
        request = signed(signing(NEW, OLD), b"{}")
        verify(request, OLD)
        verify(request, NEW)
        assert request.headers["webhook-signature"].count("v1,") == 2
        with pytest.raises(WebhookVerificationError):
            verify(request, bytes(32))

    @given(st.text(st.characters(exclude_categories=["Cs"])))
    def test_any_text_verifies_and_no_other(self, text: str) -> None:
        request = signed(signing(), text.encode())
        verify(request)
        with pytest.raises(WebhookVerificationError):
            verify(request, body=text.encode() + b" ")


class TestWebhookId:
    @staticmethod
    def ids(*messages: tuple[bytes, int, int]) -> str:
        """The webhook-id of messages given by id, timestamp and attempts."""
        built = [
            message(b"1", identity=i, timestamp=at, attempts=tries) for i, at, tries in messages
        ]
        request = signing(batch_format="ndjson").build("t", "c", built, 1e9)
        return request.headers["webhook-id"]

    def test_a_redelivery_has_the_same_and_other_messages_another(self) -> None:
        a, b = (b"a", 1, 1), (b"b", 1, 1)
        assert self.ids(a) == self.ids((b"a", 1, 7))
        assert self.ids(a, b) == self.ids((b"a", 1, 3), (b"b", 1, 2))
        others = [(a,), (b,), ((b"a", 2, 1),), (a, b), (b, a), (a, (b"b", 2, 1))]
        assert len({self.ids(*each) for each in others}) == len(others)

    @given(st.binary(max_size=20))
    def test_it_never_holds_a_full_stop_or_a_line_break(self, identity: bytes) -> None:
        assert not set(self.ids((identity, 1, 1))) & set(". \r\n\0")


class TestSecretFile:
    @pytest.mark.parametrize(
        "text",
        [
            encoded(OLD) + "\n",
            "# of the shop\n\n  " + encoded(OLD) + "  \r\n",
            base64.b64encode(OLD).decode(),
            encoded(OLD).rstrip("="),
            "\ufeff" + encoded(OLD),
        ],
    )
    def test_each_line_is_a_secret_and_may_be_written_so(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "secrets"
        for more, secrets in (("", [OLD]), (f"\n{encoded(NEW)}", [OLD, NEW])):
            path.write_text(text + more)
            assert Signer.from_file(str(path)).sign(b"", 1, b"") == Signer(secrets).sign(
                b"", 1, b""
            )

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            (b"", "no secret"),
            (b"# nothing\n", "no secret"),
            (b"whsec_swordfish!", "line 1"),
            (encoded(OLD).encode() + b"\nswordfish-", "line 2"),
            (b"swordfish", "line 1"),
            (b"whsec_swordfishes0", "line 1: .* 9 bytes"),
            (encoded(bytes(65)).encode(), "line 1: .* 65 bytes"),
            (b"whsk_" + b"swordfish" * 8, "line 1"),
            (b"swordfish" * 8000, "65536"),
            (b"\xff\xfe", "not text"),
            (None, "No such file"),
        ],
    )
    def test_what_is_wrong_is_told_without_the_secret(
        self, tmp_path: Path, text: bytes | None, fault: str
    ) -> None:
        path = tmp_path / "secrets"
        if text is not None:
            path.write_bytes(text)
        with pytest.raises(ConfigError, match=fault) as caught:
            Signer.from_file(str(path))
        assert str(caught.value).startswith(f"--sign-secret-file {path}")
        assert "swordfish" not in str(caught.value)
        assert "\n" not in str(caught.value)
