"""What the tests of the page share: the program, a browser, and a page in it."""

import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest
import urllib.request

from browser import Browser
from scripted_upstream import ScriptedUpstream, finish, text

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "models/demo-moe-nvfp4.gguf"
DONE = "document.querySelector('#stop').hidden && document.querySelector('.message.assistant') !== null"


class Serve:
    """`quire serve` with the demo model, or another one."""

    def __init__(self, *options, model=MODEL):
        self.log = tempfile.NamedTemporaryFile("w", prefix="quire-page-")
        command = [
            Setting.program,
            "serve",
            "-m",
            str(model),
            "--port",
            "0",
            "-c",
            "2048",
            "-np",
            "4",
            "--no-access-log",
            *options,
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self.log)
        end = time.monotonic() + 120
        while not (said := re.search(r"at (http://[\d.:]+)", pathlib.Path(self.log.name).read_text())):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(pathlib.Path(self.log.name).read_text())
            time.sleep(0.05)
        self.url = said[1] + "/"

    def get(self, path="", accept="text/html"):
        request = urllib.request.Request(self.url + path, headers={"Accept": accept})
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode(), answer.headers

    def close(self):
        self.process.terminate()
        self.process.wait(60)


class Setting:
    """What all tests use: set by open_setting()."""

    program = server = browser = screenshots = None


def open_setting(program, screenshots=None):
    Setting.program, Setting.screenshots = program, screenshots
    if screenshots:
        os.makedirs(screenshots, exist_ok=True)
    Setting.server, Setting.browser = Serve(), Browser()


def close_setting():
    Setting.browser.close()
    Setting.server.close()


class PageTest(unittest.TestCase):
    def setUp(self):
        self.upstream = ScriptedUpstream(Setting.server.url)
        self.addCleanup(self.upstream.close)

    def open(self, url=None, **options):
        page = Setting.browser.open(url or self.upstream.url, **options)
        self.addCleanup(page.close)
        page.wait(
            "document.querySelector('#state').dataset.state === 'ready' || document.querySelector('#key-dialog').open"
        )
        return page

    def say(self, page, message):
        page.click("#prompt")
        page.type(message)
        page.press("Enter")

    def answer_of(self, page, message, *script):
        """What the page shows of a scripted answer, once it has ended."""
        self.upstream.will_answer(*script)
        before = len(self.upstream.requests)
        self.say(page, message)
        page.wait(DONE)
        self.assertEqual(len(self.upstream.requests), before + 1)
        return page.text(".message.last .prose")

    def show(self, page, content):
        """The elements that a scripted answer becomes."""
        self.answer_of(page, "show", text(content), finish())
        return page.evaluate("document.querySelector('.message.last .prose').innerHTML")

    def fine(self, page):
        self.assertEqual(page.complaints(), [])

    def shoot(self, page, name):
        if Setting.screenshots:
            page.screenshot(os.path.join(Setting.screenshots, name + ".png"))
