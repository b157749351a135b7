"""One TCP client of the embedded nsqd (protocol_v2.go, client_v2.go).

A read is worked off in one loop and answered in one write; messages leave in batches, from the
broker's tick. While a command waits for something (an authd, a TLS handshake), the ones behind it
wait too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Any

from nsqtools.errors import AuthError, CodecError, ProtocolError, ServerError
from nsqtools.names import Address
from nsqtools.proto.codecs import Deflate, Snappy
from nsqtools.sandbox import tls, wire
from nsqtools.sandbox.auth import Grant, Question
from nsqtools.sandbox.consumer import Consumer
from nsqtools.sandbox.identify import Settings, negotiate, parse_identify
from nsqtools.sandbox.wire import show

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Mapping

    from nsqtools.proto.codecs import Codec
    from nsqtools.sandbox.broker import Channel
    from nsqtools.sandbox.consumer import Message
    from nsqtools.sandbox.identify import Negotiated
    from nsqtools.sandbox.nsqd import Nsqd
    from nsqtools.sandbox.wire import Command

log = logging.getLogger(__name__)

INIT, SUBSCRIBED, CLOSING = 0, 3, 4
"""States, as ``/stats`` numbers them."""

_HANDSHAKE_TIMEOUT = 5.0
_LINGER = 5.0
"""Seconds that the last words may take to leave."""
_HIGH_WATER = 1 << 16


class Client(asyncio.Protocol):
    """A connection. Facts of it for ``/stats`` come from ``stats``."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._options = options = nsqd.options
        self.settings = Settings("", "", options.msg_timeout)
        self.state = INIT
        self.address = Address("", 0)
        self.pub_counts: dict[str, int] = {}
        self.consumer: Consumer | None = None
        self.channel: Channel | None = None
        self.grant: Grant | None = None
        self.connect_time = int(time.time())
        self._secret = b""
        self._loop = asyncio.get_running_loop()
        self._raw: asyncio.Transport | None = None
        self._transport: asyncio.Transport | None = None
        self._tls: ssl.SSLObject | None = None
        self._codec: Codec | None = None
        self._parser = wire.CommandParser(
            self._admit,
            max_msg_size=options.max_msg_size,
            max_body_size=options.max_body_size,
            max_req_timeout=options.max_req_timeout,
        )
        self._magic: bytes | None = b""
        self._out: list[bytes] = []
        self._busy = self._closed = self._ended = False
        self._blocked = self._choked = self._stuck = False
        self._heard = 0.0
        self._heartbeat: asyncio.TimerHandle | None = None
        self._eviction: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._commands: Mapping[bytes, Callable[[Command], None]] = {
            b"IDENTIFY": self._identify,
            b"FIN": self._finish,
            b"RDY": self._ready,
            b"REQ": self._requeue,
            b"PUB": self._publish,
            b"MPUB": self._publish,
            b"DPUB": self._publish,
            b"NOP": self._nothing,
            b"TOUCH": self._touch,
            b"SUB": self._subscribe,
            b"CLS": self._start_close,
            b"AUTH": self._authenticate,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: a client has dialled."""
        assert isinstance(transport, asyncio.Transport)
        self._raw = self._transport = transport
        self.address = Address(*(transport.get_extra_info("peername") or ("", 0))[:2])
        self.settings.client_id = self.settings.hostname = self.address.host

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the connection is gone."""
        self._leave()
        for timer in (self._heartbeat, self._eviction, self._deadline):
            if timer:
                timer.cancel()
        self._nsqd.detach(self)

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes."""
        if self._closed:
            return
        if self._magic is not None:
            data = self._introduce(data)
        try:
            if not self._codec:
                self._parser.feed(data)
            else:
                for piece in self._codec.decode(data):
                    self._parser.feed(piece)
        except CodecError as error:
            log.warning("%s: %s", self.address, error)
            self._hang_up()
        self._work()

    def eof_received(self) -> bool:
        """asyncio's: nothing more will come. What has come is worked off and answered."""
        self._ended = True
        if self._busy:
            return self._tls is None
        self._end()
        return False

    def pause_writing(self) -> None:
        """asyncio's: the peer does not take what was sent; nsqd gives it one interval."""
        self._blocked = True
        if self.consumer:
            self.consumer.blocked = True
        interval = self.settings.heartbeat_interval
        if interval and not self._stuck and self._transport:
            self._deadline = self._loop.call_later(interval, self._give_up, self._unsent())

    def resume_writing(self) -> None:
        """asyncio's: the peer goes on."""
        if self._stuck:
            return
        self._blocked = False
        if self._deadline:
            self._deadline.cancel()
        if self.consumer and self.channel:
            self.consumer.blocked = False
            self.channel.changed()
        if self._choked:
            self._choked = False
            self._resume_reading()
            self._work()

    def deliver(self, messages: list[Message]) -> None:
        """Subscriber's: send messages."""
        self._write(wire.messages(messages))

    def close(self) -> None:
        """Subscriber's: the channel is gone, so is the connection, without a word."""
        self._hang_up()

    def abort(self) -> None:
        """Cut the connection."""
        self._leave()
        if self._raw:
            self._raw.abort()

    def stats(self, topic: str) -> dict[str, Any]:
        """The entry in ``/stats``, where pub_counts has one topic at most, as nsqd's."""
        settings, grant, consumer = self.settings, self.grant, self.consumer
        facts: dict[str, Any] = {
            "client_id": settings.client_id,
            "hostname": settings.hostname,
            "version": "V2",
            "remote_address": str(self.address),
            "state": self.state,
            "ready_count": consumer.rdy if consumer else 0,
            "in_flight_count": consumer.in_flight if consumer else 0,
            "message_count": consumer.message_count if consumer else 0,
            "finish_count": consumer.finish_count if consumer else 0,
            "requeue_count": consumer.requeue_count if consumer else 0,
            "connect_ts": self.connect_time,
            "sample_rate": settings.sample_rate,
            "deflate": isinstance(self._codec, Deflate),
            "snappy": isinstance(self._codec, Snappy),
            "user_agent": settings.user_agent,
        }
        if grant and grant.authorizations:
            facts["authed"] = True
        if grant and grant.identity:
            facts["auth_identity"] = grant.identity
        if grant and grant.identity_url:
            facts["auth_identity_url"] = grant.identity_url
        counts = [
            {"topic": name, "count": count}
            for name, count in self.pub_counts.items()
            if topic in ("", name)
        ]
        if counts:
            facts["pub_counts"] = counts[:1]
        return {**facts, **tls.describe(self._tls)}

    def _introduce(self, data: bytes) -> bytes:
        """Check the magic; returns what is behind it."""
        magic = (self._magic or b"") + data[: len(wire.MAGIC) - len(self._magic or b"")]
        rest = data[len(magic) - len(self._magic or b"") :]
        self._magic = magic
        if len(magic) < len(wire.MAGIC):
            return b""
        if magic != wire.MAGIC:
            log.warning("%s: bad protocol magic %r", self.address, magic)
            self._out.append(wire.error("E_BAD_PROTOCOL"))
            self._hang_up()
            return b""
        self._magic = None
        self._nsqd.attach(self)
        self._start_clocks()
        return rest

    def _work(self) -> None:
        """Work off the commands that are complete, and answer them at once."""
        commands, following = self._commands, self._parser.next
        worked = False
        try:
            while not self._busy and not self._closed and not self._choked:
                if not (command := following()):
                    break
                worked = True
                if not (execute := commands.get(command.words[0])):
                    name = show(command.words[0])
                    raise ServerError(f"E_INVALID invalid command {name}")
                execute(command)
        except ServerError as error:
            self._refuse(error)
        except ProtocolError as error:
            log.warning("%s: %s", self.address, error)
            self._hang_up()
        if worked:
            self._heard = self._loop.time()
        self._flush()
        if self._ended and not self._busy and not self._choked:
            self._end()

    def _end(self) -> None:
        if not self._closed:
            if text := self._parser.end():
                self._out.append(wire.error(text))
            self._hang_up()

    def _admit(self, words: list[bytes]) -> None:
        """What must be right before a command's body is read; raises ServerError."""
        if words[0] == b"IDENTIFY":
            if self.state != INIT:
                raise ServerError("E_INVALID cannot IDENTIFY in current state")
            return
        if self._tls is None and self._nsqd.tls_required != "false":
            text = f"cannot {show(words[0])} in current state (TLS required)"
            raise ServerError(f"E_INVALID {text}")
        if words[0] == b"AUTH":
            if self.state != INIT:
                raise ServerError("E_INVALID cannot AUTH in current state")
            if len(words) != 1:
                raise ServerError("E_INVALID AUTH invalid number of parameters")

    def _identify(self, command: Command) -> None:
        wishes = parse_identify(command.body)
        self.settings.apply(wishes, self._options)
        self._start_clocks()
        if not wishes.feature_negotiation:
            self._out.append(wire.response(b"OK"))
            return
        negotiated = negotiate(
            wishes,
            self.settings,
            self._options,
            has_tls=self._nsqd.tls is not None,
            auth_required=self._nsqd.secrets is not None,
        )
        self._out.append(wire.response(negotiated.reply))
        if negotiated.tls:
            self._suspend(self._secure(negotiated))
        else:
            self._compress(negotiated)
        self._flush()

    async def _secure(self, negotiated: Negotiated) -> None:
        """TLS; a failed handshake ends the connection."""
        assert self._transport
        assert self._nsqd.tls
        self._parser.clear()
        try:
            transport = await self._loop.start_tls(
                self._transport,
                self,
                self._nsqd.tls,
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE_TIMEOUT,
            )
        except OSError as error:
            log.warning("%s: TLS: %s", self.address, error)
            self.abort()
            return
        if not transport:  # the connection was cut meanwhile
            return
        transport.set_write_buffer_limits(_HIGH_WATER)
        self._transport = transport
        self._tls = transport.get_extra_info("ssl_object")
        self._out.append(wire.response(b"OK"))
        self._compress(negotiated)

    def _compress(self, negotiated: Negotiated) -> None:
        """Switch to compression, if negotiated, and say so in it."""
        if not negotiated.snappy and not negotiated.deflate_level:
            return
        self._flush()
        self._parser.clear()
        self._codec = Snappy() if negotiated.snappy else Deflate(negotiated.deflate_level)
        self._out.append(wire.response(b"OK"))

    def _authenticate(self, command: Command) -> None:
        if self.grant and self.grant.authorizations:
            raise ServerError("E_INVALID AUTH already set")
        if not self._nsqd.secrets:
            raise ServerError("E_AUTH_DISABLED AUTH disabled")
        self._secret = command.body
        self._suspend(self._present_secret())

    async def _present_secret(self) -> None:
        grant = await self._ask()
        if not grant.authorizations:
            raise ServerError("E_UNAUTHORIZED AUTH no authorizations found")
        reply = {
            "identity": grant.identity,
            "identity_url": grant.identity_url,
            "permission_count": len(grant.authorizations),
        }
        data = json.dumps(reply, separators=(",", ":"), ensure_ascii=False)
        self._out.append(wire.response(data.encode("utf-8", "replace")))

    async def _ask(self) -> Grant:
        assert self._nsqd.secrets
        name = tls.common_name(self._tls)
        question = Question(self._secret, self.address.host, self._tls is not None, name)
        try:
            self.grant = await self._nsqd.secrets.ask(question)
        except AuthError as error:
            log.warning("%s: AUTH failed: %s", self.address, error)
            raise ServerError("E_AUTH_FAILED AUTH failed") from None
        return self.grant

    def _may(self, command: Command, topic: str, channel: str = "") -> bool:
        """Whether AUTH allows it; raises ServerError if not.

        False when that must be asked first: the command is carried out later.
        """
        if not self._nsqd.secrets:
            return True
        grant = self.grant
        if not grant or not grant.authorizations:
            raise ServerError(f"E_AUTH_FIRST AUTH required before {show(command.name)}")
        if grant.expires < self._loop.time():
            self._suspend(self._ask_again(command, topic, channel))
            return False
        self._check_grant(grant, command, topic, channel)
        return True

    async def _ask_again(self, command: Command, topic: str, channel: str) -> None:
        self._check_grant(await self._ask(), command, topic, channel)
        self._commands[command.name](command)

    def _check_grant(self, grant: Grant, command: Command, topic: str, channel: str) -> None:
        if not grant.allows(topic, channel):
            what = f"{show(command.name)} on {wire.quote(topic.encode())}"
            raise ServerError(
                f"E_UNAUTHORIZED AUTH failed for {what} {wire.quote(channel.encode())}"
            )

    def _subscribe(self, command: Command) -> None:
        if self.state != INIT:
            raise ServerError("E_INVALID cannot SUB in current state")
        if not self.settings.heartbeat_interval:
            raise ServerError("E_INVALID cannot SUB with heartbeats disabled")
        if len(command.words) < 3:
            raise ServerError("E_INVALID SUB insufficient number of parameters")
        for kind, word in zip(("topic", "channel"), command.words[1:], strict=False):
            if not wire.is_name(word):
                text = f"SUB {kind} name {wire.quote(word)} is not valid"
                raise ServerError(f"E_BAD_{kind.upper()} {text}")
        topic, name = command.words[1].decode(), command.words[2].decode()
        if not self._may(command, topic, name):
            return
        channel = self._nsqd.broker.topic(topic).channel(name)
        limit = self._options.max_channel_consumers
        if limit and len(channel.consumers) >= limit:
            text = f"consumers for {topic}:{name} exceeds limit of {limit}"
            raise ServerError(f"E_SUB_FAILED SUB failed {text}")
        self.consumer = Consumer(self, self.settings.msg_timeout, self.settings.sample_rate)
        self.consumer.blocked = self._blocked
        self.channel = channel
        channel.add(self.consumer)
        self.state = SUBSCRIBED
        self._out.append(wire.response(b"OK"))

    def _ready(self, command: Command) -> None:
        if self.state == CLOSING:
            return
        consumer, channel = self._subscription(command, closing=False)
        count = 1
        if len(command.words) > 1:
            number = wire.to_number(command.words[1])
            if number is None:
                text = f"RDY could not parse count {show(command.words[1])}"
                raise ServerError(f"E_INVALID {text}")
            count = wire.to_signed(number)
        if not 0 <= count <= self._options.max_rdy_count:
            limit = self._options.max_rdy_count
            raise ServerError(f"E_INVALID RDY count {count} out of range 0-{limit}")
        consumer.rdy = count
        channel.changed()

    def _finish(self, command: Command) -> None:
        consumer, channel = self._subscription(command)
        id_ = wire.message_id(command.words, 2)
        if problem := channel.finish(consumer, id_):
            self._fail(command, id_, problem)

    def _requeue(self, command: Command) -> None:
        consumer, channel = self._subscription(command)
        id_ = wire.message_id(command.words, 3)
        number = wire.to_number(command.words[2])
        if number is None:
            text = f"REQ could not parse timeout {show(command.words[2])}"
            raise ServerError(f"E_INVALID {text}")
        delay = wire.to_signed(number * 10**6) / 10**9
        delay = min(max(delay, 0.0), self._options.max_req_timeout)
        if problem := channel.requeue(consumer, id_, delay, self._loop.time()):
            self._fail(command, id_, problem)

    def _touch(self, command: Command) -> None:
        consumer, channel = self._subscription(command)
        id_ = wire.message_id(command.words, 2)
        if problem := channel.touch(consumer, id_, self._loop.time()):
            self._fail(command, id_, problem)

    def _fail(self, command: Command, id_: bytes, problem: str) -> None:
        """An error that is not fatal."""
        name = show(command.name)
        self._out.append(wire.error(f"E_{name}_FAILED {name} {show(id_)} failed {problem}"))

    def _start_close(self, command: Command) -> None:
        consumer, _ = self._subscription(command, closing=False)
        consumer.rdy = 0
        self.state = CLOSING
        self._out.append(wire.response(b"CLOSE_WAIT"))

    def _subscription(self, command: Command, *, closing: bool = True) -> tuple[Consumer, Channel]:
        """What was subscribed to; raises ServerError without, or if closing where that matters."""
        if not self.consumer or not self.channel or (self.state == CLOSING and not closing):
            raise ServerError(f"E_INVALID cannot {show(command.name)} in current state")
        return self.consumer, self.channel

    def _nothing(self, command: Command) -> None:
        pass

    def _publish(self, command: Command) -> None:
        topic = command.words[1].decode()
        if not self._may(command, topic):
            return
        now, delay = self._loop.time(), command.delay / 1000
        self._nsqd.broker.publish(topic, command.bodies, now=now, defer=delay)
        self.pub_counts[topic] = self.pub_counts.get(topic, 0) + len(command.bodies)
        self._out.append(_OK)

    def _suspend(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the commands behind this one wait for some work."""
        assert self._transport
        self._busy = True
        self._transport.pause_reading()
        self._nsqd.run(self._carry_on(work))

    async def _carry_on(self, work: Coroutine[Any, Any, None]) -> None:
        self._flush()
        try:
            self._busy = True
            await work
        except ServerError as error:
            self._refuse(error)
        self._busy = False
        self._heard = self._loop.time()
        self._resume_reading()
        self._work()

    def _refuse(self, error: ServerError) -> None:
        """Say why, and hang up."""
        log.warning("%s: %s", self.address, error.text)
        self._out.append(wire.error(error.text))
        self._hang_up()

    def _hang_up(self) -> None:
        """Close, once what was said has left."""
        if self._closed or not self._transport:
            return
        self._flush()
        self._leave()
        self._transport.close()
        self._deadline = self._loop.call_later(_LINGER, self.abort)

    def _leave(self) -> None:
        """Leave the channel: nothing is delivered any more."""
        self._closed = True
        if self.consumer and self.channel:
            self.channel.remove(self.consumer)

    def _flush(self) -> None:
        if self._out and not self._closed:
            data = b"".join(self._out)
            self._out.clear()
            if self._stuck:
                self.abort()
                return
            self._write(data)
            if self._blocked and self._transport:
                # As nsqd's loop of commands, which waits in its write.
                self._choked = True
                self._transport.pause_reading()

    def _write(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(self._codec.encode(data) if self._codec else data)

    def _resume_reading(self) -> None:
        if self._transport and not self._closed:
            self._transport.resume_reading()

    def _unsent(self) -> int:
        assert self._raw
        assert self._transport
        size = self._raw.get_write_buffer_size()
        if self._transport is not self._raw:
            size += self._transport.get_write_buffer_size()
        return size

    def _give_up(self, unsent: int) -> None:
        """A write has reached its deadline: no message or heartbeat is sent ever again.

        The connection lives on until the next reply, as nsqd's does (protocol_v2.go, Send).
        """
        if (left := self._unsent()) < unsent:
            interval = self.settings.heartbeat_interval
            self._deadline = self._loop.call_later(interval, self._give_up, left)
            return
        self._stuck = True
        if self._choked:
            self.abort()

    def _start_clocks(self) -> None:
        """Begin to send heartbeats, and to expect commands."""
        for timer in (self._heartbeat, self._eviction):
            if timer:
                timer.cancel()
        self._heard = self._loop.time()
        if interval := self.settings.heartbeat_interval:
            self._heartbeat = self._loop.call_later(interval, self._beat)
            self._eviction = self._loop.call_later(2 * interval, self._check_heard)

    def _beat(self) -> None:
        interval = self.settings.heartbeat_interval
        self._heartbeat = self._loop.call_later(interval, self._beat)
        if not self._busy and not self._stuck and not self._closed and not self._blocked:
            self._write(_HEARTBEAT)

    def _check_heard(self) -> None:
        """End a connection without a command for two intervals."""
        patience = 2 * self.settings.heartbeat_interval
        now = self._loop.time()
        waits = self._busy or self._choked
        if not waits and now >= self._heard + patience:
            log.warning("%s: no command for %g s", self.address, patience)
            self.abort()
            return
        due = now + patience if waits else self._heard + patience
        self._eviction = self._loop.call_at(due, self._check_heard)


_OK = wire.response(b"OK")
_HEARTBEAT = wire.response(b"_heartbeat_")
