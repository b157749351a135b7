"""``to-http`` finishes a message when it is safe: with batches, every endpoint, slow ones, signals,
dead letters, and what the exit code and the status lines tell.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.posting import DIRECT
from tests.support.webserver import HANG, OK, Answer, WebServer, per_message, retry_after

if TYPE_CHECKING:
    from tests.support.posting import Posting
    from tests.support.process import Cli
    from tests.support.webserver import Request

CLOSING = 4  # the state of a client that has sent CLS
BATCH = ("--batch", "10", "--batch-format", "json-array")


def taken(*servers: WebServer) -> Counter[object]:
    """How often each JSON value was in a batch that was answered with 200."""
    good = [each for web in servers for each in web.requests if each.status == 200]
    found = [json.loads(request.body) for request in good]
    return Counter(
        value for each in found for value in (each if isinstance(each, list) else [each])
    )


@pytest.mark.parametrize("code", [400, 404])
def test_one_message_that_is_refused_takes_no_other_with_it(posting: Posting, code: int) -> None:
    """Its batch is tried again one by one, and then it alone."""
    posting.publish([*(b"%d" % number for number in range(30)), b'"poison"'])
    with WebServer(
        lambda request: Answer(status=code if b"poison" in request.body else 200)
    ) as web:
        posting.start("--post", web.url(), *BATCH, *posting.dead_after(2)).finish()
        assert taken(web) == dict.fromkeys(range(30), 1)
        refused = [json.loads(each.body) for each in web.requests if each.status == code]
        assert [len(batch) for batch in refused][1:] == [1] * (len(refused) - 1)
        assert len(refused) == (2 if len(refused[0]) == 1 else 3)
        assert max(web.deliveries.values()) == len(refused)
    (letter,) = posting.dead_letters()
    assert letter["body"] == '"poison"'


def test_one_message_of_a_batch_is_dropped_and_the_others_are_not(posting: Posting) -> None:
    posting.publish([*(b"%d" % number for number in range(30)), b'"poison"'])
    with WebServer(lambda request: Answer(status=409 if b"poison" in request.body else 200)) as web:
        options = *BATCH, "--drop-on", "409", *posting.dead_after(0)
        posting.start("--post", web.url(), *options).finish()
        assert taken(web) == dict.fromkeys(range(30), 1)
    assert [letter["reason"][:10] for letter in posting.dead_letters()] == ["status 409"]


def test_what_is_no_json_is_not_sent_in_a_batch_of_json(posting: Posting) -> None:
    bad = [b"{", b"NaN", b"\xff", b"1 2"]
    posting.publish([*(b"%d" % number for number in range(30)), *bad])
    with WebServer() as web:
        posting.start("--post", web.url(), *BATCH, *posting.dead_after(1)).finish()
        assert taken(web) == dict.fromkeys(range(30), 1)
        assert sum(len(json.loads(request.body)) for request in web.requests) == 30
    assert len(posting.dead_letters()) == len(bad)


@pytest.mark.parametrize(
    "answer", [retry_after("0", 429), Answer(cut="body")], ids=["429", "cut off"]
)
def test_a_batch_that_fails_comes_again_as_a_whole(posting: Posting, answer: Answer) -> None:
    answers = iter([answer, answer])
    posting.publish(b"%d" % number for number in range(50))
    with WebServer(lambda _: next(answers, Answer(close=True))) as web:
        posting.start("--post", web.url(), *BATCH).finish()
        kept = [each for each in web.requests[2:] if each.status == 200]
        assert len(kept) == len(web.requests) - 2
        bodies = Counter(value for each in kept for value in json.loads(each.body))
        assert bodies == dict.fromkeys(range(50), 1)


def test_a_batch_does_not_wait_longer_than_it_is_told_to(posting: Posting) -> None:
    with WebServer() as web:
        batch = "--post", web.url(), "--batch", "1000"
        poster = posting.start(*batch, "--batch-wait", "1m", "-v")
        poster.says("connected to")
        posting.publish([b"1", b"2", b"3"])
        # The first one may come while no more are asked for, and is sent alone.
        eventually(lambda: posting.channel()["in_flight_count"] == 3 - len(web.deliveries) > 1)
        assert poster.end() == 0  # to stop is not to wait
        assert sum(web.deliveries.values()) == 3
        posting.publish([b"4"])
        posting.start(*batch, "--batch-wait", "10ms").finish()
        assert web.requests[-1].body == b"4\n"


@pytest.mark.parametrize("batch", [(), BATCH], ids=["single", "batches"])
def test_in_mode_all_who_has_taken_a_message_does_not_get_it_again(
    posting: Posting, batch: tuple[str, ...]
) -> None:
    posting.publish([b"1", b"2"])
    failing = per_message(Answer(status=500), Answer(cut="body"))
    with WebServer() as one, WebServer(failing) as other, WebServer() as third:
        posts = [word for web in (one, other, third) for word in ("--post", web.url())]
        posting.start("--mode", "all", *posts, *batch, "-n", "1").finish()
        for web, count in ((one, 1), (other, 3), (third, 1)):
            assert list(web.deliveries.values()) == [count] * 2
        assert list(other.accepted().values()) == [1, 1]


def test_in_mode_all_a_dead_endpoint_keeps_messages_from_no_other(posting: Posting) -> None:
    """They are finished when it is back, and it gets each once."""
    posting.numbers(20)
    with WebServer() as dead, WebServer() as one, WebServer() as other:
        dead.refuse()
        posts = [word for web in (dead, one, other) for word in ("--post", web.url())]
        poster = posting.start("--mode", "all", *posts)
        eventually(lambda: len(one.deliveries) == len(other.deliveries) == 20)
        assert not posting.is_drained
        dead.listen()
        poster.finish()
        for web in (dead, one, other):
            assert list(web.deliveries.values()) == [1] * 20


@pytest.mark.parametrize("batch", [(), BATCH], ids=["single", "batches"])
def test_in_mode_all_who_drops_a_message_does_not_take_it(
    posting: Posting, batch: tuple[str, ...]
) -> None:
    """It is a dead letter even if another endpoint had to be asked twice; the others of its batch
    are delivered to all.
    """
    posting.publish([*(b"%d" % number for number in range(20)), b'"poison"'])
    unready = iter([Answer(status=500)] * 2)

    def fussy(request: Request) -> Answer:
        return Answer(status=409 if b"poison" in request.body else 200)

    with WebServer(fussy) as one, WebServer(lambda _: next(unready, OK)) as other:
        posts = "--post", one.url(), "--post", other.url(), "-n", "1"
        options = "--mode", "all", "--drop-on", "409", *posting.dead_after(0), *batch
        posting.start(*posts, *options).finish()
        good = Counter[object](range(20))
        assert taken(one) == good
        assert taken(other) == good + Counter(["poison"])
    assert [letter["reason"][:10] for letter in posting.dead_letters()] == ["status 409"]


def test_in_mode_all_an_endpoint_that_is_gone_is_left_out(posting: Posting) -> None:
    posting.numbers(20)
    with WebServer(Answer(status=410)) as gone, WebServer() as one, WebServer() as other:
        posts = [word for web in (one, gone, other) for word in ("--post", web.url())]
        poster = posting.start("--mode", "all", *posts, "-n", "1", "--max-attempts", "1")
        poster.finish()
        assert len(gone.requests) == 1
        for web in (one, other):
            assert list(web.deliveries.values()) == [1] * 20
        assert f"{gone.url()}: gone (status 410)" in poster.said


def test_an_endpoint_slower_than_the_message_timeout_gets_a_message_once(posting: Posting) -> None:
    """While a request runs, and while messages wait for their turn, nsqd hears of them."""
    posting.publish([b"1", b"2", b"3", b"4"])
    answers = iter([Answer(delay=4.0), Answer(delay=4.0)])
    with WebServer(lambda _: next(answers, OK)) as web:
        posting.start("--post", web.url(), "--msg-timeout", "1500ms", "-n", "2").finish()
        assert list(web.deliveries.values()) == [1] * 4
    channel = posting.channel()
    assert (channel["timeout_count"], channel["requeue_count"]) == (0, 0)


def test_dead_letters_are_published_as_they_are(posting: Posting) -> None:
    dead = f"{posting.topic}.dead"
    posting.nsqd.create(dead, "c")
    posting.publish([b"1", b"\xff\0\n"])
    with WebServer(Answer(status=404)) as web:
        options = "--max-attempts", "2", "--dead-letter-topic", dead
        posting.start("--post", web.url(), *options).finish()
        assert list(web.deliveries.values()) == [2, 2]
    ended = posting.cli(
        *("tail", "--topic", dead, "--channel", "c", "--count", "2", "--json"),
        *("--nsqd-tcp-address", str(posting.nsqd.tcp)),
    )
    bodies = [json.loads(line) for line in ended.stdout.splitlines()]
    assert sorted(each.get("body", each.get("body_b64")) for each in bodies) == ["/wAK", "1"]


def test_a_place_for_dead_letters_that_fails_is_told_once_and_then_as_a_count(
    posting: Posting,
) -> None:
    file = posting.folder / f"dead/{posting.topic}.dead.jsonl"
    file.parent.mkdir()
    file.symlink_to(posting.folder / "mine")
    posting.numbers(20)
    with WebServer(Answer(status=404)) as web:
        options = "--drop-on", "404", "--dead-letter-dir", str(file.parent)
        poster = posting.start("--post", web.url(), *options)
        eventually(lambda: posting.channel()["requeue_count"] > 200, timeout=30)
        assert not (posting.folder / "mine").exists()
        file.unlink()
        poster.finish()
    told = [line for line in poster.said.splitlines() if "is a symbolic link" in line]
    assert len(told) <= 4  # more than one only if a minute has passed
    assert sum(int(re.findall(r" (\d+) messages", line)[0]) for line in told) > 200
    assert len(posting.dead_letters()) == 20


def test_dead_letters_are_posted_until_they_are_taken(posting: Posting) -> None:
    """One whose target refuses it is not finished, and costs its endpoint no more requests."""
    posting.publish([b"1", b"2"])
    refusals = iter([Answer(status=500), Answer(cut="request"), Answer(status=302)])
    with (
        WebServer(Answer(status=400)) as web,
        WebServer(lambda _: next(refusals, Answer(close=True))) as target,
    ):
        options = "--max-attempts", "2", "--dead-letter-url", target.url("/dead?key=h1dden")
        poster = posting.start("--post", web.url(), *options)
        poster.finish()
        assert list(web.deliveries.values()) == [2, 2]
        assert len(target.requests) == 5
        letters = [json.loads(request.body) for request in target.requests[3:]]
        assert {request.target for request in target.requests} == {"/dead?key=h1dden"}
    assert sorted(letter["body"] for letter in letters) == ["1", "2"]
    assert {letter["reason"] for letter in letters} == {"too many attempts"}
    assert "dead-letter URL" in poster.said
    assert "h1dden" not in poster.said


def test_messages_that_are_given_up_with_no_place_for_them_are_status_4(posting: Posting) -> None:
    posting.publish([b"1", b"2"])
    with WebServer(Answer(status=404)) as web:
        poster = posting.start("--post", web.url(), "--max-attempts", "1")
        poster.drain()
        ids = list(web.deliveries)
        assert poster.end() == 4
    assert all(re.search(f"are lost: .*{identity}", poster.said) for identity in ids)


def test_a_signal_lets_requests_end_and_gives_back_the_rest(posting: Posting) -> None:
    """What was sent is delivered once, the rest stays."""
    posting.numbers(200)
    with WebServer() as web:
        web.hold()
        poster = posting.start("--post", web.url(), "-n", "10", "--max-in-flight", "50")
        eventually(lambda: posting.channel()["in_flight_count"] == 50 and len(web.requests) == 10)
        poster.process.send_signal(signal.SIGTERM)
        eventually(lambda: posting.channel()["requeue_count"] == 40)
        web.release()
        assert poster.process.wait(20) == 0
        assert len(web.deliveries) == web.deliveries.total() == 10
        assert web.accepted() == web.deliveries
        channel = posting.channel()
        assert (channel["depth"], channel["in_flight_count"]) == (190, 0)
        assert channel["requeue_count"] == 40
        posting.start("--post", web.url()).finish()
        assert len(web.deliveries) == web.deliveries.total() == 200
    assert poster.said == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_endpoints_are_down_gives_messages_back(
    posting: Posting, number: signal.Signals
) -> None:
    posting.numbers(20)
    with WebServer() as web:
        web.refuse()
        poster = posting.start("--post", web.url(), "-n", "1")
        eventually(lambda: posting.channel()["requeue_count"] >= 5)
        assert poster.end(number) == (0 if number == signal.SIGTERM else 130)
        channel = posting.channel()
        assert channel["in_flight_count"] == 0
        assert channel["depth"] + channel["deferred_count"] == 20
        web.listen()
        posting.start("--post", web.url()).finish()
        assert list(web.deliveries.values()) == [1] * 20


def test_a_request_that_does_not_end_is_left_when_the_drain_is_over(posting: Posting) -> None:
    posting.numbers(5)
    with WebServer(HANG) as web:
        poster = posting.start("--post", web.url(), "--drain-timeout", "500ms")
        eventually(lambda: len(web.requests) == 5)
        assert poster.end() == 1
        web.script = OK
        posting.start("--post", web.url()).finish()
        assert list(web.deliveries.values()) == [2] * 5


def test_a_second_signal_leaves_at_once(posting: Posting) -> None:
    posting.numbers(5)
    with WebServer(HANG) as web:
        poster = posting.start("--post", web.url(), "--msg-timeout", "1s")
        eventually(lambda: len(web.requests) == 5)
        poster.process.send_signal(signal.SIGTERM)
        eventually(lambda: posting.channel()["clients"][0]["state"] == CLOSING)
        with pytest.raises(subprocess.TimeoutExpired):
            poster.process.wait(0.5)  # two that come at once are one
        assert poster.end() == 1
        web.script = OK
        posting.start("--post", web.url()).finish()
        assert list(web.deliveries.values()) == [2] * 5


def test_count_stops_after_so_many_messages_are_delivered(posting: Posting) -> None:
    posting.numbers(50)
    with WebServer([Answer(status=500)] * 3) as web:
        ended = posting.cli(
            *posting.command("--post", web.url(), "--count", "7"),
            *("--nsqd-tcp-address", str(posting.nsqd.tcp)),
            env=DIRECT,
        )
        assert ended.code == 0
        assert sum(web.accepted().values()) == 7
    channel = posting.channel()
    assert channel["depth"] + channel["deferred_count"] + channel["in_flight_count"] == 43
    posting.nsqd.empty(posting.topic, "c")


def test_until_empty_ends_when_all_is_delivered(posting: Posting) -> None:
    posting.numbers(50)
    with WebServer([Answer(status=500), retry_after("1"), Answer(cut="body")]) as web:
        ended = posting.run("--post", web.url(), "-q")
        assert (ended.code, ended.stdout, ended.stderr) == (0, b"", "")
        assert len(web.deliveries) == 50
        assert web.deliveries.total() == 53


def test_status_lines_count_messages(posting: Posting) -> None:
    posting.numbers(25)
    with WebServer(lambda each: Answer(status=404 if each.body == b"7" else 200)) as web:
        options = "--status-every", "10", "-n", "1", *posting.dead_after(1)
        poster = posting.start("--post", web.url("/in?key=h1dden"), *options, "--drop-on", "404")
        poster.finish()
    lines = [line for line in poster.said.splitlines() if " delivered, " in line]
    assert len(lines) == 3
    assert "24 delivered, 0 failed, 1 dropped, latency " in lines[-1]
    assert "h1dden" not in poster.said


def test_a_dead_nsqd_is_status_3(nsqtools_cli: Cli) -> None:
    with WebServer() as web:
        source = "--topic", "t", "--nsqd-tcp-address", "127.0.0.1:1"
        ended = nsqtools_cli("to-http", *source, "--post", web.url(), env=DIRECT)
    assert (ended.code, ended.stdout) == (3, b"")
    assert ended.stderr == "nsqtools: 127.0.0.1:1: connection refused\n"


def test_a_place_for_dead_letters_that_cannot_be_made_is_status_1(posting: Posting) -> None:
    (posting.folder / "file").touch()
    posting.publish([b"1"])
    with WebServer() as web:
        options = "--post", web.url(), "--dead-letter-dir", "file/dead"
        poster = posting.start(*options)
        assert poster.process.wait(20) == 1
        assert web.requests == []
    assert "file/dead" in poster.said
    assert poster.said.count("\n") == 1
    posting.nsqd.empty(posting.topic, "c")
