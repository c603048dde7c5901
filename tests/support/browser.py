"""A headless Chromium, controlled by the DevTools protocol over two pipes, without a driver, port or network."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--disable-component-update",
    "--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-pipe",
]  # fmt: skip


class Page:
    """A tab of a browser that reads commands from one pipe and answers on another; a zero byte ends each message."""

    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self.commands, self.answers = commands, answers
        self.numbers, self.session = count(1), ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def send(self, method: str, **params: Any) -> Any:
        """Send a command and return its result."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while (answer := self._answer()).get("id") != number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _answer(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            message += byte
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, address: str) -> None:
        """Load a page and wait until it is complete, also if it was open already."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        done = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + 30
        while not self.value(script):
            assert time.monotonic() < end, script
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        for letter in text:
            self.send("Input.dispatchKeyEvent", type="keyDown", text=letter)
            self.send("Input.dispatchKeyEvent", type="keyUp")

    def size(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the size of the window in pixels, and a `light` or `dark` colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        """Write the visible part of the page as a PNG file."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start a browser with its profile in `folder`, and yield its page."""
    assert CHROMIUM
    (read, commands), (answers, write) = os.pipe(), os.pipe()
    flags = [*FLAGS, f"--user-data-dir={folder}"]
    # Chromium reads file descriptor 3 and writes 4; bash puts them there.
    line = ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", CHROMIUM, *flags]
    process = subprocess.Popen(line, pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(read)
    os.close(write)
    try:
        with os.fdopen(commands, "wb") as output, os.fdopen(answers, "rb") as input_:
            page = Page(output, input_)
            yield page
            page.session = ""  # a command to the browser itself
            page.send("Browser.close")
            process.wait(20)
    finally:
        process.kill()
        process.wait()
