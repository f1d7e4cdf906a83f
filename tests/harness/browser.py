"""A real headless browser, controlled through a pair of pipes by the DevTools protocol: Chromium or Chrome, without a package."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="needs chromium or google-chrome")


class Browser:
    """One page of a browser with its own profile.

    Args:
        folder: for the profile.
        size: of the page, in pixels.
    """

    def __init__(self, folder, size=(1400, 1000)):
        self.errors = []  # console messages about errors, warnings and refused contents
        self._number, self._buffer, self._replies = 0, b"", {}
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        flags = (
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-dev-shm-usage",
            "--disable-extensions",
            "--disable-background-networking",
            "about:blank",
        )
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", PROGRAM, *flags],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")
        self.resize(*size)

    def call(self, method, **parameters):
        """Return the result of a method of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        number, deadline = self._number, time.monotonic() + 60
        while number not in self._replies:
            self._read(deadline)
        reply = self._replies.pop(number)
        assert "error" not in reply, reply
        return reply["result"]

    def _read(self, deadline):
        assert select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0], "the browser is silent"
        chunk = os.read(self._in, 1 << 20)
        assert chunk, "the browser went away"
        *messages, self._buffer = (self._buffer + chunk).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._replies[message["id"]] = message
            else:
                self._event(message["method"], message.get("params", {}))

    def _event(self, method, told):
        if method == "Runtime.exceptionThrown" or (method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert")):
            self.errors.append(told)
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(told["entry"])

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, address):
        self.call("Page.navigate", url=address)

    def value(self, expression):
        """Return the value of a JavaScript expression on the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, expression, timeout_s=60.0):
        """Wait until a JavaScript expression on the page is true."""
        deadline = time.monotonic() + timeout_s
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never: {expression}"
            time.sleep(0.02)  # a page has no event to wait for

    def shows(self, words, *, present=True, timeout_s=60.0):
        """Return the text of the page once the words are present, or absent."""
        deadline = time.monotonic() + timeout_s
        while (words in (text := self.value("document.body?.innerText ?? ''"))) != present:
            assert time.monotonic() < deadline, f"{words!r} never {'came' if present else 'went'}:\n{text}"
            time.sleep(0.1)  # a page has no event to wait for
        return text

    def press(self, key):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, text, timeout_s=60.0):
        """Click the first link with that text, once it is present."""
        links = f"[...document.links].filter(each => each.textContent === {json.dumps(text)}).slice(0, 1)"
        deadline = time.monotonic() + timeout_s
        while not self.value(f"{links}.map(each => each.click()).length"):
            assert time.monotonic() < deadline, f"no link {text!r}"
            time.sleep(0.1)

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
