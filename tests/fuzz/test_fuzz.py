"""A million hostile dialogues with NSQTOOLS_TEST_FULL=1, a fifth of that in CI, fewer elsewhere.

NSQTOOLS_FUZZ_COUNT sets how many, NSQTOOLS_FUZZ_SEED which.
"""

from __future__ import annotations

import os
import re

import pytest

from nsqtools.proto.session import Session
from tests.support import fuzzer, wire

FULL, CI = os.environ.get("NSQTOOLS_TEST_FULL") == "1", os.environ.get("CI") == "true"
COUNT = int(
    os.environ.get("NSQTOOLS_FUZZ_COUNT") or (1_000_000 if FULL else 200_000 if CI else 50_000)
)
SEED = int(os.environ.get("NSQTOOLS_FUZZ_SEED") or 20_120_815)

REACHED = {
    "no error",
    "closed as it should be",
    "AuthError",
    "CloseWait",
    "CodecError",
    "ConnectError",
    "ConnectionLostError",
    "FrameSizeError",
    "HTTPPortError",
    "Message",
    "ProtocolError",
    "Ready",
    "RefusedError",
    "Reply",
    "ServerError",
    "TLSRequested",
    "UnknownFrameError",
}


def test_only_documented_errors_come_of_hostile_dialogues() -> None:
    seen = fuzzer.fuzz(SEED, COUNT)
    assert seen == REACHED or (COUNT < 10_000 and seen < REACHED)


@pytest.mark.parametrize("target", fuzzer.TARGETS, ids=lambda target: target.name)
def test_a_dialogue_that_is_not_mutated_is_taken_to_its_end(target: fuzzer.Target) -> None:
    seen = fuzzer.run(target, list(target.dialogue))
    assert seen <= REACHED - {"ProtocolError", "FrameSizeError", "UnknownFrameError", "CodecError"}


def test_a_failure_tells_its_seed_and_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(session: Session, data: bytes) -> None:
        if wire.OK in data:
            raise ValueError("a bug")

    monkeypatch.setattr(Session, "receive_data", break_down)
    with pytest.raises(AssertionError) as caught:
        fuzzer.fuzz(7, 10_000)
    found = re.fullmatch(r"seed 7, input \d+: ValueError: a bug\nreplay\((.+)\)", str(caught.value))
    assert found
    name, *reads = (text.strip("'") for text in found[1].split(", "))
    with pytest.raises(ValueError, match="a bug"):
        fuzzer.replay(name, *reads)
    with pytest.raises(AssertionError, match=re.escape(found[0][:30])):
        fuzzer.fuzz(7, 10_000)
