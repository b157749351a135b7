"""What is asked of an nsqd that does not allow it, and what is told of a secret in clear."""

import json
import logging
from collections.abc import Callable

import pytest

from nsqtools.errors import RefusedError
from nsqtools.net import tls
from tests.support.clock import elapse
from tests.support.scripted import Network, Recorder, ScriptedNsqd, consume, running

ASKED = ("heartbeat_interval", "output_buffer_timeout", "output_buffer_size")


def refusing(*names: str) -> Callable[[str], str | None]:
    """Refuses the first of these that IDENTIFY holds, as nsqd does."""

    def refuse(text: str) -> str | None:
        if text.startswith("IDENTIFY"):
            body = json.loads(text.partition(" ")[2])
            for name in names:
                if name in body:
                    return f"E_BAD_BODY IDENTIFY {name.replace('_', ' ')} ({body[name]}) is invalid"
        return None

    return refuse


def identified(nsqd: ScriptedNsqd) -> list[set[str]]:
    """Which of the values each IDENTIFY had."""
    bodies = [text.partition(" ")[2] for _, text in nsqd.log if text.startswith("IDENTIFY")]
    return [set(ASKED) & json.loads(body).keys() for body in bodies]


async def test_each_value_that_is_refused_is_left_out_once(
    nsqd: ScriptedNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    nsqd.refuses = refusing(*ASKED)
    nsqd.publish(b"1")
    recorder = Recorder()
    async with running(consume(recorder, nsqd)):
        await elapse(1)
        assert recorder.seen == [(1, 1)]
        assert identified(nsqd) == [set(ASKED), set(ASKED[1:]), set(ASKED[2:]), set()]
        said = [text for text in caplog.messages if "refuses" in text]
        assert len(said) == 3
        assert all("nsqd:4150" in text for text in said)
        # nsqd's own interval of heartbeats may be longer than the one that was asked for.
        nsqd.clients[0].heartbeat = 100.0
        await elapse(400)
        assert len(nsqd.dials) == 4


@pytest.mark.parametrize(
    "text",
    [
        "E_BAD_BODY IDENTIFY output buffer size (65536) is invalid",
        "E_BAD_BODY IDENTIFY client id (1) is invalid",
        "E_BAD_BODY IDENTIFY failed to decode JSON body",
    ],
)
async def test_an_nsqd_that_refuses_whatever_is_asked_is_not_asked_for_ever(
    nsqd: ScriptedNsqd, text: str
) -> None:
    nsqd.refuses = lambda said: text if said.startswith("IDENTIFY") else None
    with pytest.raises(RefusedError, match="E_BAD_BODY IDENTIFY"):
        await consume(Recorder(), nsqd).run()
    assert len(nsqd.dials) == (2 if "output" in text or "client" in text else 1)


async def test_a_value_that_was_given_is_named_and_not_left_out(nsqd: ScriptedNsqd) -> None:
    nsqd.refuses = refusing("output_buffer_size")
    with pytest.raises(RefusedError, match="lower --consumer-opt output_buffer_size"):
        await consume(Recorder(), nsqd, output_buffer_size=70_000).run()
    assert len(nsqd.dials) == 1


@pytest.mark.parametrize(
    ("name", "auth", "warned"), [("nsqd", True, 1), ("nsqd", False, 0), ("127.0.0.9", True, 0)]
)
async def test_a_secret_that_others_can_read_is_warned_of_once(
    network: Network,
    name: str,
    auth: bool,
    warned: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls, "_in_clear", [])
    nsqds = [network.nsqd(name, auth_required=auth), network.nsqd("other", auth_required=False)]
    for _ in range(2):
        async with running(consume(Recorder(), *nsqds, auth_secret="s3cret")):
            await elapse(1)
    said = [text for text in caplog.messages if "without TLS" in text]
    assert len(said) == warned
    assert all("nsqd:4150" in text and "s3cret" not in text for text in said)
