"""What happens by itself: timeouts, deferred messages, heartbeats.

Nothing is said of how soon, only of the order and of how soon at the earliest. Where a pause of the
machine could change the order, it is tried again.

The real nsqd looks for new channels every 5 s, and before that nothing in them is due; so all
channels of this file are made first, and no test begins before nsqd has come to see them.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.raw import sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.raw import Connect, Message, Raw
    from tests.support.servers import Nsqd

POOL = 20
TIMEOUT = 0.3
LONGEST = 0.9
LATEST = 0.25
PATIENT = {"msg_timeout": 600_000}


@pytest.fixture(scope="module")
def nsqds(
    nsqd_class: type[Nsqd], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Nsqd, Nsqd]]:
    flag = f"-msg-timeout={TIMEOUT}s"
    limits = f"-max-msg-timeout={LONGEST}s", f"-max-req-timeout={LATEST}s"
    with (
        nsqd_class(tmp_path_factory.mktemp("nsqd"), flag) as one,
        nsqd_class(tmp_path_factory.mktemp("limited"), flag, *limits) as limited,
    ):
        for nsqd in (one, limited):
            for number in range(POOL):
                nsqd.create(f"old{number}", "c")
            nsqd.create("seen", "c")
            nsqd.request("POST", "/pub", b"x", topic="seen", defer=1)
        for nsqd in (one, limited):
            eventually(lambda nsqd=nsqd: nsqd.channel("seen", "c")["depth"] == 1)  # type: ignore[misc]
        yield one, limited


@pytest.fixture(scope="module")
def nsqd(nsqds: tuple[Nsqd, Nsqd]) -> Nsqd:
    return nsqds[0]


@pytest.fixture(scope="module")
def limited(nsqds: tuple[Nsqd, Nsqd]) -> Nsqd:
    """One with low limits of the times that clients may ask for."""
    return nsqds[1]


@pytest.fixture(scope="module")
def unused(server: str) -> Iterator[int]:
    return iter(range(POOL))


@pytest.fixture
def topic(unused: Iterator[int]) -> str:
    return f"old{next(unused)}"


def in_some_try(attempt: Callable[[], bool]) -> bool:
    """Whether it is so at least once: a pause of the machine may change an order, or end a try."""
    for _ in range(10):
        with suppress(AssertionError):
            if attempt():
                return True
    return False


def not_before(moment: float) -> None:
    """No pause makes anything come too soon, so that no other try makes up for it."""
    if (early := moment - time.monotonic()) > 0:
        pytest.fail(f"it comes {early:.3f} s too soon")


def assert_again(message: Message, first: Message) -> None:
    assert message._replace(attempts=first.attempts) == first
    assert message.attempts > first.attempts


def test_a_message_times_out_and_comes_again_with_one_more_attempt(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.subscribe(topic, ready=1)
    begin = time.monotonic()
    nsqd.publish(topic, [b"x"])
    first = client.message()
    assert client.message() == first._replace(attempts=2)
    assert time.monotonic() - begin >= TIMEOUT
    found = nsqd.channel(topic, "c")
    assert found["timeout_count"] >= 1
    assert (found["requeue_count"], found["clients"][0]["in_flight_count"]) == (0, 1)


@contextmanager
def only(client: Raw, nsqd: Nsqd, topic: str, ready: int, **settings: int) -> Iterator[Raw]:
    """The one consumer of a channel that is empty."""
    eventually(lambda: nsqd.channel(topic, "c")["client_count"] == 0)
    nsqd.empty(topic, "c")
    with client:
        client.identify(**settings)
        yield client.subscribe(topic, ready=ready)


def test_touch_holds_a_message_for_max_msg_timeout_and_no_longer(
    connect: Connect, limited: Nsqd, topic: str
) -> None:
    def held_to_the_end() -> bool:
        with only(connect(limited), limited, topic, ready=1) as client:
            begin = time.monotonic()
            limited.publish(topic, [b"x"])
            message = client.message()

            def delivered_again() -> bool:
                client.send(f"TOUCH {message.id}")
                return client.settle() > 0

            eventually(delivered_again, timeout=30)
            return time.monotonic() - begin >= LONGEST

    assert in_some_try(held_to_the_end)


def test_deferred_messages_come_in_the_order_of_their_delays(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    delays = (450, 250, 50, 0)
    commands = [f"DPUB {topic} {each}\n".encode() + sized(b"%d" % each) for each in delays]

    def in_order() -> bool:
        with connect() as writer, only(connect(), nsqd, topic, ready=9, **PATIENT) as client:
            begin = time.monotonic()
            writer.write(b"".join(commands))
            found = []
            for _ in delays:
                message = client.message()
                not_before(begin + int(message.body) / 1000)
                found.append(message.body)
            return found == [b"0", b"50", b"250", b"450"]

    assert in_some_try(in_order)


def test_a_deferred_requeue_comes_after_its_delay_and_an_earlier_one_before_it(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    def in_order() -> bool:
        with only(connect(), nsqd, topic, ready=2, **PATIENT) as client:
            nsqd.publish(topic, [b"1", b"2"])
            one, two = client.message(), client.message()
            begin = time.monotonic()
            client.write(f"REQ {one.id} 400\nREQ {two.id} 100\n".encode())
            first = client.message()
            client.send(f"FIN {first.id}")
            not_before(begin + 0.1)
            last = client.message()
            not_before(begin + 0.4)
            return [first, last] == [two._replace(attempts=2), one._replace(attempts=2)]

    assert in_some_try(in_order)


def test_a_delay_over_max_req_timeout_is_cut_to_it(
    connect: Connect, limited: Nsqd, topic: str
) -> None:
    client = connect(limited).subscribe(topic, ready=1)
    limited.publish(topic, [b"x"])
    first = client.message()
    begin = time.monotonic()
    client.send(f"REQ {first.id} 99999999999")
    assert_again(client.message(), first)
    assert time.monotonic() - begin >= LATEST
