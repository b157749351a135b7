"""Records that are held while they are read have a bound."""

from __future__ import annotations

import base64
import errno
import io
import json
import tracemalloc

import pytest

from nsqtools.sinks.recovery import inspect
from tests.sinks.test_recovery import COMPRESSED, Dribble, Endless, archive, envelope

MIB = 1 << 20


@pytest.mark.parametrize("name", ["none", *COMPRESSED])
def test_a_line_over_the_bound_is_an_error_that_names_the_option(name: str) -> None:
    limit = 30_000
    longest = limit * 4 // 3 + 65536
    start, end = b'{"body":"', b'"}'
    for size in (longest, longest + 1):
        line = start + b"x" * (size - len(start + end)) + end + b"\n"
        data = archive(name, [envelope("1"), line]).data
        for step in (len(data), 1009):
            file = Dribble(data, step)
            if size == longest:
                found = inspect(file, compression=name, json=True, max_msg_size=limit)
                assert (found.good, found.records, found.problem) == (len(data), 2, "")
            else:
                with pytest.raises(OSError, match=r"record 2: .* --max-msg-size 30000 ") as e:
                    inspect(file, compression=name, json=True, max_msg_size=limit)
                assert e.value.errno == errno.EFBIG


def test_the_longest_body_of_any_bytes_is_under_the_bound() -> None:
    body = base64.b64encode(bytes(MIB)).decode()
    line = json.dumps({"topic": "t" * 64, "id": "0" * 16, "body_b64": body}).encode() + b"\n"
    found = inspect(io.BytesIO(line), json=True, max_msg_size=MIB)
    assert (found.records, found.problem) == (1, "")


def test_a_line_without_an_end_is_never_held() -> None:
    file = Endless(b'{"body":"', b"x", 64 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match="--max-msg-size 1MiB"):
            inspect(file, json=True, max_msg_size=MIB)  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
