"""What a page must refuse: foreign pages and hosts, forms without a token, paths, slow clients."""

import base64
import contextlib
import json
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from nsqtools.config.ui import UiOptions, read_passwords
from nsqtools.errors import ConfigError
from tests.support.eventually import eventually
from tests.support.process import Cli
from tests.support.servers import Nsqd, at, fill, http
from tests.support.visiting import Visited
from tests.support.webserver import Answer, Request, WebServer

MARKUP = "<script>alert(1)</script>"
FORM = {"verb": "pause", "channel": "", "nsqd": ""}


def basic(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def test_foreign_pages_hosts_and_paths_are_refused(nsqtools_cli: Cli, nsqd: Nsqd) -> None:
    visited = Visited(nsqtools_cli, *http([nsqd]), "--allow-changes", "--server-name", "nsq.test")
    for host, status in (
        ("evil.test", 421),
        (f"evil.test:{visited.netloc.split(':')[1]}", 421),
        ("127.0.0.1.evil.test", 421),
        ("", 421),
        ("nsq.test", 200),
        ("localhost:1", 200),
    ):
        assert visited.get("/", Host=host).status == status, host
    for origin in ("http://evil.test", "null", f"http://evil.test@{visited.netloc}"):
        assert visited.get("/", Origin=origin).status == 403, origin
        answer = visited.post("/change", {"topic": "t", **FORM}, Origin=origin)
        assert (answer.status, "a proxy must pass" in answer.text) == (403, True)
    assert visited.get("/", Origin=f"http://{visited.netloc}").status == 200
    for path in (
        "/../../etc/passwd",
        "/static/ui.js/../../access.py",
        "/static/..%2f..%2faccess.py",
        "/%2e%2e/access.py",
        "/topic/..%2f..%2f",
        "/topic/%3Cscript%3E",
        f"/topic/{'x' * 70}",
    ):
        answer = visited.get(path)
        assert answer.status in (400, 404), path
        assert "<script>" not in answer.text.replace('<script src="/static/ui.js" defer>', "")
    assert visited.ask("PUT", "/").status == 405
    assert visited.get("/static/ui.js").status == 200


def test_pages_of_others_can_link_here_but_neither_load_parts_nor_aim_a_key(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic)
    visited = Visited(nsqtools_cli, *http([nsqd]), "--allow-changes")
    path = f"/change?verb=pause&topic={topic}"
    for site, dest, status, is_aimed in (
        *(("cross-site", dest, 403, False) for dest in ("image", "empty", "iframe", "script")),
        ("same-site", "image", 403, False),
        ("cross-site", "document", 200, False),
        ("same-origin", "document", 200, True),
        ("same-origin", "empty", 200, True),
        ("none", "document", 200, True),
    ):
        answer = visited.get(path, Sec_Fetch_Site=site, Sec_Fetch_Dest=dest)
        assert (answer.status, "autofocus" in answer.text) == (status, is_aimed), (site, dest)
    assert visited.get(path).status == 200  # of a program, or a browser of before 2023


def test_what_a_visitor_sends_is_refused_without_a_traceback(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    fill(nsqd, topic, "c", 1)
    visited = Visited(nsqtools_cli, *http([nsqd]), "--allow-changes")
    assert visited.get("/", Origin="http://[").status == 403
    assert visited.get(f"/?page={'1' * 5000}").status == 200
    for program in ("\0", "." + " " * 200_000):
        assert visited.post(f"/messages/{topic}/c", {"jq": program}).status == 400
    thrice = [("text0", "x")] * 3 + [("pick", '["", "eA=="]'), ("topic", topic)]
    assert visited.post("/publish", [("token", visited.token()), *thrice]).status == 303
    host, port = visited.netloc.split(":")
    with socket.create_connection((host, int(port))) as link:
        form = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9"
        link.sendall(f"POST /change HTTP/1.1\r\nHost: {host}\r\n{form}\r\n\r\nx=".encode())
    assert visited.get("/").status == 200
    visited.process.terminate()
    assert "Traceback" not in visited.error()


def test_readers_who_keep_servers_busy_are_limited(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    visited = Visited(nsqtools_cli, *http([nsqd]), "--allow-changes")
    copy = {"token": visited.token(), "count": "1"}
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(visited.post, f"/messages/{topic}", copy) for _ in range(8)]
        eventually(lambda: len(nsqd.topic(topic)["channels"]) == 9)
        assert visited.get(f"/doctor?topic={topic}").status == 503
        assert visited.get("/").status == 200
        nsqd.publish(topic, [b"x"])
        assert {each.result().status for each in asked} == {200}
    assert visited.get(f"/doctor?topic={topic}").status == 200


def test_a_change_needs_the_token_of_the_visitor_and_permission(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    fill(nsqd, topic, "c")
    passwords = tmp_path / "passwords"
    passwords.write_text("ann:secret: with a colon\nbob:other\n")
    passwords.chmod(0o600)
    users = ("--password-file", str(passwords), "--admin-user", "ann")
    visited = Visited(nsqtools_cli, *http([nsqd]), "--allow-changes", *users)
    ann, bob = basic("ann", "secret: with a colon"), basic("bob", "other")
    fields = {**FORM, "topic": topic}
    for wrong in (
        "",
        basic("ann", "other"),
        basic("eve", ""),
        basic("", ""),
        "Basic !",
        "Bearer x",
    ):
        answer = visited.get("/", **({"Authorization": wrong} if wrong else {}))
        assert (answer.status, "Basic realm" in answer.headers["www-authenticate"]) == (401, True)
    assert visited.get("/ping").text == "OK"
    assert "read-only" in visited.get("/", Authorization=bob).text
    token = visited.token({"Authorization": ann})
    assert visited.post("/change", {**fields, "token": ""}, Authorization=ann).status == 403
    assert visited.post("/change", {**fields, "token": token}, Authorization=bob).status == 403
    assert visited.post("/change", {**fields, "token": token[:-1]}, Authorization=ann).status == 403
    assert visited.get("/change?verb=pause&topic=t", Authorization=ann).status in (200, 404)
    assert not nsqd.topic(topic)["paused"]
    assert visited.post("/change", fields, Authorization=ann).status == 200
    assert nsqd.topic(topic)["paused"]
    visited.process.terminate()
    assert "unknown user or wrong password from 127.0.0.1" in visited.error()


def test_a_page_without_allow_changes_changes_nothing(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    fill(nsqd, topic, "c")
    visited = Visited(nsqtools_cli, *http([nsqd]), "--acl-http-header", "X-User")
    assert visited.get("/").status == 403
    with closing(HTTPConnection(visited.netloc)) as connection:
        connection.putrequest("GET", "/")
        for name in ("eve", "ann"):
            connection.putheader("X-User", name)
        connection.endheaders()
        assert connection.getresponse().status == 403
    page = visited.get(f"/change?verb=pause&topic={topic}", X_User="ann").text
    assert "the page is read-only" in page
    assert "token" not in page
    form = {"Content-Type": "application/x-www-form-urlencoded", "X-User": "ann"}
    assert visited.ask("POST", "/change", f"verb=pause&topic={topic}", form).status == 403
    assert not nsqd.topic(topic)["paused"]


def test_other_hosts_are_served_only_with_users() -> None:
    for address in ("0.0.0.0:4171", "[::]:4171", "10.0.0.1:4171", "example.test:4171"):
        with pytest.raises(ConfigError, match="--password-file"):
            UiOptions(address=address)
        UiOptions(address=address, acl_http_header="X-User")
    for name in ("https://nsq.test/", "nsq.test:8443", "nsq test", ""):
        with pytest.raises(ConfigError, match="without a port"):
            UiOptions(server_name=("nsq.test", name))
    UiOptions(server_name=("nsq.test", "nsq"))
    with pytest.raises(ConfigError, match="X-Forwarded-User"):
        UiOptions(acl_http_header="X-User: ann")
    for address in ("127.0.0.1:0", ":4171", "[::1]:4171", "localhost:4171"):
        UiOptions(address=address)


def test_a_user_is_named_by_one_header_and_a_server_without_a_port(
    nsqtools_cli: Cli, nsqd: Nsqd
) -> None:
    visited = Visited(nsqtools_cli, *http([nsqd]), "--acl-http-header", "X-User")
    host, port = visited.netloc.split(":")
    for users, status in ((("ann",), b"200"), (("ann", "proxy"), b"403")):
        with socket.create_connection((host, int(port))) as link:
            lines = "".join(f"X-User: {user}\r\n" for user in users)
            link.sendall(f"GET / HTTP/1.0\r\nHost: {host}\r\n{lines}\r\n".encode())
            assert link.makefile("rb").readline().split()[1] == status
    for name in ("nsq.test:443", "https://nsq.test", "nsq.test/"):
        with pytest.raises(ConfigError, match="without a port"):
            UiOptions(server_name=(name,))


def test_an_admin_is_a_user_of_the_password_file(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("ann:secret\n")
    passwords.chmod(0o600)
    options = UiOptions(password_file=str(passwords), admin_user=("ann",))
    assert read_passwords(options) == {"ann": "secret"}
    with pytest.raises(ConfigError, match="--admin-user anna"):
        read_passwords(options.with_values(admin_user=("ann", "anna")))


def test_an_endpoint_is_checked_at_the_start() -> None:
    for url in ("http://u:p@hooks/x", "http://hooks:99999/", "ftp://hooks/", "hooks/x"):
        with pytest.raises(ConfigError):
            UiOptions(notification_http_endpoint=url)
    UiOptions(notification_http_endpoint="https://hooks/x?y=1")


def test_what_servers_and_clients_say_is_never_markup(nsqtools_cli: Cli, nsqd: Nsqd) -> None:
    """An nsqlookupd and an nsqd of somebody else: names of hosts, versions, clients, health."""
    client = {
        "connect_ts": 1 << 62,
        "client_id": MARKUP,
        "hostname": MARKUP,
        "user_agent": MARKUP,
        "remote_address": MARKUP,
    }
    channel = {"channel_name": "c", "depth": 1, "clients": [client], "client_count": 1}
    topics = [
        {"topic_name": "t", "depth": 1, "channels": [channel]},
        {"topic_name": MARKUP, "depth": 1, "channels": []},
        {"topic_name": "half a pair \ud800", "depth": 1, "channels": []},
    ]
    stats = {"version": MARKUP, "health": MARKUP, "start_time": 1 << 62, "topics": topics}
    info = {"version": MARKUP, "broadcast_address": "h", "hostname": MARKUP, "tcp_port": 1}

    def answer(request: Request) -> Answer:
        found = info if request.target == "/info" else stats
        return Answer(body=json.dumps(found).encode())

    with WebServer(answer) as evil:
        visited = Visited(nsqtools_cli, "--nsqd-http-address", str(evil.address))
        for path in ("/", "/topic/t", "/topic/t/c", "/nodes", f"/nodes?nsqd={evil.address}"):
            page = visited.get(path)
            assert page.status == 200
            assert MARKUP not in page.text
            assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "&lt;script&gt;" in visited.get("/topic/t/c").text


def test_500_slow_connections_and_large_forms_stop_neither_the_page_nor_a_consumer(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    fill(nsqd, topic, "c", 2)
    visited = Visited(nsqtools_cli, *http([nsqd]), "--allow-changes")
    tail = nsqtools_cli.start(
        *("tail", "--topic", topic, "--channel", "c", "-n", "3", *at(nsqd)), stdout=subprocess.PIPE
    )
    host, port = visited.netloc.split(":")
    with contextlib.ExitStack() as open_:
        for n in range(500):
            link = open_.enter_context(socket.create_connection((host, int(port))))
            link.sendall(b"GET / HTTP/1.1\r\nHost: " if n % 2 else b"")
        assert visited.get("/").status == 200
        with visited.stream("/") as events:
            assert next(events)
            assert next(events)
        assert tail.stdout
        assert [tail.stdout.readline() for _ in range(2)] == [b"x\n"] * 2
        nsqd.publish(topic, [b"last"])
        assert tail.stdout.read() == b"last\n"
        assert tail.wait() == 0
        assert f">{topic}<" in visited.get("/").text
        fields = {"verb": "pause", "topic": "x" * (5 << 20)}
        assert visited.post("/change", fields).status == 413
    many = "&".join(f"f{n}=1" for n in range(2000))
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert visited.ask("POST", "/change", many, form).status == 400
