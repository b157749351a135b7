"""Execution of the commands of one client of the embedded nsqd (protocol_v2.go)."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from nsqtools.clock import wall
from nsqtools.errors import ServerError
from nsqtools.proto.codecs import Deflate, Snappy
from nsqtools.sandbox.http_api import to_json
from nsqtools.sandbox.nsqd import tls_layer
from nsqtools.sandbox.nsqd.channel import ChannelConsumer, NotInFlightError
from nsqtools.sandbox.nsqd.client_link import ClientLink
from nsqtools.sandbox.nsqd.identify import Negotiated, negotiate
from nsqtools.sandbox.nsqd.parser import (
    PUBLISHING,
    CommandParser,
    check_name,
    check_publish,
    error_frame,
    message_frames,
    message_id,
    response_frame,
    show,
    split_bodies,
    to_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsqtools.proto.codecs import Codec
    from nsqtools.sandbox.nsqd import Nsqd
    from nsqtools.sandbox.nsqd.channel import Channel, QueuedMessage
    from nsqtools.sandbox.nsqd.parser import ClientCommand

INIT, SUBSCRIBED, CLOSING = 0, 3, 4
"""States, with the numbers of ``/stats``."""

_OK = response_frame(b"OK")
_GRANTED = to_json({"identity": "", "identity_url": "", "permission_count": 1})


class Client:
    """One client, at the other end of ``link``."""

    def __init__(self, nsqd: Nsqd) -> None:
        options = nsqd.options
        self._nsqd = nsqd
        self.link = ClientLink(nsqd, self, CommandParser(self._admit, options))
        self.negotiated = Negotiated(msg_timeout=round(options.msg_timeout * 1000))
        self.state = INIT
        self.pub_counts: dict[str, int] = {}
        self.consumer: ChannelConsumer | None = None
        self.channel: Channel | None = None
        self._authed = False
        self._connect_time = int(wall())
        self._commands: Mapping[bytes, Callable[[ClientCommand], None]] = {
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

    def deliver(self, messages: list[QueuedMessage]) -> None:
        """Send messages of the channel."""
        self.link.write(message_frames(messages))

    def close(self) -> None:
        """Close the connection without a response, because the channel was deleted."""
        self.link.close()

    def introduced(self) -> None:
        """Start serving a client that has sent the magic."""
        self.negotiated.client_id = self.negotiated.hostname = self.link.address.host
        self._nsqd.clients[self] = None
        self.link.start_heartbeats(self.negotiated.heartbeat_interval / 1000)

    def obey(self, command: ClientCommand) -> None:
        """Execute a command. After a ServerError the link sends the error and closes."""
        if not (carry_out := self._commands.get(command.name)):
            raise ServerError(f"E_INVALID invalid command {show(command.name)}")
        try:
            carry_out(command)
        except NotInFlightError as error:  # not fatal
            name, id_ = show(command.name), show(command.words[1])
            self.link.answer(error_frame(f"E_{name}_FAILED {name} {id_} failed {error}"))

    def pace_changed(self) -> None:
        """Pause or resume deliveries after a change of ``ClientLink.blocked``."""
        if self.consumer and self.channel:
            self.consumer.blocked = self.link.blocked
            self.channel.changed()

    def left(self) -> None:
        """Leave the channel, because the connection has ended."""
        self._nsqd.clients.pop(self, None)
        if self.consumer and self.channel:
            self.channel.remove(self.consumer)

    def stats(self, topic: str) -> dict[str, Any]:
        """Return the entry in ``/stats``; pub_counts has at most one topic, as in nsqd."""
        agreed, consumer = self.negotiated, self.consumer or ChannelConsumer(self, 0.0)
        facts: dict[str, Any] = {
            "client_id": agreed.client_id,
            "hostname": agreed.hostname,
            "version": "V2",
            "remote_address": str(self.link.address),
            "state": self.state,
            "ready_count": consumer.rdy,
            "in_flight_count": consumer.in_flight,
            "message_count": consumer.message_count,
            "finish_count": consumer.finish_count,
            "requeue_count": consumer.requeue_count,
            "connect_ts": self._connect_time,
            "sample_rate": agreed.sample_rate,
            "deflate": isinstance(self.link.codec, Deflate),
            "snappy": isinstance(self.link.codec, Snappy),
            "user_agent": agreed.user_agent,
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
        return {**facts, **tls_layer.describe(self.link.tls)}

    def _admit(self, command: ClientCommand) -> None:
        """Check a line as nsqd does before it reads the body; raises ServerError."""
        name = command.name
        if name in (b"IDENTIFY", b"AUTH") and self.state != INIT:
            raise self._cannot(command)
        if name == b"IDENTIFY":
            return
        if self.link.tls is None and self._nsqd.tls_required:
            raise self._cannot(command, " (TLS required)")
        if name == b"AUTH" and len(command.words) != 1:
            raise ServerError("E_INVALID AUTH invalid number of parameters")
        if name in PUBLISHING:
            check_publish(command, self._nsqd.options.max_req_timeout)
        if name == b"MPUB":
            self._check_authed(command)
            self._nsqd.broker.topic(show(command.words[1]))

    def _identify(self, command: ClientCommand) -> None:
        self.negotiated = negotiate(command.body, self._nsqd.options)
        self.link.start_heartbeats(self.negotiated.heartbeat_interval / 1000)
        self.link.answer(response_frame(self.negotiated.reply(self._nsqd.options)))
        codec: Codec | None = None
        if self.negotiated.snappy:
            codec = Snappy()
        elif self.negotiated.deflate:
            codec = Deflate(self.negotiated.deflate_level)
        if self.negotiated.tls_v1 and self._nsqd.tls:
            self.link.secure(self._nsqd.tls, codec)
        else:
            self.link.compress(codec)

    def _authenticate(self, command: ClientCommand) -> None:
        if self._authed:
            raise ServerError("E_INVALID AUTH already set")
        if not self._nsqd.secret:
            raise ServerError("E_AUTH_DISABLED AUTH disabled")
        if not hmac.compare_digest(command.body, self._nsqd.secret):
            raise ServerError("E_AUTH_FAILED AUTH failed")
        self._authed = True
        self.link.answer(response_frame(_GRANTED))

    def _check_authed(self, command: ClientCommand) -> None:
        """Raise ServerError if the client must send AUTH first."""
        if self._nsqd.secret and not self._authed:
            raise ServerError(f"E_AUTH_FIRST AUTH required before {show(command.name)}")

    def _publish(self, command: ClientCommand) -> None:
        self._check_authed(command)
        topic, defer = show(command.words[1]), 0.0
        bodies = [command.body]
        if command.name == b"MPUB":
            bodies = split_bodies(command.body, self._nsqd.options)
        elif command.name == b"DPUB":
            defer = int(command.words[2]) / 1000
        self._nsqd.publish(topic, bodies, defer=defer)
        self.pub_counts[topic] = self.pub_counts.get(topic, 0) + len(bodies)
        self._answer_when_looked_up(topic)

    def _subscribe(self, command: ClientCommand) -> None:
        if self.state != INIT:
            raise self._cannot(command)
        if not self.negotiated.heartbeat_interval:
            raise ServerError("E_INVALID cannot SUB with heartbeats disabled")
        if len(command.words) < 3:
            raise ServerError("E_INVALID SUB insufficient number of parameters")
        for kind, word in zip(("topic", "channel"), command.words[1:], strict=False):
            check_name(word, "SUB", kind)
        self._check_authed(command)
        topic, name = show(command.words[1]), show(command.words[2])
        channel = self._nsqd.broker.topic(topic).channel(name)
        limit = self._nsqd.options.max_channel_consumers
        if limit and len(channel.consumers) >= limit:
            text = f"consumers for {topic}:{name} exceeds limit of {limit}"
            raise ServerError(f"E_SUB_FAILED SUB failed {text}")
        timeout = self.negotiated.msg_timeout / 1000
        self.consumer = ChannelConsumer(self, timeout, self.negotiated.sample_rate)
        self.consumer.blocked = self.link.blocked
        self.channel = channel
        channel.add(self.consumer)
        self.state = SUBSCRIBED
        self._answer_when_looked_up(topic)

    def _answer_when_looked_up(self, topic: str) -> None:
        """Respond OK after a new topic's channels have been looked up (nsqd.go, GetTopic)."""
        self.link.answer(_OK)
        if topic in self._nsqd.lookups:
            self.link.suspend(self._nsqd.looked_up(topic))

    def _ready(self, command: ClientCommand) -> None:
        if self.state == CLOSING:
            return
        consumer, channel = self._subscription(command)
        word = command.words[1] if len(command.words) > 1 else b"1"
        limit, count = self._nsqd.options.max_rdy_count, to_number(word)
        if count is None:
            raise ServerError(f"E_INVALID RDY could not parse count {show(word)}")
        if count > limit:
            raise ServerError(f"E_INVALID RDY count {count} out of range 0-{limit}")
        consumer.rdy = count
        channel.changed()

    def _finish(self, command: ClientCommand) -> None:
        consumer, channel = self._subscription(command)
        channel.finish(consumer, message_id(command.words, 2))

    def _requeue(self, command: ClientCommand) -> None:
        consumer, channel = self._subscription(command)
        id_ = message_id(command.words, 3)
        delay = to_number(command.words[2])
        if delay is None:
            text = f"REQ could not parse timeout {show(command.words[2])}"
            raise ServerError(f"E_INVALID {text}")
        seconds = min(delay / 1000, self._nsqd.options.max_req_timeout)
        channel.requeue(consumer, id_, seconds, self._nsqd.now)

    def _touch(self, command: ClientCommand) -> None:
        consumer, channel = self._subscription(command)
        channel.touch(consumer, message_id(command.words, 2), self._nsqd.now)

    def _start_close(self, command: ClientCommand) -> None:
        consumer, _ = self._subscription(command)
        if self.state == CLOSING:
            raise self._cannot(command)
        consumer.rdy = 0
        self.state = CLOSING
        self.link.answer(response_frame(b"CLOSE_WAIT"))

    def _subscription(self, command: ClientCommand) -> tuple[ChannelConsumer, Channel]:
        """Return consumer and channel; raises ServerError without a subscription."""
        if not self.consumer or not self.channel:
            raise self._cannot(command)
        return self.consumer, self.channel

    def _cannot(self, command: ClientCommand, why: str = "") -> ServerError:
        return ServerError(f"E_INVALID cannot {show(command.name)} in current state{why}")
