"""Signed requests, as another implementation of Standard Webhooks verifies them."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

_TOLERANCE = 300.0  # seconds


def verify(secret: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Raise WebhookVerificationError unless a signature holds now.

    Its own ``verify`` has a clock that ``--date`` does not set.
    """
    at = int(headers["webhook-timestamp"])
    when = datetime.fromtimestamp(at, UTC)
    signature = Webhook(secret).sign(headers["webhook-id"], when, body.decode())
    if abs(at - time.time()) > _TOLERANCE:
        raise WebhookVerificationError(f"sent at {when}")
    if signature not in headers["webhook-signature"].split():
        raise WebhookVerificationError("no signature is that of the secret")
