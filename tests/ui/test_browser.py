"""``nsqtools ui`` in a real browser: live, by keyboard, on a phone, in the dark."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chromium import Chromium
from tests.support.eventually import eventually
from tests.support.process import Cli
from tests.support.servers import Nsqd, fill, http
from tests.support.visiting import Visited

FOCUSED = "document.activeElement.textContent"
SHOWN = "document.getElementById('state').textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def visited(nsqtools_cli: Cli, nsqd: Nsqd, tmp_path: Path) -> Visited:
    folder = tmp_path / "dead"
    folder.mkdir()
    letter = {"reason": "no", "body": json.dumps({"long": "x" * 500})}
    (folder / "t.dead.jsonl").write_text(json.dumps(letter) + "\n")
    fill(nsqd, "t", "c", 2)
    dead = ("--dead-letter-dir", str(folder))
    return Visited(nsqtools_cli, *http([nsqd]), "--allow-changes", *dead)


def test_a_page_is_live_and_pauses_while_its_tab_is_hidden(
    browser: Chromium, visited: Visited, nsqd: Nsqd
) -> None:
    tab = browser.tab(f"{visited.url}topic/t/c")
    tab.until(f"{SHOWN} == 'live'")
    path = "document.querySelector('.chart .hue0').getAttribute('d')"
    before = tab.run(path)
    nsqd.publish("t", [b"x"] * 5)
    tab.until(f"{path} != {before!r} && document.querySelector('dd').textContent.startsWith('7')")
    tab.set_window("minimized")
    tab.until(f"document.hidden && {SHOWN} == 'paused'")
    nsqd.publish("t", [b"x"] * 3)
    eventually(lambda: "<dd>10 " in visited.get("/topic/t/c").text)
    assert tab.run("document.querySelector('dd').textContent").startswith("7")
    tab.set_window("normal")
    tab.until("document.querySelector('dd').textContent.startsWith('10')")
    assert all(url.startswith(visited.url) for url in tab.requests())
    assert tab.problems() == []


def test_an_update_keeps_what_a_visitor_is_at(
    browser: Chromium, visited: Visited, nsqd: Nsqd
) -> None:
    tab = browser.tab(visited.url, width=390)
    tab.until(f"{SHOWN} == 'live'")
    tab.run("getSelection().selectAllChildren(document.querySelector('tbody th'))")
    tab.run("document.querySelector('.wide').scrollLeft = 200")
    link = "document.querySelector('tbody th a')"
    x, y = tab.run(f"(at => [at.x + 5, at.y + 5])({link}.getBoundingClientRect())")
    mouse = {"x": x, "y": y, "button": "left", "clickCount": 1}
    nsqd.publish("t", [b"x"] * 5)
    tab.until("document.querySelector('tbody td').textContent.startsWith('7')")
    assert tab.run("getSelection().toString()") == "t"
    assert tab.run("document.querySelector('.wide').scrollLeft") == 200
    tab.call("Input.dispatchMouseEvent", type="mousePressed", **mouse)
    nsqd.create("zero")
    tab.until("document.querySelectorAll('tbody tr').length == 2")
    tab.call("Input.dispatchMouseEvent", type="mouseReleased", **mouse)
    tab.until("location.pathname == '/topic/t'")
    assert tab.problems() == []


def test_a_page_is_live_again_after_a_proxy_had_no_answer(
    browser: Chromium, visited: Visited, nsqd: Nsqd
) -> None:
    """As while ui is started again behind the proxy."""
    tab = browser.tab(visited.url)
    tab.until(f"{SHOWN} == 'live'")
    failing = {"urlPattern": "*", "requestStage": "Response"}
    tab.call("Fetch.enable", patterns=[failing])
    tab.run("source.close(), source = null, listen()")
    paused = tab.event("Fetch.requestPaused")
    tab.call("Fetch.fulfillRequest", requestId=paused["requestId"], responseCode=502)
    tab.until(f"{SHOWN}.startsWith('no connection')")
    tab.call("Fetch.disable")
    tab.until(f"{SHOWN} == 'live'")


def test_a_channel_is_paused_and_deleted_by_keyboard_alone(
    browser: Chromium, visited: Visited, nsqd: Nsqd
) -> None:
    tab = browser.tab(visited.url)
    tab.press("j", "Enter")
    tab.until("location.pathname == '/topic/t' && document.readyState == 'complete'")
    tab.press("j", "Enter")
    tab.until("location.pathname == '/topic/t/c' && document.readyState == 'complete'")
    tab.until(f"{SHOWN} == 'live'")
    for label in ("Pause", "Delete"):
        for _ in range(20):
            tab.press("Tab")
            if tab.run(FOCUSED) == label:
                break
        tab.press("Enter")
        tab.until("location.pathname == '/change' && document.readyState == 'complete'")
        if label == "Pause":
            tab.press("Enter")
            tab.until("document.body.textContent.includes('done')")
            assert nsqd.channel("t", "c")["paused"]
            tab.press("Enter")
            tab.until("location.pathname == '/topic/t/c' && document.readyState == 'complete'")
    tab.until("document.activeElement.name == 'confirm'")
    tab.press("Enter")
    assert tab.run("location.pathname") == "/change"  # the name is required
    assert nsqd.topic("t")["channels"]
    tab.press("c", "Enter")
    eventually(lambda: not nsqd.topic("t")["channels"])
    assert tab.problems() == []


def test_a_dead_letter_is_copied_chosen_edited_and_published_again(
    browser: Chromium, visited: Visited, nsqd: Nsqd
) -> None:
    tab = browser.tab(f"{visited.url}dead/t.dead.jsonl")
    button = "document.querySelector('[data-copy]')"
    tab.run(f"{button}.closest('details').open = true")
    tab.run(f"{button}.click()")
    tab.until(f"{button}.textContent != 'Copy'")
    assert tab.run("getSelection().toString()").startswith("nsqtools pub --topic t --json '{")
    tab.run("document.getElementById('all').click()")
    assert tab.run("document.querySelectorAll('[name=pick]:checked').length") == 1
    tab.run("document.querySelector('form[method=post] button').click()")
    tab.until("location.pathname == '/edit' && document.readyState == 'complete'")
    tab.run("document.querySelector('textarea').value = 'edited <b>'")
    tab.run("document.querySelector('.danger').click()")
    tab.until("document.body.textContent.includes('1 of 1 message published')")
    eventually(lambda: nsqd.channel("t", "c")["depth"] == 3)
    assert tab.problems() == []


def test_every_page_fits_a_phone_and_follows_the_dark_scheme(
    browser: Chromium, visited: Visited, nsqd: Nsqd
) -> None:
    phone = browser.tab(visited.url, width=390, dark=True)
    background = "getComputedStyle(document.body).backgroundColor"
    assert phone.run(background) == "rgb(17, 24, 31)"
    long = "x" * 64
    nsqd.create(long, long)
    eventually(lambda: visited.get(f"/topic/{long}/{long}").status == 200)
    for path in (
        *(f"topic/{long}/{long}", f"change?verb=delete&topic={long}&channel={long}"),
        *("", "nodes", "topic/t", "topic/t/c", "doctor?topic=t", "messages/t/c", "dead"),
        *("dead/t.dead.jsonl", "publications", "change?verb=delete&topic=t", "none"),
    ):
        phone.open(f"{visited.url}{path}")
        assert phone.run("document.documentElement.scrollWidth") <= 390, path
        text = "document.body.textContent"
        assert not phone.run(f"{text}.includes('Internal Server Error')"), path
    assert browser.tab(visited.url).run(background) == "rgb(255, 255, 255)"
