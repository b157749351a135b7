"""The pages of ``nsqtools ui``, and its changes, with real servers."""

import html
import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.process import Cli
from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd, fill, http, lookup, registered
from tests.support.tls import Certificates
from tests.support.visiting import Visited
from tests.support.webserver import Answer, WebServer


@pytest.fixture
def visited(nsqtools_cli: Cli, nsqd: Nsqd, tmp_path: Path) -> Visited:
    audit = ("--audit-log", str(tmp_path / "audit"))
    return Visited(nsqtools_cli, *http([nsqd]), "--allow-changes", *audit)


def test_topics_are_filtered_sorted_and_shown_with_what_doctor_finds(
    nsqtools_cli: Cli, nsqd: Nsqd
) -> None:
    for n in range(60):
        nsqd.create(f"quiet{n:02}")
    fill(nsqd, "orders", "archive", 3)
    visited = Visited(nsqtools_cli, *http([nsqd]))
    first = visited.get("/").text
    assert "61 topics" in first
    assert "page 1 of 2" in first
    assert first.index("orders") < first.index("quiet00")
    assert "<b>warning</b> <code>NSQ036</code> channel archive of topic orders: depth 3" in first
    by_name = visited.get("/?sort=name&page=2").text
    assert "quiet59" in by_name
    assert ">orders<" not in by_name.partition("doctor finds")[0]
    found = visited.get("/?q=ORD").text
    assert "1 topic " in found
    assert "quiet" not in found


def test_a_topic_and_a_channel_show_numbers_charts_and_consumers(
    visited: Visited, nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    fill(nsqd, topic, "c", 3)
    nsqtools_cli.start(
        "tail", "--topic", topic, "--channel", "busy", "--nsqd-tcp-address", str(nsqd.tcp)
    )
    page = eventually(lambda: _with(visited.get(f"/topic/{topic}").text, ">busy<"))
    assert f'href="/topic/{topic}/c"' in page
    assert page.count('<svg class="chart"') == 2
    page = eventually(lambda: _with(visited.get(f"/topic/{topic}/busy").text, "nsqtools/"))
    assert page.count('<svg class="chart"') == 7
    rate = r"<td>\d+</td><td>[1-9][\d.]*</td><td>0</td><td>0</td>"  # finished, but not requeued

    def finishes() -> bool:
        nsqd.publish(topic, [b"x"])
        return bool(re.search(rate, visited.get(f"/topic/{topic}/busy").text))

    eventually(finishes)
    assert f"<td>{nsqd.http}</td>" in page
    assert "no answering nsqd has channel none" in visited.get(f"/topic/{topic}/none").text
    assert f"topic {topic}" in visited.get(f"/doctor?topic={topic}&channel=c").text


def _with(text: str, part: str) -> str:
    return text if part in text else ""


def test_numbers_of_which_an_nsqd_did_not_answer_say_so(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    nsqds = [make_nsqd(lookupds=[nsqlookupd]) for _ in range(2)]
    for each in nsqds:
        fill(each, topic, "c", 2)
    registered(topic, [nsqlookupd], 2)
    visited = Visited(nsqtools_cli, *lookup([nsqlookupd]))
    lacks = 'class="lacks" title='
    assert lacks not in visited.get("/").text
    with visited.stream("/") as events:
        nsqds[1].kill()
        text = next(event for event in events if lacks in event)
    assert "Numbers are incomplete: no answer from 1 server" in text
    assert str(nsqds[1].http) in text
    page = visited.get(f"/topic/{topic}").text
    assert page.count(lacks) > 5
    assert "no answer: " in visited.get("/nodes").text


def entries(audit: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit.read_text().splitlines()]


def test_a_change_is_confirmed_made_logged_and_told(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, endpoint: WebServer
) -> None:
    fill(nsqd, topic, "c", 3)
    audit, told = tmp_path / "audit", ("--notification-http-endpoint", endpoint.url("/hook"))
    visited = Visited(
        nsqtools_cli, *http([nsqd]), "--allow-changes", "--audit-log", str(audit), *told
    )
    names = {"topic": topic, "channel": "c", "nsqd": ""}
    assert visited.post("/change", {"verb": "pause", **names}).status == 200
    assert nsqd.channel(topic, "c")["paused"]
    for entry, state in zip(entries(audit), ("begun", "done"), strict=True):
        about = (entry["action"], entry["state"], entry["topic"], entry["remote"])
        assert about == ("pause_channel", state, topic, "127.0.0.1")
    notice = json.loads(eventually(lambda: endpoint.requests)[0].body)
    assert (notice["action"], notice["channel"]) == ("pause_channel", "c")

    question = visited.get(f"/change?verb=delete&topic={topic}&channel=c").text
    assert "3 messages on 1 nsqd would be lost" in question
    for confirm in ("", topic, "C"):
        answer = visited.post("/change", {"verb": "delete", "confirm": confirm, **names})
        assert (answer.status, nsqd.channel(topic, "c")["depth"]) == (409, 3)
    assert visited.post("/change", {"verb": "delete", "confirm": "c", **names}).status == 200
    assert not nsqd.topic(topic)["channels"]
    names = {"topic": f"{topic}2", "channel": "", "nsqd": str(nsqd.http)}
    assert visited.post("/change", {"verb": "create", **names}).status == 200
    assert visited.get(f"/topic/{topic}2").status == 200


def test_an_endpoint_that_hangs_delays_no_change(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic)
    with WebServer(Answer(hangs=True)) as endpoint:
        told = ("--notification-http-endpoint", endpoint.url("/hook"))
        visited = Visited(nsqtools_cli, *http([nsqd]), "--allow-changes", *told)
        fields = {"verb": "pause", "topic": topic, "channel": "", "nsqd": ""}
        assert visited.post("/change", fields).status == 200
        visited.process.kill()
        assert "no response" not in visited.error()  # which is logged after 5 s


def test_a_change_on_one_nsqd_leaves_the_others_alone(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    nsqds = [make_nsqd(lookupds=[nsqlookupd]) for _ in range(2)]
    for each in nsqds:
        fill(each, topic, "c", 2)
    registered(topic, [nsqlookupd], 2)
    visited = Visited(nsqtools_cli, *lookup([nsqlookupd]), "--allow-changes")
    names = {"topic": topic, "channel": "c", "nsqd": str(nsqds[0].http), "confirm": "c"}
    assert visited.post("/change", {"verb": "empty", **names}).status == 200
    assert [each.channel(topic, "c")["depth"] for each in nsqds] == [0, 2]
    gone = {"verb": "tombstone", "topic": topic, "channel": "", "nsqd": str(nsqds[0].http)}
    assert visited.post("/change", gone).status == 200
    registered(topic, [nsqlookupd], 1)


def test_topics_that_only_nsqlookupd_knows_are_shown_and_deleted(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    holder = make_nsqd(lookupds=[nsqlookupd])
    fill(holder, f"{topic}-held", "c")
    registered(f"{topic}-held", [nsqlookupd])
    visited = Visited(nsqtools_cli, *lookup([nsqlookupd]), "--allow-changes")
    names = {"topic": topic, "channel": "ghost", "nsqd": ""}
    assert visited.post("/change", {"verb": "create", **names}).status == 200
    page = visited.get("/").text
    assert page.count("only nsqlookupd<") == 1
    page = visited.get(f"/topic/{topic}").text
    assert "Only nsqlookupd knows it" in page
    assert f'href="/topic/{topic}/ghost"' in page
    assert "Only nsqlookupd knows it" in visited.get(f"/topic/{topic}/ghost").text
    assert visited.get(f"/topic/{topic}/none").status == 404
    for name in ("ghost", topic):
        wanted = {"verb": "delete", "confirm": name, **names}
        assert visited.post("/change", wanted).status == 200
        assert visited.get(f"/topic/{topic}/ghost").status == 404
        names["channel"] = ""
    assert "only nsqlookupd<" not in visited.get("/").text


def test_behind_a_proxy_all_links_have_the_base_path(nsqtools_cli: Cli, nsqd: Nsqd) -> None:
    visited = Visited(nsqtools_cli, *http([nsqd]), "--base-path", "/nsq")
    assert visited.url.endswith("/nsq")
    assert visited.get("/nsq").headers["location"] == "/nsq/"
    page = visited.get("/nsq/").text
    links = re.findall(r'(?:href|src|action)="([^"]*)"', page)
    assert {link.partition("?")[0] for link in links} > {"/nsq/", "/nsq/static/ui.js", "/nsq/nodes"}
    assert all(link.startswith(("/nsq/", "#")) for link in links)
    assert visited.get("/nsq/static/ui.css").status == 200
    assert visited.get("/").status == 404
    assert visited.get("/nsq/nodes/").status == 404  # no redirect built from the Host header


def picks(page: str) -> list[str]:
    found = re.findall(r'name="pick" value="([^"]*)"', page)
    return [html.unescape(each) for each in found]


def test_messages_of_a_channel_are_looked_at_filtered_and_given_back(
    visited: Visited, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b'{"amount":5}', b'{"amount":500,"it":"<b>"}', b"\xff\x00"])
    eventually(lambda: _with(visited.get(f"/messages/{topic}/c").text, "costs each of them"))
    page = visited.post(f"/messages/{topic}/c", {"count": "3"}).text
    assert "3 messages received, 3 shown" in page
    assert "&#34;amount&#34;: 500" in page
    assert "<b>&#34;" not in page
    assert "00000000  ff 00" in page
    assert f"nsqtools pub --topic {topic} --json &#39;{{" in page
    assert eventually(lambda: nsqd.channel(topic, "c")["depth"]) == 3
    page = visited.post(f"/messages/{topic}/c", {"count": "3", "jq": ".amount > 100"}).text
    assert "3 messages received, 1 shown" in page
    assert "2 attempts" in page
    page = visited.post(f"/messages/{topic}/c", {"count": "3", "q": '"AMOUNT":5}'}).text
    assert "3 messages received, 1 shown" in page
    large = visited.post(f"/messages/{topic}/c", {"jq": '"x" * 1000000000 | length > 0'})
    assert (large.status, "and 512 MiB" in large.text) == (400, True)
    assert visited.post(f"/messages/{topic}/c", {"jq": ".["}).status == 400
    assert nsqd.channel(topic, "c")["requeue_count"] == 9  # of three looks


def test_a_look_ends_at_a_message_near_the_limit_of_attempts_unless_it_is_allowed(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"1", b"2", b"3"])
    path = f"/messages/{topic}/c"

    def shows(visited: Visited) -> str:
        return _with(visited.get(path).text, "costs each of them")

    def looked(visited: Visited, **fields: str) -> tuple[int, str, int]:
        """The status and sentence of a look, and the number of messages given back so far."""
        answer = visited.post(path, {"count": "3", **fields})
        said = re.search(r"\d+ messages? received", answer.text)
        eventually(lambda: nsqd.channel(topic, "c")["depth"] == 3)
        return answer.status, said[0] if said else "", nsqd.channel(topic, "c")["requeue_count"]

    for restart in range(2):
        visited = Visited(nsqtools_cli, *http([nsqd]), "--allow-changes")
        eventually(partial(shows, visited))
        if not restart:
            for count in (3, 6, 9):
                assert looked(visited) == (200, "3 messages received", count)
        assert looked(visited) == (200, "1 message received", 10 + restart)
        assert looked(visited) == (409, "", 10 + restart)
        assert "with 4 attempts" in visited.get(path).text
    nsqd.create(topic, "e#ephemeral")
    eventually(lambda: _with(visited.get(f"/topic/{topic}").text, "e#ephemeral"))
    assert visited.post(f"/messages/{topic}/e%23ephemeral", {"count": "3"}).status == 409
    assert nsqd.channel(topic, "e#ephemeral")["depth"] == 0  # and it is still there
    endless = "range(1e18) | select(. < 0)"
    assert looked(visited, worn="yes", jq=endless) == (200, "3 messages received", 14)
    assert 'name="worn"' in visited.get(path).text


def test_messages_are_shown_and_filtered_as_decoded_and_published_as_they_were(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    visited = Visited(nsqtools_cli, *http([nsqd]), "--allow-changes", "--decode", "msgpack")
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"\x81\xa6amount\x05", b"\x81\xa6amount\xcd\x01\xf4", b"\xff\xff"])
    eventually(lambda: _with(visited.get(f"/messages/{topic}/c").text, "costs each of them"))
    page = visited.post(f"/messages/{topic}/c", {"count": "3"}).text
    assert "&#34;amount&#34;: 500" in page
    assert page.count("json, decoded") == 2
    assert "bytes, did not decode" in page
    page = visited.post(f"/messages/{topic}/c", {"count": "3", "jq": ".amount > 100"}).text
    assert "3 messages received, 1 shown" in page
    (picked,) = picks(page)
    assert json.loads(picked)[1] == "gaZhbW91bnTNAfQ="


def test_messages_are_shown_although_the_decoder_fails(nsqtools_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.dead.jsonl").write_text('{"reason":"r","topic":"t","body":"shown"}\n' * 3)
    options = ("--dead-letter-dir", str(tmp_path), "--decode", "cmd:false")
    page = Visited(nsqtools_cli, *http([]), *options).get("/dead/t.dead.jsonl")
    assert (page.status, "shown" in page.text) == (200, True)
    assert "--decode cmd:false: the program ended with status 1" in page.text


def test_copies_of_a_topic_leave_its_channels_alone_even_for_readers(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    visited = Visited(nsqtools_cli, *http([nsqd]))
    nsqd.create(topic)
    nsqd.publish(topic, [b"waits"])
    copy = {"token": visited.reader_token(f"/messages/{topic}"), "count": "2"}
    assert visited.post(f"/messages/{topic}", copy).status == 409  # it would take what waits
    nsqd.create(topic, "c")
    eventually(lambda: _with(visited.get(f"/topic/{topic}").text, ">c<"))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(visited.post, f"/messages/{topic}", copy)
        eventually(lambda: len(nsqd.topic(topic)["channels"]) == 2)
        nsqd.publish(topic, [b"new one", b"new two"])
        page = asked.result().text
    assert "2 messages received, 2 shown" in page
    assert "new two" in page
    assert nsqd.channel(topic, "c")["depth"] == 3
    eventually(lambda: len(nsqd.topic(topic)["channels"]) == 1)
    assert visited.post(f"/messages/{topic}/c", copy).status == 403


def test_copies_are_refused_without_a_channel_that_stays_whatever_the_picture_says(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic)
    visited = Visited(nsqtools_cli, *http([nsqd]), "--allow-changes", "--interval", "1s")
    nsqd.create(topic, "c")
    copy = {"token": visited.token(), "count": "1"}
    eventually(lambda: _with(visited.get(f"/topic/{topic}").text, ">c<"))
    nsqd.delete(topic, "c")
    assert visited.post(f"/messages/{topic}", copy).status == 409
    assert nsqd.topic(topic)["channels"] == []
    tail = ("tail", "--topic", topic, "--channel", "tail#ephemeral")
    nsqtools_cli.start(*tail, "--nsqd-tcp-address", str(nsqd.tcp))
    eventually(lambda: _with(visited.get(f"/topic/{topic}").text, ">tail#ephemeral<"))
    assert visited.post(f"/messages/{topic}", copy).status == 409


def _field(page: str, name: str) -> str:
    """The value of a hidden field."""
    found = re.search(f'type="hidden" name="{name}" value="([^"]*)"', page)
    assert found
    return found[1]


def test_dead_letters_are_edited_and_published_again_with_a_log(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic, "c")
    folder = tmp_path / "dead"
    folder.mkdir()
    lines = [
        {"reason": "bad & worse \ud800", "topic": topic, "timestamp": 10**18, "body": "one\ntwo"},
        {"reason": "", "topic": topic, "body_b64": "/wA="},
        {"reason": "", "topic": topic, "body": "a\r\nb\r", "timestamp": 10**400},
        {"reason": "", "topic": topic, "body": "stays"},
    ]
    text = "\n".join(map(json.dumps, lines)) + "\n{broken}\n" + '{"reason":"torn'
    (folder / f"{topic}.dead.jsonl").write_text(text)
    (folder / "secret").write_text("secret")
    (folder / "link.dead.jsonl").symlink_to(folder / "secret")
    audit = tmp_path / "audit"
    options = ("--dead-letter-dir", str(folder), "--allow-changes", "--audit-log", str(audit))
    visited = Visited(nsqtools_cli, *http([nsqd]), *options)
    assert "link.dead" not in visited.get("/dead").text
    for name in ("secret", "link.dead.jsonl", "..%2fsecret", "%2e%2e"):
        assert visited.get(f"/dead/{name}").status == 404
    page = visited.get(f"/dead/{topic}.dead.jsonl").text
    assert "bad &amp; worse" in page
    assert "not JSON" in page
    many = "".join(json.dumps({"reason": "", "body": f"n{n}"}) + "\n" for n in range(300))
    (folder / "many.dead.jsonl").write_text(many)
    assert picks(visited.get("/dead/many.dead.jsonl?q=N299").text)
    (folder / "many.dead.jsonl").unlink()
    chosen = picks(page)[:3]
    source = _field(page, "source")
    form = [("token", visited.token()), ("target", topic), ("source", source)]
    page = visited.post("/edit", [*form, *(("pick", each) for each in chosen)]).text
    assert _field(page, "source") == source
    assert "one\ntwo</textarea>" in page
    assert page.count("<textarea") == 1  # a browser would change the line ends of the third
    nonce = ("nonce", _field(page, "nonce"))
    fields = [("topic", topic), ("source", source), ("rate", "1000"), nonce]
    sent = [("token", visited.token()), *fields, *(("pick", each) for each in picks(page))]
    emptied = visited.post("/publish", [*sent, ("text0", "")])
    assert (emptied.status, "message 1 is empty" in emptied.text) == (400, True)
    for _ in range(2):  # a double click
        assert visited.post("/publish", [*sent, ("text0", "one\r\n2")]).status == 303
    eventually(lambda: nsqd.channel(topic, "c")["depth"] == 3)
    log = eventually(lambda: _with(visited.get("/publications").text, "3 of 3 messages"))
    assert log.count("<section>") == 1
    begun, ended = eventually(lambda: entries(audit)[1:] and entries(audit))
    first = begun["messages"][0]
    assert first.pop("from").startswith(f"{topic}.dead.jsonl byte 0 crc ")
    assert first == {"bytes": 5, "sha256": sha256(b"one\n2").hexdigest()}
    assert (ended["state"], ended["published"], ended["failed"]) == ("done", 3, 0)
    assert f", 5 bytes: published to {topic}" in log
    done = nsqtools_cli(
        "tail", "--topic", topic, "--channel", "c", "-n", "3", "--nsqd-tcp-address", str(nsqd.tcp)
    )
    assert done.stdout == b"one\n2\n\xff\x00\na\r\nb\r\n"
    page = visited.get(f"/dead/{topic}.dead.jsonl").text
    assert page.count("(published again)") == 3
    plan = nsqtools_cli("redrive", "--from-dir", str(folder), "--topic", topic, "--dry-run")
    assert plan.stdout == f"{topic}\t-\t1\n".encode()


def test_messages_of_a_dead_letter_topic_are_finished_once_they_are_published(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    dead = f"{topic}.dead"
    nsqd.create(dead, "c")
    nsqd.publish(dead, [b"%d" % n for n in range(5)])
    visited = Visited(nsqtools_cli, *http([nsqd]), "--allow-changes")
    eventually(lambda: _with(visited.get(f"/topic/{dead}/c").text, "<dd>5 "))
    page = visited.post(f"/messages/{dead}/c", {"count": "10"}).text
    source = _field(page, "source")
    chosen = [("pick", each) for each in picks(page)[1:3]]
    form = [("token", visited.token()), ("target", _field(page, "target")), ("source", source)]
    page = visited.post("/edit", [*form, *chosen]).text
    assert 'value="yes">' in page
    assert "touches up to 5 messages" in page
    sent = [("topic", topic), ("source", source), ("rate", "100"), ("finish", "yes"), *chosen]
    for wrong in (("topic", dead), ("source", f"{dead}/none"), ("source", "nosuch/c")):
        assert visited.post("/publish", [form[0], wrong, *sent]).status in (400, 409)
    assert visited.post("/publish", [form[0], *sent]).status == 303
    eventually(lambda: _with(visited.get("/publications").text, "2 of 2 messages"))
    assert nsqd.channel(topic, "c")["depth"] == 2
    eventually(lambda: nsqd.channel(dead, "c")["depth"] == 3)
    assert visited.post("/publish", [form[0], *sent]).status == 303
    gone = eventually(lambda: _with(visited.get("/publications").text, "2 failed"))
    assert f"{dead}/c has it no longer" in gone
    assert nsqd.channel(topic, "c")["depth"] == 2
    found = nsqd.channel(dead, "c")
    assert found["deferred_count"] == 0
    assert found["requeue_count"] <= 5 + 3 + 3  # the look, and two passes of the search
    slow = [each for each in sent if each[0] != "rate"]
    assert visited.post("/publish", [form[0], *slow, ("rate", "0.03")]).status == 400
    nsqd.publish(dead, [b"x"] * 1998)
    page = visited.post("/edit", [*form, *chosen]).text
    assert "2,001 messages" in page
    assert 'name="finish"' not in page
    assert visited.post("/publish", [form[0], *sent]).status == 400
    assert nsqd.channel(dead, "c")["requeue_count"] == found["requeue_count"]


def test_a_publication_is_stopped_at_once_and_the_end_of_the_process_stops_it_too(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic, "c")
    nsqd.create(f"{topic}.dead", "c")
    nsqd.publish(f"{topic}.dead", [b"%d" % n for n in range(4)])
    letters = "".join(json.dumps({"reason": "", "body": f"n{n}"}) + "\n" for n in range(4))
    (tmp_path / f"{topic}.dead.jsonl").write_text(letters)
    audit = tmp_path / "audit"
    options = ("--dead-letter-dir", str(tmp_path), "--allow-changes", "--audit-log", str(audit))
    visited = Visited(nsqtools_cli, *http([nsqd]), *options)
    eventually(lambda: _with(visited.get(f"/topic/{topic}.dead/c").text, "<dd>4 "))
    looked = visited.post(f"/messages/{topic}.dead/c", {"count": "4"}).text
    file = visited.get(f"/dead/{topic}.dead.jsonl").text
    slow = [("token", visited.token()), ("topic", topic), ("rate", "0.07")]
    for page, finish in ((looked, "yes"), (looked, ""), (file, "")):
        chosen = [("pick", each) for each in picks(page)]
        sent = [*slow, ("source", _field(page, "source")), ("finish", finish), *chosen]
        assert visited.post("/publish", sent).status == 303
    page = eventually(lambda: _times(3, visited.get("/publications").text, "1 of 4 messages"))
    copied, moved = re.findall('name="job" value="([^"]*)"', page)[1:]
    for job in (copied, moved):
        assert visited.post("/stop", {"job": job}).status == 303
    page = eventually(lambda: _times(2, visited.get("/publications").text, "3 failed</b>, stopped"))
    assert page.count("not published: stopped") == 6
    assert page.count(">Stop</button>") == 1
    for job in (copied, "none"):
        assert visited.post("/stop", {"job": job}).status == 404
    visited.process.send_signal(signal.SIGTERM)
    assert visited.error() == ""
    ended = [each for each in entries(audit) if each["action"] == "publish_again"][3:]
    assert [(each["published"], each["failed"]) for each in ended] == [(1, 3)] * 3
    assert {each["error"] for each in ended[2]["failures"]} == {"not published: stopped"}
    assert nsqd.channel(topic, "c")["depth"] == 3
    eventually(lambda: nsqd.channel(f"{topic}.dead", "c")["depth"] == 3)


def _times(count: int, text: str, part: str) -> str:
    return text if text.count(part) == count else ""


def test_what_a_page_lets_choose_fits_a_form(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    bodies = ["%" * size for size in (900_000, 700_000, 90_000)]
    lines = [json.dumps({"reason": "", "body": body}) + "\n" for body in bodies]
    (tmp_path / "large.dead.jsonl").write_text("".join(lines))
    options = ("--dead-letter-dir", str(tmp_path), "--allow-changes")
    visited = Visited(nsqtools_cli, *http([nsqd]), *options)
    assert picks(visited.get("/dead/large.dead.jsonl").text) == []
    chosen = picks(visited.get(f"/dead/large.dead.jsonl?start={len(lines[0])}").text)
    assert len(chosen) == 1  # with the third message, they would be too large together
    fields = [("token", visited.token()), ("topic", topic), ("pick", chosen[0])]
    assert visited.post("/publish", [*fields, ("text0", bodies[1])]).status == 303
    eventually(lambda: nsqd.topic(topic)["depth"] == 1)


def test_a_look_at_a_channel_finds_messages_wherever_they_are(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqds = [make_nsqd() for _ in range(3)]
    for nsqd, count in zip(nsqds, (0, 4, 1), strict=True):
        nsqd.create(topic, "c")
        nsqd.publish(topic, [b"x"] * count)
    visited = Visited(nsqtools_cli, *http(nsqds), "--allow-changes", "--interval", "10m")
    nsqds[0].publish(topic, [b"after the only poll"] * 3)
    for wanted, received in (("4", 4), ("100", 8)):
        page = visited.post(f"/messages/{topic}/c", {"count": wanted}).text
        assert f"{received} messages received" in page


def test_the_servers_are_listed_with_the_topics_of_a_chosen_nsqd(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    fill(nsqd, topic, "c", 2)
    registered(topic, [nsqlookupd])
    visited = Visited(nsqtools_cli, *lookup([nsqlookupd]))
    page = visited.get("/nodes").text
    assert f'<th scope="row">{nsqlookupd.http}</th><td class="">answers</td><td>1</td>' in page
    assert f">{topic}<" not in page
    assert "<td>1 of 1</td>" in page
    nsqd.create("unheard")
    page = eventually(lambda: _with(visited.get(f"/nodes?nsqd={nsqd.http}").text, ">unheard<"))
    line = page.partition(f">{topic}</a></th>\n")[2].partition("</tr>")[0]
    assert line == "<td>2</td><td>1</td><td>0</td><td>2</td>"


@pytest.mark.nsqd_only("the sandbox has no HTTPS")
def test_an_nsqd_is_asked_and_changed_with_a_client_certificate(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, certificates: Certificates, topic: str
) -> None:
    nsqd = make_nsqd(*certificates.strict_nsqd_args())
    fill(nsqd, topic, "c")
    asked = ("--nsqd-http-address", f"https://{nsqd.https}", "--tls-v1", "--allow-changes")
    trust = ("--tls-root-ca-file", str(certificates.ca), *certificates.client.options())
    visited = Visited(nsqtools_cli, *asked, *trust)
    assert "<dd>3 " in visited.get(f"/topic/{topic}/c").text
    names = {"topic": topic, "channel": "c", "nsqd": ""}
    assert visited.post("/change", {"verb": "pause", **names}).status == 200
    assert nsqd.channel(topic, "c")["paused"]
    assert visited.post("/change", {"verb": "unpause", **names}).status == 200
    page = visited.post(f"/messages/{topic}/c", {"count": "3"}).text
    assert "3 messages received" in page
    nsqd.create(f"{topic}x")
    fields = {"topic": f"{topic}x", "source": f"{topic}/c", "finish": "1", "pick": picks(page)[0]}
    assert visited.post("/publish", fields).status == 303
    eventually(lambda: _with(visited.get("/publications").text, "1 of 1 message published"))
    assert visited.post("/publish", fields).status == 303
    eventually(lambda: _with(visited.get("/publications").text, f"{topic}/c has it no longer"))


def test_a_signal_ends_it_without_a_word_while_browsers_look(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    fill(nsqd, topic, "c")
    visited = Visited(nsqtools_cli, *http([nsqd]))
    fields = {"token": visited.reader_token(f"/messages/{topic}")}
    with visited.stream("/") as events, ThreadPoolExecutor(1) as pool:
        assert next(events)
        pool.submit(visited.post, f"/messages/{topic}", fields)
        eventually(lambda: len(nsqd.topic(topic)["channels"]) == 2)
        visited.process.send_signal(signal.SIGINT)
        assert visited.error() == ""
    assert visited.process.returncode == 130
