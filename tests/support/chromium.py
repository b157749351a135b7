"""A headless Chromium, driven by the DevTools protocol over a pair of pipes."""

import base64
import contextlib
import fcntl
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from tests.support.binaries import needs
from tests.support.eventually import eventually

PATIENCE = 60.0
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--remote-debugging-pipe", "--no-first-run", "--hide-scrollbars", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


_PAINTED = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))"


class Chromium:
    """A browser; a context manager."""

    def __init__(self, folder: Path) -> None:
        program = needs("chromium", "the pages of ui in a browser")
        self._number = 0
        self._unread = b""
        self.events: list[dict[str, Any]] = []
        """What the browser told by itself, such as the requests of pages."""
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_browser, from_browser)]

        def connect() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={folder}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(folder)},
            pass_fds=(3, 4),
            preexec_fn=connect,
        )
        for fd in (to_browser, from_browser, *ends):
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        self._number += 1
        number = self._number
        asked = {"id": number, "method": method, "params": params}
        if session:
            asked["sessionId"] = session
        os.write(self._write, json.dumps(asked).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self._next(deadline)
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._read], [], [], left)
            assert ready, "Chromium does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "Chromium has ended"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def tab(self, url: str, *, width: int = 1200, height: int = 800, dark: bool = False) -> "Tab":
        """Open a page in a window of this size."""
        target = self.call("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        tab = Tab(self, attached["sessionId"], target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        tab.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.open(url)
        return tab


class Tab:
    """A page in a window of its own."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState == 'complete' && location.href != 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of an expression, once it is true."""

        def value() -> Any:
            try:
                return self.run(script)
            except AssertionError:  # between two pages
                return None

        return eventually(value)

    def event(self, method: str) -> dict[str, Any]:
        """The parameters of the first event of a kind, once the browser has told it."""

        def found() -> list[dict[str, Any]]:
            self.run("1")
            return [
                event["params"]
                for event in self._browser.events
                if event["method"] == method and event.get("sessionId") == self._session
            ]

        return eventually(found)[0]

    def press(self, *keys: str) -> None:
        """Press keys: characters, or names such as Enter and Tab.

        Chromium drops keys that come before it has painted a page.
        """
        for key in keys:
            self.until(_PAINTED)
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0)
            named = {"key": key, "windowsVirtualKeyCode": code, "nativeVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
            self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def set_window(self, state: str) -> None:
        """``minimized`` hides the page, ``normal`` shows it."""
        window = self._browser.call("Browser.getWindowForTarget", targetId=self._target)
        self._browser.call(
            "Browser.setWindowBounds", windowId=window["windowId"], bounds={"windowState": state}
        )

    def picture(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def problems(self) -> list[str]:
        """What the console has said: errors of scripts, and violations of the policy."""
        self.run("1")
        return [
            json.dumps(event)
            for event in self._browser.events
            if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")
            and event.get("sessionId") == self._session
        ]

    def requests(self) -> list[str]:
        """The URLs of all requests so far."""
        self.run("1")
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event["method"] == "Network.requestWillBeSent"
            and event.get("sessionId") == self._session
        ]
