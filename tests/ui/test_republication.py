"""Messages published again by the ui: which ones, and what is noted about them."""

from nsqtools.config.connection import ConsumerConfig
from nsqtools.engine.connector import Subscription
from nsqtools.names import Address
from nsqtools.ui.republication import ChannelAgain, origin_of
from tests.support.archiving import message


def test_a_message_of_another_nsqd_with_the_same_id_is_not_touched() -> None:
    one, other = Address("127.0.0.1", 4150), Address("127.0.0.1", 5150)
    shown = message(b"shown")
    source = Subscription(topic="t.dead", channel="c", nsqds=(one, other))
    chosen = [(origin_of(one, shown), b"edited")]
    job = ChannelAgain("t", chosen, 1.0, source, (), ConsumerConfig())
    assert job.bodies(other, [message(b"never shown")]) == [None]
    assert job.bodies(one, [shown]) == [b"edited"]
    job.settled(other, message(b"never shown"), "")
    assert job.published == 0
    job.settled(one, shown, "")
    assert job.published == 1
