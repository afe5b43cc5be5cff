"""Chromium without a window, driven by its DevTools protocol over two pipes: no driver, no port, nothing to install."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
_OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-extensions",
    "--remote-debugging-pipe",
)
_PATIENCE_SECONDS: Final = 120.0


class Browser:
    """One Chromium with one tab. ``complaints`` are messages of its console and exceptions of scripts, ``requests`` the
    addresses that it asked for; both since the last page was opened.
    """

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._received = b""
        self._number = 0
        self._session: str | None = None
        self._closing = ExitStack()
        profile = self._closing.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        (down, self._down), (self._up, up) = os.pipe(), os.pipe()
        # It reads commands from descriptor 3 and writes answers to 4, which the pipes must not be themselves.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (down, up)]
        starter = ["/bin/bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash"]
        self._process = subprocess.Popen(
            [*starter, CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (down, up, *ends):
            os.close(end)
        self._closing.callback(os.close, self._down)
        self._closing.callback(os.close, self._up)
        self._closing.callback(self._process.wait)
        self._closing.callback(self._process.kill)

    def __enter__(self) -> Self:
        try:
            targets = self.call("Target.getTargets")["targetInfos"]
            page = next(target["targetId"] for target in targets if target["type"] == "page")
            self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.close()

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """The result of a command of the protocol."""
        self._number += 1
        session = {} if self._session is None else {"sessionId": self._session}
        message = {"id": self._number, "method": method, "params": parameters, **session}
        os.write(self._down, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
        raise AssertionError(method)

    def _messages(self) -> Iterator[Mapping[str, Any]]:
        """What Chromium says; complaints and requests of the page are kept on the way."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            while b"\0" not in self._received:
                ready, _, _ = select.select([self._up], [], [], max(0.0, end - time.monotonic()))
                assert ready, "Chromium does not answer"
                chunk = os.read(self._up, 1 << 20)
                assert chunk, "Chromium has ended"
                self._received += chunk
            text, _, self._received = self._received.partition(b"\0")
            message = json.loads(text)
            method, parameters = message.get("method"), message.get("params", {})
            if method in {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}:
                self.complaints.append(json.dumps(parameters))
            elif method == "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            yield message

    def open(self, path: Path, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Show a file in a window of ``width`` by ``height`` pixels and wait until it is loaded."""
        self.complaints, self.requests = [], []
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        # A navigation takes over the page only after its answer; the address says when.
        self.wait_for(f"location.href === {json.dumps(path.resolve().as_uri())} && document.readyState === 'complete'")

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page a window of ``width`` by ``height`` pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while not self.run(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    def run(self, expression: str) -> Any:  # noqa: ANN401 - whatever the page has
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Move the mouse there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Click with the mouse there."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot of the window, or of the ``whole`` page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def paper(self) -> bytes:
        """The page as PDF on A4."""
        answer = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])
