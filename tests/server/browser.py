"""Chromium without a window, driven over the DevTools protocol through a pipe: the standard library is all it takes."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# What a page must not have done is noted before its own script runs.
WATCH = """
window.violations = [];
window.alerts = 0;
window.alert = window.confirm = window.prompt = () => { ++window.alerts; };
document.addEventListener("securitypolicyviolation",
                          (e) => window.violations.push(e.violatedDirective + " " + e.blockedURI));
"""


def find_browser():
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="quire-browser-")
        from_us, to_us = os.pipe(), os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--mute-audio",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            "--user-data-dir=" + self.profile,
            "about:blank",
        ]
        # The browser reads commands from descriptor 3 and writes what it has to say to 4.
        script = f'exec "$@" 3<&{from_us[0]} 4>&{to_us[1]}'
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", find_browser(), *flags],
            pass_fds=(from_us[0], to_us[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us[0])
        os.close(to_us[1])
        self.commands, self.answers = from_us[1], to_us[0]
        self.rest, self.last_id = b"", 0
        self.events = []

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        os.close(self.commands)
        os.close(self.answers)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _receive(self):
        while b"\0" not in self.rest:
            data = os.read(self.answers, 1 << 16)
            if not data:
                raise RuntimeError("the browser has ended")
            self.rest += data
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **params):
        """The result of a command; events that come before it are kept."""
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") != self.last_id:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def open(self, url, width=1200, height=800, dark=False):
        return Page(self, url, width, height, dark)


class Page:
    """A tab with storage of its own."""

    def __init__(self, browser, url, width, height, dark):
        self.browser = browser
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.url = url
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.set_dark(dark)
        self.go(url)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def set_dark(self, dark):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition, seconds=20):
        """Until an expression is true, which it returns."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                value = self.evaluate(condition)
                if value:
                    return value
            except RuntimeError:  # the page is being left
                pass
            time.sleep(0.03)
        raise AssertionError(
            f"did not come true: {condition}; the page says: " f"{self.evaluate('document.body.innerText')[-1500:]}"
        )

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    def count(self, selector):
        return self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    def click(self, selector):
        """As a mouse does: at the middle of what is there, whatever lies on top of it."""
        box = self.wait(
            f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element?.scrollIntoView({{block: "center"}});
            const r = element?.getBoundingClientRect();
            return r && r.width > 0 && [r.x + r.width / 2, r.y + r.height / 2];
        }})()""",
            10,
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="none" if kind == "mouseMoved" else "left",
                clickCount=1,
            )

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, shift=False):
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        text = {"text": "\r"} if key == "Enter" else {}
        common = dict(key=key, code=key, windowsVirtualKeyCode=codes[key], modifiers=8 if shift else 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def complaints(self):
        """What the page did wrong: errors of its script, violations of its policy, alerts."""
        events = [e for e in self.browser.events if e.get("sessionId") == self.session]
        errors = [e["params"]["exceptionDetails"] for e in events if e["method"] == "Runtime.exceptionThrown"]
        logged = [
            e["params"]["entry"]["text"]
            for e in events
            if e["method"] == "Log.entryAdded"
            and e["params"]["entry"]["level"] == "error"
            and e["params"]["entry"]["source"] != "network"
        ]
        dialogs = [e["params"] for e in events if e["method"] == "Page.javascriptDialogOpening"]
        return (
            errors + logged + dialogs + self.evaluate("window.violations") + ["alert"] * self.evaluate("window.alerts")
        )
