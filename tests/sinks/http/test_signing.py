from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from nsqtools.errors import ConfigError
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.signing import Signer
from tests.support.requesting import ID, TIME, message

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

OLD = bytes(range(32))
NEW = bytes(range(100, 124))
URL = "https://hooks.test/nsq"


def encoded(secret: bytes) -> str:
    return "whsec_" + base64.b64encode(secret).decode()


def verify(request: httpx.Request, secret: bytes, body: bytes | None = None) -> None:
    """Raises WebhookVerificationError unless the signature holds now."""
    data = request.read() if body is None else body
    Webhook(encoded(secret)).verify(data, dict(request.headers), json_parse=False)


def from_text(tmp_path: Path, text: str) -> Signer:
    path = tmp_path / "secrets"
    path.write_text(text)
    return Signer.from_file(str(path))


class TestSigner:
    def test_the_example_of_the_specification_is_reproduced(self) -> None:
        # standardwebhooks, libraries/python/tests/test_webhooks.py
        secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        signed = Signer([secret]).sign(
            b"msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330.9, b'{"test": 2432232314}'
        )
        assert signed == [
            (b"webhook-id", b"msg_p5jXN8AQM9LWM0D4loKWxJek"),
            (b"webhook-timestamp", b"1614265330"),
            (b"webhook-signature", b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ]

    def test_while_rotating_old_and_new_secret_both_verify(self) -> None:
        (endpoint,) = make_endpoints(post=[URL], signer=Signer([NEW, OLD]))
        request = endpoint.build("t", "c", message(b"{}"), time.time())
        verify(request, OLD)
        verify(request, NEW)
        assert request.headers["webhook-signature"].count("v1,") == 2
        with pytest.raises(WebhookVerificationError):
            verify(request, bytes(32))

    def test_without_a_secret_there_is_no_signer(self) -> None:
        with pytest.raises(ConfigError, match="no secret"):
            Signer([])


class TestSignedRequests:
    @given(st.text(st.characters(exclude_categories=["Cs"])))
    def test_any_text_verifies(self, text: str) -> None:
        (endpoint,) = make_endpoints(post=[URL], signer=Signer([OLD]))
        verify(endpoint.build("t", "c", message(text.encode()), time.time()), OLD)

    def test_a_body_that_was_changed_does_not(self) -> None:
        (endpoint,) = make_endpoints(post=[URL], signer=Signer([OLD]))
        request = endpoint.build("t", "c", message(b'{"sum": 1}'), time.time())
        with pytest.raises(WebhookVerificationError):
            verify(request, OLD, b'{"sum": 2}')

    def test_the_time_is_that_of_sending_not_of_the_message(self) -> None:
        (endpoint,) = make_endpoints(post=[URL], signer=Signer([OLD]))
        with pytest.raises(WebhookVerificationError, match="too old"):
            verify(endpoint.build("t", "c", message(b"{}"), time.time() - 600), OLD)

    def test_the_signature_is_of_the_body_before_compression(self) -> None:
        (endpoint,) = make_endpoints(post=[URL], signer=Signer([OLD]), compress=True)
        request = endpoint.build("t", "c", message(b'{"a":1}' * 50), time.time())
        assert request.headers["content-encoding"] == "gzip"
        verify(request, OLD, b'{"a":1}' * 50)

    def test_a_batch_verifies_as_a_whole(self) -> None:
        (endpoint,) = make_endpoints(post=[URL], signer=Signer([OLD]), batch_format="json-array")
        request = endpoint.build_batch("t", "c", [message(b"1"), message(b"2")], time.time())
        assert json.loads(request.read()) == [1, 2]
        verify(request, OLD)


class TestWebhookId:
    @staticmethod
    def ids(*messages: tuple[bytes, int, int]) -> str:
        """The webhook-id of messages given by id, timestamp and attempts."""
        (endpoint,) = make_endpoints(post=[URL], signer=Signer([OLD]), batch_format="ndjson")
        built = [
            message(b"1", identity=i, timestamp=at, attempts=tries) for i, at, tries in messages
        ]
        return endpoint.build_batch("t", "c", built, 1e9).headers["webhook-id"]

    def test_a_redelivery_has_the_same(self) -> None:
        assert self.ids((b"a", 1, 1)) == self.ids((b"a", 1, 7))
        assert self.ids((b"a", 1, 1), (b"b", 2, 1)) == self.ids((b"a", 1, 3), (b"b", 2, 2))

    def test_other_messages_have_another(self) -> None:
        assert len({
            self.ids((b"a", 1, 1)),
            self.ids((b"b", 1, 1)),
            self.ids((b"a", 2, 1)),
            self.ids((b"a", 1, 1), (b"b", 1, 1)),
            self.ids((b"b", 1, 1), (b"a", 1, 1)),
            self.ids((b"a", 1, 1), (b"b", 2, 1)),
        }) == 6  # fmt: skip

    def test_a_message_sent_alone_has_that_of_its_batch_of_one(self) -> None:
        (endpoint,) = make_endpoints(post=[URL], signer=Signer([OLD]), batch_format="ndjson")
        one = message(b"1")
        alone = endpoint.build("t", "c", one, 1e9).headers["webhook-id"]
        assert alone == f"{ID.decode()}-{TIME}"
        assert alone == endpoint.build_batch("t", "c", [one], 1e9).headers["webhook-id"]

    @given(st.binary(max_size=20))
    def test_it_never_holds_a_full_stop_or_a_line_break(self, identity: bytes) -> None:
        assert not set(self.ids((identity, 1, 1))) & set(". \r\n\0")


class TestSecretFile:
    @pytest.mark.parametrize(
        "text",
        [
            encoded(OLD),
            encoded(OLD) + "\n",
            "# of the shop\n\n  " + encoded(OLD) + "  \r\n",
            base64.b64encode(OLD).decode(),
            encoded(OLD).rstrip("="),
            "\ufeff" + encoded(OLD),
        ],
    )
    def test_a_secret_may_be_written_so(self, tmp_path: Path, text: str) -> None:
        assert from_text(tmp_path, text).sign(b"i", 1, b"") == Signer([OLD]).sign(b"i", 1, b"")

    def test_each_line_is_a_secret(self, tmp_path: Path) -> None:
        signer = from_text(tmp_path, f"{encoded(NEW)}\n{encoded(OLD)}\n")
        assert signer.sign(b"i", 1, b"x") == Signer([NEW, OLD]).sign(b"i", 1, b"x")

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("", "holds no secret"),
            ("# nothing\n", "holds no secret"),
            ("whsec_swordfish!", "line 1: not a secret"),
            (encoded(OLD) + "\nswordfish-", "line 2: not a secret"),
            ("swordfish", "line 1: not a secret"),
            ("whsec_swordfishes0", "line 1: the secret has 9 bytes, expected 24 to 64"),
            (encoded(bytes(65)), "line 1: the secret has 65 bytes"),
            ("whsk_" + "swordfish" * 8, "line 1: a key of an asymmetric signature"),
            ("swordfish" * 8000, "more than 65536 characters"),
        ],
    )
    def test_what_is_wrong_is_told_without_the_secret(
        self, tmp_path: Path, text: str, fault: str
    ) -> None:
        with pytest.raises(ConfigError, match=fault) as caught:
            from_text(tmp_path, text)
        assert str(caught.value).startswith(f"--sign-secret-file {tmp_path}/secrets")
        assert "swordfish" not in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"^--sign-secret-file .*/none: No such file"):
            Signer.from_file(str(tmp_path / "none"))
        (tmp_path / "binary").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError, match=r"/binary: not text$"):
            Signer.from_file(str(tmp_path / "binary"))
