"""A headless Chromium, driven over its DevTools protocol through a pipe."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]


def find_browser():
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Page:
    """One tab. Its console's errors, and what it could not load, are collected in `errors`."""

    def __init__(self, browser, url, width=1280, height=900, dark=False, reduced_motion=False):
        self.browser = browser
        self.errors = []
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = {"prefers-color-scheme": "dark" if dark else "light"}
        features["prefers-reduced-motion"] = "reduce" if reduced_motion else "no-preference"
        media = [{"name": name, "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=media)
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.requested = []
        self.loaded = False
        self.call("Page.navigate", url=url)
        while not self.loaded:
            browser.listen(0.05)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def on_event(self, method, parameters):
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(value.get("value")) for value in parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(f'{parameters["entry"]["text"]} {parameters["entry"].get("url", "")}')
        elif method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])

    def run(self, script):
        """The value of an expression, or of what it promises."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f'{script}: {answer["exceptionDetails"]["exception"]["description"]}')
        return answer["result"].get("value")

    def wait(self, script, seconds=20, key=None):
        """Until an expression is true; returns its value. A key is pressed before each look that comes to nothing."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"{script} is {value} after {seconds} s; errors: {self.errors}"
            if key:
                self.press(key)
            time.sleep(0.05)
        return value

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            code = {"Enter": 13, "Tab": 9}.get(key, 0)
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def close(self):
        del self.browser.pages[self.session]
        self.browser.call("Target.closeTarget", targetId=self.target)

    def screenshot(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


class Browser:
    def __init__(self, program):
        self.pages = {}
        self._ids = itertools.count(1)
        self._answers = {}
        self._buffer = b""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                 "--no-first-run", "--disable-background-networking", f"--user-data-dir={self._profile.name}"]
        command = 'in=$1 out=$2; shift 2; eval "exec \\"\\$@\\" 3<&$in 4>&$out"'
        self.process = subprocess.Popen(
            ["bash", "-c", command, "bash", str(to_read), str(to_write), program, *flags],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)

    def open(self, url, **options):
        return Page(self, url, **options)

    def call(self, method, session=None, **parameters):
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data):]
        while number not in self._answers:
            self._read(60)
        answer = self._answers.pop(number)
        assert "error" not in answer, f'{method}: {answer.get("error")}'
        return answer["result"]

    def listen(self, seconds):
        """Takes what pages tell for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._from], [], [], left)[0]:
                self._read(left)

    def _read(self, seconds):
        assert select.select([self._from], [], [], seconds)[0], f"Chromium is silent for {seconds} s"
        data = os.read(self._from, 1 << 20)
        assert data, "Chromium has ended"
        *messages, self._buffer = (self._buffer + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            elif page := self.pages.get(message.get("sessionId")):
                page.on_event(message["method"], message["params"])

    def close(self):
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()
