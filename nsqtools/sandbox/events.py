"""Sample events, as a small shop would publish them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from itertools import count, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

_KINDS = {"view": 60, "cart": 20, "order": 12, "payment": 6, "refund": 2}
_PRODUCTS = {"apples": 2.49, "bread": 3.2, "coffee": 8.9, "olives": 4.75, "tea": 5.5, "wine": 12.0}
_COUNTRIES = ("AT", "DE", "FR", "NL", "PL", "SE")
_USERS = 500
_TURN = 0.05  # seconds between batches, if the rate is high enough


def sample_events(rng: random.Random, now: Callable[[], float]) -> Iterator[bytes]:
    """Yield JSON bodies endlessly, one object each; ``now`` returns seconds since the epoch.

    Keys: id (from 1), time (RFC 3339, UTC), kind, user, country, product, quantity, amount.
    """
    kinds, weights = list(_KINDS), list(_KINDS.values())
    products = list(_PRODUCTS)
    for number in count(1):
        kind = rng.choices(kinds, weights)[0]
        user = rng.randrange(_USERS)
        product = rng.choice(products)
        quantity = 1 if kind == "view" else rng.randint(1, 5)
        event = {
            "id": number,
            "time": datetime.fromtimestamp(now(), UTC).isoformat(timespec="milliseconds"),
            "kind": kind,
            "user": f"user-{user:03}",
            "country": _COUNTRIES[user % len(_COUNTRIES)],
            "product": product,
            "quantity": quantity,
            "amount": round(_PRODUCTS[product] * quantity, 2),
        }
        yield json.dumps(event).encode()


async def publish_at_rate(
    publish: Callable[[Sequence[bytes]], None], bodies: Iterator[bytes], rate: float
) -> None:
    """Publish ``rate`` bodies per second, in batches, until cancelled.

    Events missed during a stall of more than a second, such as a laptop's sleep, are skipped.
    """
    loop = asyncio.get_running_loop()
    last, due = loop.time(), 0.0
    while True:
        await asyncio.sleep(max(_TURN, (1 - due) / rate))
        now = loop.time()
        due += min((now - last) * rate, max(1.0, rate))
        last = now
        if batch := list(islice(bodies, int(due))):
            publish(batch)
            due -= len(batch)
