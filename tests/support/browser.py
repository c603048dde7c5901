"""A headless Chromium, driven by its own debugging protocol over two pipes: no driver, no port, no network."""

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
    """A tab of a browser that reads commands from one pipe and answers on another, each message ended by a zero."""

    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self.commands, self.answers = commands, answers
        self.numbers, self.session = count(1), ""
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def tell(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its result."""
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
        found = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            assert byte, "the browser is gone"
            found += byte
        answer: dict[str, Any] = json.loads(found)
        return answer

    def open(self, address: str) -> None:
        """Load a page anew, and wait until it and its scripts are there."""
        self.tell("Page.navigate", url="about:blank")
        self.tell("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, script: str) -> Any:
        """What a line of JavaScript gives."""
        done = self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until a line of JavaScript is true."""
        end = time.monotonic() + 30
        while not self.value(script):
            assert time.monotonic() < end, script
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        for letter in text:
            self.tell("Input.dispatchKeyEvent", type="keyDown", text=letter)
            self.tell("Input.dispatchKeyEvent", type="keyUp")

    def size(self, width: int, height: int, scheme: str = "light") -> None:
        """Be a window of that many pixels, in a `light` or `dark` scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.tell("Emulation.setDeviceMetricsOverride", **size)
        self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        """What is seen now, as a PNG file."""
        path.write_bytes(base64.b64decode(self.tell("Page.captureScreenshot")["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with a profile of its own in `folder`."""
    assert CHROMIUM
    (read, commands), (answers, write) = os.pipe(), os.pipe()
    flags = [*FLAGS, f"--user-data-dir={folder}"]
    # Chromium reads file descriptor 3 and writes 4; bash puts them there.
    line = ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", CHROMIUM, *flags]
    process = subprocess.Popen(line, pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(read)
    os.close(write)
    try:
        with os.fdopen(commands, "wb") as tell, os.fdopen(answers, "rb") as hear:
            page = Page(tell, hear)
            yield page
            page.session = ""
            page.tell("Browser.close")
            process.wait(20)
    finally:
        process.kill()
        process.wait()
