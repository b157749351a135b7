"""What a client of the embedded nsqd may say, and what comes of it (protocol_v2.go)."""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ServerError
from nsqtools.proto.codecs import Deflate, Snappy
from nsqtools.sandbox import tls, wire
from nsqtools.sandbox.channel import Consumer, NotInFlightError
from nsqtools.sandbox.http_api import to_json
from nsqtools.sandbox.identify import Settings, negotiate
from nsqtools.sandbox.link import Link
from nsqtools.sandbox.wire import show

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsqtools.proto.codecs import Codec
    from nsqtools.sandbox.channel import Channel, Message
    from nsqtools.sandbox.nsqd import Nsqd
    from nsqtools.sandbox.wire import Command

INIT, SUBSCRIBED, CLOSING = 0, 3, 4
"""States, as ``/stats`` numbers them."""

_OK = wire.response(b"OK")
_GRANTED = to_json({"identity": "", "identity_url": "", "permission_count": 1})


class Client:
    """One client, at the other end of ``link``."""

    def __init__(self, nsqd: Nsqd) -> None:
        options = nsqd.options
        self._nsqd = nsqd
        self.link = Link(nsqd, self, wire.CommandParser(self._admit, options))
        self.settings = Settings(msg_timeout=round(options.msg_timeout * 1000))
        self.state = INIT
        self.pub_counts: dict[str, int] = {}
        self.consumer: Consumer | None = None
        self.channel: Channel | None = None
        self._authed = False
        self._connect_time = int(time.time())
        self._commands: Mapping[bytes, Callable[[Command], None]] = {
            b"IDENTIFY": self._identify,
            b"AUTH": self._authenticate,
            b"PUB": self._publish,
            b"MPUB": self._publish,
            b"DPUB": self._publish,
            b"SUB": self._subscribe,
            b"RDY": self._ready,
            b"FIN": self._finish,
            b"REQ": self._requeue,
            b"TOUCH": self._touch,
            b"CLS": self._start_close,
            b"NOP": lambda _: None,
        }

    def deliver(self, messages: list[Message]) -> None:
        """Send messages of the channel."""
        self.link.write(wire.messages(messages))

    def close(self) -> None:
        """Hang up without a word, because the channel is deleted."""
        self.link.close()

    def introduced(self) -> None:
        """Begin to serve a peer that has sent the magic."""
        self.settings.client_id = self.settings.hostname = self.link.address.host
        self._nsqd.clients[self] = None
        self.link.start_heartbeats(self.settings.heartbeat_interval / 1000)

    def obey(self, command: Command) -> None:
        """Carry out a command. Raises ServerError: the peer is told, and the link closed."""
        if not (carry_out := self._commands.get(command.name)):
            raise ServerError(f"E_INVALID invalid command {show(command.name)}")
        try:
            carry_out(command)
        except NotInFlightError as error:  # not fatal
            name, id_ = show(command.name), show(command.words[1])
            self.link.answer(wire.error(f"E_{name}_FAILED {name} {id_} failed {error}"))

    def pace_changed(self) -> None:
        """Stop or go on with deliveries, because ``Link.blocked`` has changed."""
        if self.consumer and self.channel:
            self.consumer.blocked = self.link.blocked
            self.channel.changed()

    def left(self) -> None:
        """Leave the channel, because nothing can be sent or heard any more."""
        self._nsqd.clients.pop(self, None)
        if self.consumer and self.channel:
            self.channel.remove(self.consumer)

    def stats(self, topic: str) -> dict[str, Any]:
        """The entry in ``/stats``, where pub_counts has one topic at most, as nsqd's."""
        settings, consumer = self.settings, self.consumer
        facts: dict[str, Any] = {
            "client_id": settings.client_id,
            "hostname": settings.hostname,
            "version": "V2",
            "remote_address": str(self.link.address),
            "state": self.state,
            "ready_count": consumer.rdy if consumer else 0,
            "in_flight_count": consumer.in_flight if consumer else 0,
            "message_count": consumer.message_count if consumer else 0,
            "finish_count": consumer.finish_count if consumer else 0,
            "requeue_count": consumer.requeue_count if consumer else 0,
            "connect_ts": self._connect_time,
            "sample_rate": settings.sample_rate,
            "deflate": isinstance(self.link.codec, Deflate),
            "snappy": isinstance(self.link.codec, Snappy),
            "user_agent": settings.user_agent,
        }
        if self._authed:
            facts["authed"] = True
        counts = [
            {"topic": name, "count": count}
            for name, count in self.pub_counts.items()
            if topic in ("", name)
        ]
        if counts:
            facts["pub_counts"] = counts[:1]
        return {**facts, **tls.describe(self.link.tls)}

    def _admit(self, command: Command) -> None:
        """Check what nsqd checks of a line before it reads the body; raises ServerError."""
        name = command.name
        if name in (b"IDENTIFY", b"AUTH") and self.state != INIT:
            raise self._cannot(command)
        if name == b"IDENTIFY":
            return
        if self.link.tls is None and self._nsqd.tls_required:
            raise self._cannot(command, " (TLS required)")
        if name == b"AUTH" and len(command.words) != 1:
            raise ServerError("E_INVALID AUTH invalid number of parameters")
        if name in wire.PUBLISHING:
            wire.check_publish(command, self._nsqd.options.max_req_timeout)
        if name == b"MPUB":
            self._check_authed(command)
            self._nsqd.broker.topic(show(command.words[1]))

    def _identify(self, command: Command) -> None:
        self.settings = negotiate(command.body, self._nsqd.options)
        self.link.start_heartbeats(self.settings.heartbeat_interval / 1000)
        self.link.answer(wire.response(self.settings.reply(self._nsqd.options)))
        codec: Codec | None = None
        if self.settings.snappy:
            codec = Snappy()
        elif self.settings.deflate:
            codec = Deflate(self.settings.deflate_level)
        if self.settings.tls_v1 and self._nsqd.tls:
            self.link.secure(self._nsqd.tls, codec)
        else:
            self.link.compress(codec)

    def _authenticate(self, command: Command) -> None:
        if self._authed:
            raise ServerError("E_INVALID AUTH already set")
        if not self._nsqd.secret:
            raise ServerError("E_AUTH_DISABLED AUTH disabled")
        if not hmac.compare_digest(command.body, self._nsqd.secret):
            raise ServerError("E_AUTH_FAILED AUTH failed")
        self._authed = True
        self.link.answer(wire.response(_GRANTED))

    def _check_authed(self, command: Command) -> None:
        """Raise ServerError for a client that has to send AUTH first."""
        if self._nsqd.secret and not self._authed:
            raise ServerError(f"E_AUTH_FIRST AUTH required before {show(command.name)}")

    def _publish(self, command: Command) -> None:
        self._check_authed(command)
        topic, defer = show(command.words[1]), 0.0
        bodies = [command.body]
        if command.name == b"MPUB":
            bodies = wire.split_bodies(command.body, self._nsqd.options)
        elif command.name == b"DPUB":
            defer = int(command.words[2]) / 1000
        self._nsqd.publish(topic, bodies, defer=defer)
        self.pub_counts[topic] = self.pub_counts.get(topic, 0) + len(bodies)
        self._answer_when_looked_up(topic)

    def _subscribe(self, command: Command) -> None:
        if self.state != INIT:
            raise self._cannot(command)
        if not self.settings.heartbeat_interval:
            raise ServerError("E_INVALID cannot SUB with heartbeats disabled")
        if len(command.words) < 3:
            raise ServerError("E_INVALID SUB insufficient number of parameters")
        for kind, word in zip(("topic", "channel"), command.words[1:], strict=False):
            wire.check_name(word, "SUB", kind)
        self._check_authed(command)
        topic, name = show(command.words[1]), show(command.words[2])
        channel = self._nsqd.broker.topic(topic).channel(name)
        limit = self._nsqd.options.max_channel_consumers
        if limit and len(channel.consumers) >= limit:
            text = f"consumers for {topic}:{name} exceeds limit of {limit}"
            raise ServerError(f"E_SUB_FAILED SUB failed {text}")
        timeout = self.settings.msg_timeout / 1000
        self.consumer = Consumer(self, timeout, self.settings.sample_rate)
        self.consumer.blocked = self.link.blocked
        self.channel = channel
        channel.add(self.consumer)
        self.state = SUBSCRIBED
        self._answer_when_looked_up(topic)

    def _answer_when_looked_up(self, topic: str) -> None:
        """OK, when a new topic has the channels that nsqlookupds know (nsqd.go, GetTopic)."""
        self.link.answer(_OK)
        if topic in self._nsqd.lookups:
            self.link.suspend(self._nsqd.looked_up(topic))

    def _ready(self, command: Command) -> None:
        if self.state == CLOSING:
            return
        consumer, channel = self._subscription(command)
        word = command.words[1] if len(command.words) > 1 else b"1"
        limit, count = self._nsqd.options.max_rdy_count, wire.to_number(word)
        if count is None:
            raise ServerError(f"E_INVALID RDY could not parse count {show(word)}")
        if count > limit:
            raise ServerError(f"E_INVALID RDY count {count} out of range 0-{limit}")
        consumer.rdy = count
        channel.changed()

    def _finish(self, command: Command) -> None:
        consumer, channel = self._subscription(command)
        channel.finish(consumer, wire.message_id(command.words, 2))

    def _requeue(self, command: Command) -> None:
        consumer, channel = self._subscription(command)
        id_ = wire.message_id(command.words, 3)
        delay = wire.to_number(command.words[2])
        if delay is None:
            text = f"REQ could not parse timeout {show(command.words[2])}"
            raise ServerError(f"E_INVALID {text}")
        seconds = min(delay / 1000, self._nsqd.options.max_req_timeout)
        channel.requeue(consumer, id_, seconds, self._nsqd.now)

    def _touch(self, command: Command) -> None:
        consumer, channel = self._subscription(command)
        channel.touch(consumer, wire.message_id(command.words, 2), self._nsqd.now)

    def _start_close(self, command: Command) -> None:
        consumer, _ = self._subscription(command)
        if self.state == CLOSING:
            raise self._cannot(command)
        consumer.rdy = 0
        self.state = CLOSING
        self.link.answer(wire.response(b"CLOSE_WAIT"))

    def _subscription(self, command: Command) -> tuple[Consumer, Channel]:
        """What was subscribed to; raises ServerError without."""
        if not self.consumer or not self.channel:
            raise self._cannot(command)
        return self.consumer, self.channel

    def _cannot(self, command: Command, why: str = "") -> ServerError:
        return ServerError(f"E_INVALID cannot {show(command.name)} in current state{why}")
