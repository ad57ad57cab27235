"""Pictures on the page at /, with a model that sees: chosen, pasted and dropped; page_test.py runs these."""

import base64
import json
import os
import random
import struct
import sys
import tempfile
import zlib

from page_harness import DONE, ROOT, PageTest, Serve, Setting
from scripted_upstream import ScriptedUpstream, finish, text

sys.path.insert(0, str(ROOT / "tests/vision"))
from picture_folders import write_qwen  # noqa: E402

# Hands files to the page the way a person does; `texts` are on the clipboard beside them.
HAND = """(async () => {{
    const transfer = new DataTransfer();
    for (const [name, type, data] of {files}) {{
        const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
        transfer.items.add(new File([bytes], name, {{type}}));
    }}
    for (const [type, content] of Object.entries({texts})) transfer.setData(type, content);
    const how = {how}, prompt = document.querySelector("#prompt");
    if (how === "choose") {{
        const input = document.querySelector("#attach-file");
        input.files = transfer.files;
        input.dispatchEvent(new Event("change"));
        return false;
    }}
    const event = how === "paste"
        ? new ClipboardEvent("paste", {{clipboardData: transfer, bubbles: true, cancelable: true}})
        : new DragEvent("drop", {{dataTransfer: transfer, bubbles: true, cancelable: true}});
    (how === "paste" ? prompt : document.querySelector("#messages") ?? document.body).dispatchEvent(event);
    return event.defaultPrevented;
}})()"""


def png(width, height, noisy=False):
    rng = random.Random(width)

    def line(y):
        if noisy:
            return rng.randbytes(3 * width)
        return b"".join(bytes((x * 255 // width, y * 255 // height, 96)) for x in range(width))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(b"".join(b"\0" + line(y) for y in range(height)), 1)) + chunk(b"IEND", b""))


class Pictures(PageTest):
    server = folder = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="quire-page-pictures-")
        model = os.path.join(cls.folder.name, "sees")
        write_qwen(model, 1, 2, 36)
        cls.server = Serve(model=model)

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.folder.cleanup()

    def setUp(self):
        self.upstream = ScriptedUpstream(self.server.url)
        self.addCleanup(self.upstream.close)

    def hand(self, page, how, *files, **texts):
        encoded = [(name, kind, base64.b64encode(data).decode()) for name, kind, data in files]
        return page.evaluate(HAND.format(how=json.dumps(how), files=json.dumps(encoded), texts=json.dumps(texts)))

    def wait_for_attached(self, page, count):
        page.wait(f"document.querySelectorAll('#attached li img').length === {count}")

    def test_are_chosen_pasted_and_dropped(self):
        page = self.open()
        small = png(96, 64)
        for i, how in enumerate(("choose", "paste", "drop")):
            self.hand(page, how, (how + ".png", "image/png", small))
            self.wait_for_attached(page, i + 1)
        self.assertEqual(page.text("#attached").split(), ["choose.png", "paste.png", "drop.png"])
        sizes = page.evaluate("[...document.querySelectorAll('#attached img')].map(i => i.naturalWidth)")
        self.assertEqual(sizes, [96, 96, 96])
        self.shoot(page, "pictures-attached")
        page.click("#attached li:last-child button")
        self.answer_of(page, "What is it?", text("A gradient."), finish())
        url = "data:image/png;base64," + base64.b64encode(small).decode()
        part = {"type": "image_url", "image_url": {"url": url}}
        sent = self.upstream.requests[-1]["messages"][0]["content"]
        self.assertEqual(sent, [part, part, {"type": "text", "text": "What is it?"}])
        self.assertEqual(page.count(".message.user img.picture"), 2)
        self.assertTrue(page.evaluate("document.querySelector('#attached').hidden"))
        # With the next message, and when the chat is opened again.
        self.answer_of(page, "And now?", text("Still."), finish())
        self.assertEqual(self.upstream.requests[-1]["messages"][0]["content"], sent)
        page.go(self.upstream.url)
        page.wait("document.querySelectorAll('.message.user img.picture').length === 2")
        self.fine(page)

    def test_are_answered_by_the_model(self):
        page = self.open(self.server.url)
        self.hand(page, "drop", ("a.png", "image/png", png(320, 256)))
        self.wait_for_attached(page, 1)
        self.say(page, "What is it?")
        page.wait("document.querySelector('.message.assistant .prose')?.innerText.length > 5")
        if page.evaluate("!document.querySelector('#stop').hidden"):
            page.click("#stop")
        page.wait(DONE)
        self.fine(page)

    def test_large_ones_are_made_smaller(self):
        page = self.open()
        large = png(2000, 500, noisy=True)
        self.assertGreater(len(large), 300_000)
        self.hand(page, "choose", ("large.png", "image/png", large))
        self.wait_for_attached(page, 1)
        found = page.evaluate("(i => [i.naturalWidth, i.naturalHeight])(document.querySelector('#attached img'))")
        self.assertEqual(found, [1536, 384])
        self.answer_of(page, "What is it?", text("Noise."), finish())
        sent = self.upstream.requests[-1]["messages"][0]["content"][0]["image_url"]["url"]
        self.assertTrue(sent.startswith("data:image/jpeg;base64,"))
        self.fine(page)

    def test_what_is_no_picture_is_refused(self):
        page = self.open()
        for how in "choose", "drop":
            page.evaluate("document.querySelector('#notice').textContent = ''")
            self.hand(page, how, ("broken.png", "image/png", b"no picture"))
            page.wait("document.querySelector('#notice').innerText.startsWith('broken.png is no picture')")
            self.assertEqual(page.count("#attached li"), 0)
        self.fine(page)

    def test_texts_that_were_copied_with_a_picture_are_texts(self):
        page = self.open()
        word = ("word.png", "image/png", png(8, 8))
        self.assertFalse(self.hand(page, "paste", word, **{"text/plain": "a sentence", "text/html": "<b>a</b>"}))
        self.assertEqual(page.count("#attached li"), 0)
        # A picture out of another page has HTML beside it, and no text.
        self.assertTrue(self.hand(page, "paste", word, **{"text/html": "<img src='x'>"}))
        self.wait_for_attached(page, 1)
        self.fine(page)

    def test_look_well(self):
        for dark in False, True:
            for width in 1200, 360:
                page = Setting.browser.open(self.upstream.url, width=width, height=800, dark=dark)
                self.addCleanup(page.close)
                page.wait("document.querySelector('#state').dataset.state === 'ready'")
                self.hand(page, "choose", ("wide.png", "image/png", png(1200, 200)),
                          ("tall.png", "image/png", png(90, 700)))
                self.wait_for_attached(page, 2)
                self.answer_of(page, "What are they?", text("Two gradients."), finish())
                self.hand(page, "paste", ("a-name-that-is-much-longer-than-there-is-room-for-in-a-line.png", "image/png",
                                          png(64, 64)))
                self.wait_for_attached(page, 1)
                self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
                self.shoot(page, f"pictures-{'dark' if dark else 'light'}-{width}")
                self.fine(page)
