"""A headless Chromium for tests of pages, driven by its own protocol over two pipes: no driver, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEADLINE_S = 60.0


def find_browser() -> str | None:
    """The program, if there is one; `CHROMIUM` names another."""
    named = os.environ.get("CHROMIUM")
    return named if named else next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One page of the browser, and everything it complained about."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False, scale: float = 1.0) -> None:
        """Load a file in a window of this width, as on a phone below 600, and wait until it is there."""
        self.complaints.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self._events.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        deadline = time.monotonic() + DEADLINE_S
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._take(self._receive(deadline))
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, height: int | None = None) -> None:
        """The page as PNG, as far down as `height`; all of it by default."""
        whole = self.evaluate("document.documentElement.scrollHeight") if height is None else height
        width = self.evaluate("document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": whole, "scale": 1}
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = None
        self.call("Browser.close")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something and wait for the answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + DEADLINE_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                found: dict[str, Any] = answer["result"]
                return found
            self._take(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._reading, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _take(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown" or method == "Log.entryAdded":
            self.complaints.append(json.dumps(parameters))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {parameters['message']}")
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(f"request: {parameters['request']['url']}")


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A fresh browser with one page; it keeps its files in `profile`."""
    program = find_browser()
    assert program is not None
    to_child, writing = os.pipe()
    reading, from_child = os.pipe()
    # The browser reads descriptor 3 and writes 4; numbers that a shell puts there without knowing what they were.
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-background-networking",
        f"--user-data-dir={profile}",
        "--remote-debugging-pipe",
    ]
    script = f'exec "$@" 3<&{to_child} 4>&{from_child}'
    child = subprocess.Popen(
        ["bash", "-c", script, "bash", program, *options, "about:blank"],
        pass_fds=(to_child, from_child),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_child)
    os.close(from_child)
    try:
        page = Page(reading, writing)
        yield page
        page.close()
        child.wait(10.0)
    finally:
        os.close(writing)
        os.close(reading)
        if child.poll() is None:
            child.kill()
            child.wait()
