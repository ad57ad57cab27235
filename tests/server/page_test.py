"""The page at / in a real browser: page_test.py PROGRAM [--screenshots FOLDER] [TEST...].

Chats with the demo model, and with a server that answers what the tests say. Ends with 77, which ctest takes for
"skipped", where there is no Chromium (scripts/setup.sh --browser installs it).
"""

import argparse
import json
import re
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

from browser import find_browser
from page_features_test import (  # noqa: F401, to be found beside those of this file
    Branches,
    Buttons,
    Files,
    Lists,
    LongAnswers,
    Phones,
    Settings,
)
from page_harness import DONE, PageTest, Serve, Setting, close_setting, open_setting
from page_pictures_test import Pictures  # noqa: F401, likewise
from page_text_test import Injection, Markdown  # noqa: F401, likewise
from scripted_upstream import BREAK, Failure, call, finish, reasoning, text


class Document(PageTest):
    def test_only_browsers_get_it(self):
        html, headers = Setting.server.get()
        self.assertTrue(html.startswith("<!doctype html>"))
        for accept in ("*/*", "application/json"):
            self.assertEqual(Setting.server.get(accept=accept)[0], "Ollama is running")
        policy = headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertIn("frame-ancestors 'none'", policy)
        self.assertNotIn("unsafe", policy)
        self.assertEqual(headers["Referrer-Policy"], "no-referrer")
        markup = re.sub(r"<script.*</script>", "", html, flags=re.S)
        self.assertEqual(re.findall(r"\son\w+=|https?://(?!www\.w3\.org)[\w.]+", markup), [])

    def test_can_be_turned_off(self):
        server = Serve("--no-ui")
        self.addCleanup(server.close)
        self.assertEqual(server.get()[0], "Ollama is running")


class WithTheModel(PageTest):
    def test_streams_reloads_and_stops(self):
        page = self.open(Setting.server.url)
        page.evaluate("""window.lengths = []; new MutationObserver(() =>
            lengths.push(document.querySelector('.message.last .prose')?.innerText.length ?? 0))
            .observe(document.querySelector('#log'), {subtree: true, childList: true, characterData: true})""")
        self.say(page, "Tell me a story about a fox who lost a key.")
        page.wait(DONE)
        self.assertGreater(len(set(page.evaluate("window.lengths"))), 5, "it came in pieces")
        told = page.text(".message.last .prose")
        self.assertGreater(len(told), 100)
        self.assertRegex(page.text(".stats"), r"^[\d.]+ tokens/s · \d+ tokens · prompt \d+ .*first after [\d.]+ s")

        page.go(Setting.server.url)
        page.wait("document.querySelector('.message.last .prose') !== null")
        self.assertEqual(page.text(".message.last .prose"), told)
        self.assertIn("Tell me a story", page.text("#chat-list"))

        self.say(page, "Tell me a story about a bear.")
        page.wait("document.querySelectorAll('.prose')[1]?.innerText.length > 20")
        page.press("Escape")
        page.wait(DONE)
        self.assertEqual(page.text(".message.last .note"), "Stopped.")
        self.assertLess(len(page.text(".message.last .prose")), len(told))
        for _ in range(200):
            if re.search(r"^vllm:num_requests_running{.*} 0$", Setting.server.get("metrics", "*/*")[0], re.M):
                break
            time.sleep(0.05)
        else:
            self.fail("the server still computes")
        self.fine(page)

    def test_seeds_and_settings_reach_the_server(self):
        page = self.open(Setting.server.url)
        page.click("#open-settings")
        for name, value in (("seed", 7), ("max_tokens", 8), ("temperature", 0.5)):
            page.click(f"[data-setting={name}]")
            page.type(str(value))
        page.click("#close-settings")
        self.say(page, "Tell me a story.")
        page.wait(DONE)
        once = page.text(".message.last .prose")
        self.assertEqual(page.text(".message.last .note"), "Cut: no more tokens were allowed.")
        self.assertIn("8 tokens", page.text(".stats"))
        page.click(".message.last [aria-label=Retry]")
        page.wait(DONE)
        self.assertEqual(page.text(".message.last .prose"), once)
        page.click("#open-settings")
        page.click("[data-setting=temperature]")
        page.evaluate("document.querySelector('[data-setting=temperature]').select()")
        page.type("1000")
        page.press("Escape")
        page.click(".message.last [aria-label=Retry]")
        page.wait(DONE)
        self.assertIn("temperature", page.text(".message.last .error"))
        self.fine(page)


class Conversations(PageTest):
    def roles(self):
        return [(m["role"], m["content"]) for m in self.upstream.requests[-1]["messages"]]

    def test_edit_retry_and_delete(self):
        page = self.open()
        self.assertEqual(self.answer_of(page, "one", text("1"), finish()), "1")
        self.assertEqual(self.answer_of(page, "two", text("2"), finish()), "2")
        self.assertEqual(self.roles(), [("user", "one"), ("assistant", "1"), ("user", "two")])

        self.upstream.will_answer(text("zwei"), finish())
        page.click(".message.last [aria-label=Retry]")
        page.wait("document.querySelector('.message.last .prose')?.innerText === 'zwei'")
        self.assertEqual(self.roles(), [("user", "one"), ("assistant", "1"), ("user", "two")])

        page.wait(DONE)
        page.click(".message.user [aria-label=Edit]")
        page.press("Escape")
        self.assertEqual(page.count(".editor"), 0)
        self.assertEqual(page.text(".message.user .text"), "one")
        self.upstream.will_answer(text("uno"), finish())
        page.click(".message.user [aria-label=Edit]")
        page.evaluate("document.querySelector('.editor textarea').select()")
        page.type("eins")
        page.press("Enter")
        page.wait("document.querySelector('.message.last .prose')?.innerText === 'uno'")
        self.assertEqual(self.roles(), [("user", "eins")])
        self.assertEqual(page.count(".message"), 2, "what followed has gone")

        page.wait(DONE)
        self.answer_of(page, "more", text("m"), finish())
        page.click(".message.user [aria-label=Delete]")
        lines = "[...document.querySelectorAll('.message')].map(m => m.innerText.trim().split('\\n')[0])"
        self.assertEqual(page.evaluate(lines), ["more", "m"])
        self.fine(page)

    def test_several_chats_export_and_clear(self):
        page = self.open()
        self.answer_of(page, "first chat", text("1"), finish())
        page.click("#new-chat")
        self.assertEqual(page.count(".message"), 0)
        self.answer_of(page, "second chat", text("2"), finish())
        self.assertEqual(self.roles(), [("user", "second chat")])
        self.assertEqual(page.text("#chat-list").split("\n"), ["second chat", "first chat"])
        page.click("#chat-list li:last-child .open")
        self.assertEqual(page.text(".message.last .prose"), "1")
        page.evaluate("URL.createObjectURL = (blob) => { window.exported = blob; return '#exported'; }")
        page.click("#export")
        exported = json.loads(page.evaluate("window.exported.text()"))
        self.assertEqual([c["messages"][0]["content"] for c in exported["chats"]], ["second chat", "first chat"])
        page.click("#clear")
        page.press("Escape")
        self.assertEqual(page.count("#chat-list .open"), 2)
        page.click("#clear")
        page.click("#confirm-yes")
        page.wait("document.querySelectorAll('#chat-list .open').length === 0")
        self.assertEqual(page.count(".message"), 0)
        self.assertEqual(page.evaluate("Object.keys(localStorage).filter(k => k.startsWith('quire.chat.'))"), [])
        self.fine(page)

    def test_reasoning_calls_and_results(self):
        page = self.open()
        page.click("#open-settings")
        page.click("#tools")
        page.type('[{"type": "function", "function": {"name": "look", "parameters": {}}}]')
        page.click("#system")
        page.type("Be brief.")
        page.click("[data-setting=speculative]")
        page.click("#close-settings")
        self.answer_of(
            page,
            "weather?",
            reasoning("Let me "),
            reasoning("see."),
            call(0, "c1", "look"),
            call(0, arguments='{"city": '),
            call(0, arguments='"Paris"}'),
            call(1, "c2", "look", "{}"),
            finish("tool_calls"),
        )
        sent = self.upstream.requests[-1]
        self.assertEqual(sent["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertIs(sent["speculative"], False)
        self.assertEqual(sent["tools"][0]["function"]["name"], "look")
        self.assertFalse(page.evaluate("document.querySelector('.reasoning').open"), "folded")
        self.assertEqual(page.evaluate("document.querySelector('.reasoning div').textContent"), "Let me see.")
        self.assertIn('"city": "Paris"', page.text(".call pre"))
        self.assertEqual(page.evaluate("document.querySelector('#prompt').placeholder"), "Result of look")
        self.say(page, "sunny")
        self.answer_of(page, "rainy", text("Mixed."), finish())
        self.assertEqual(
            [(m["role"], m.get("tool_call_id")) for m in self.upstream.requests[-1]["messages"]],
            [("system", None), ("user", None), ("assistant", None), ("tool", "c1"), ("tool", "c2")],
        )
        self.assertEqual(
            self.upstream.requests[-1]["messages"][2]["tool_calls"][0]["function"],
            {"name": "look", "arguments": '{"city": "Paris"}'},
        )
        self.fine(page)

    def test_tells_what_the_server_counts(self):
        page = self.open()
        self.answer_of(
            page,
            "a",
            text("x"),
            0.2,
            finish(
                prompt_tokens=2000,
                completion_tokens=3,
                prompt_tokens_details={"cached_tokens": 1984},
                completion_tokens_details={"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 1},
            ),
        )
        self.assertIn("3 tokens · prompt 2,000 (1,984 cached)", page.text(".stats"))
        self.assertIn("3 of 4 drafts right", page.text(".stats"))


class Failures(PageTest):
    def test_errors_of_the_server_are_shown_as_text(self):
        page = self.open()
        self.answer_of(page, "a", Failure(400, json.dumps({"error": {"message": "<b>no</b> room"}})))
        self.assertEqual(page.text(".message.last .error"), "<b>no</b> room")
        self.answer_of(page, "b", Failure(502, "<html>bad gateway"))
        self.assertEqual([m["content"] for m in self.upstream.requests[-1]["messages"]], ["a", "b"])
        self.assertIn("502", page.text(".message.last .error"))
        self.answer_of(page, "a", text("half"), {"error": {"message": "the GPU is lost"}})
        self.assertEqual(page.text(".message.last .error"), "the GPU is lost")
        self.assertEqual(page.text(".message.last .prose"), "half")
        self.fine(page)

    def test_a_server_that_goes_away(self):
        page = self.open()
        for script in ((text("half an answer"), BREAK), (text("half an answer"), 0.1, BREAK)):
            self.answer_of(page, "a", *script)
            self.assertEqual(page.text(".message.last .prose"), "half an answer")
            self.assertIn("The connection to the server", page.text(".message.last .error"))
        self.upstream.will_answer(text("whole"), finish())
        page.click(".message.last [aria-label=Retry]")
        page.wait("document.querySelector('.message.last .prose')?.innerText === 'whole'")
        self.upstream.server.server_close()
        self.upstream.server.shutdown()
        page.wait(DONE)
        self.say(page, "anybody there?")
        page.wait("document.querySelector('.message.last .error')?.innerText > ''")
        self.assertEqual(page.text(".message.last .error"), "The server cannot be reached.")
        self.fine(page)

    def test_a_program_that_is_killed(self):
        server = Serve()
        page = self.open(server.url)
        self.say(page, "Tell me a story about a fox who lost a key.")
        page.wait("document.querySelector('.prose')?.innerText.length > 10")
        server.process.kill()
        server.process.wait()
        page.wait(DONE)
        self.assertIn("The connection to the server", page.text(".message.last .error"))
        page.wait("document.querySelector('#state').dataset.state === 'gone'")
        self.fine(page)

    def test_keys(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("the-right-key\n")
            keys.flush()
            server = Serve("--api-key-file", keys.name)
        self.addCleanup(server.close)
        page = self.open(server.url)
        page.wait("document.querySelector('#key-dialog').open")
        page.type("a-wrong-key")
        page.press("Enter")
        page.wait("document.querySelector('#key-reason').innerText.includes('not valid')")
        page.type("the-right-key")
        page.press("Enter")
        page.wait("document.querySelector('#state').dataset.state === 'ready'")
        self.say(page, "77+94")
        page.wait(DONE)
        self.assertNotEqual(page.text(".message.last .prose"), "")
        self.assertNotIn("the-right-key", page.evaluate("JSON.stringify(localStorage)"))
        page.go(server.url)
        page.wait("document.querySelector('#state').dataset.state === 'ready'")
        self.fine(page)


STRANGER = """(async () => {
  const target = TARGET, body = '{"prompt": "a"}';
  const bodies = [body, new Blob([body]), new URLSearchParams({[body]: ""}), new Blob([body], {type: "text/plain"})];
  for (const b of bodies) await fetch(target, {method: "POST", mode: "no-cors", body: b}).catch(() => {});
  for (const b of bodies) navigator.sendBeacon(target, b);
  for (const enctype of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) {
    const form = document.createElement("form");
    Object.assign(form, {method: "post", action: target, enctype, target: "frame"});
    form.append(Object.assign(document.createElement("input"), {name: '{"prompt": "', value: '"}'}));
    document.body.append(form);
    form.submit();
    await new Promise((resolve) => document.querySelector('iframe').onload = resolve);
  }
})()"""


class Strangers(PageTest):
    def test_no_page_of_others_is_taken_for_curl(self):
        counted = r'http_requests_total{handler="/tokenize",method="POST",status="(\d+)"} (\d+)'
        page = Setting.browser.open(self.upstream.url + "stranger")
        self.addCleanup(page.close)
        page.evaluate(STRANGER.replace("TARGET", json.dumps(Setting.server.url + "tokenize")))
        for _ in range(100):
            answers = dict(re.findall(counted, Setting.server.get("metrics", "*/*")[0]))
            if sum(map(int, answers.values())) >= 11:
                break
            time.sleep(0.05)
        self.assertEqual(set(answers), {"403"})
        self.assertEqual(answers["403"], "11")
        request = urllib.request.Request(Setting.server.url + "tokenize", b'{"prompt": "a"}')  # with a form's type
        with urllib.request.urlopen(request) as answer:
            self.assertEqual(json.load(answer)["count"], 1)


class Looks(PageTest):
    SAMPLE = (
        "## A small table\n\nSome *prose* with `code`, and a [link](https://example.org/):\n\n"
        "| name | size | what for |\n|:--|--:|---|\n| norm | 12 | scales rows |\n"
        "| gemm | 4096 | multiplies matrices |\n\n"
        "The mean \\(\\mu = \\frac{1}{n}\\sum_{i=1}^{n} x_i\\) and\n\n$$\n\\sigma^2 = \\int_{-\\infty}^{\\infty}"
        "(x - \\mu)^2 f(x)\\,dx = \\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}\n$$\n\n"
        "1. First **this**\n2. then that:\n   - one\n   - two\n\n> A word by somebody.\n\n"
        "```python\ndef answer(question: str, seed: int = 7) -> str:\n"
        "    return model.generate(question, seed=seed)\n```\n\nThat is all."
    )

    def fill(self, page):
        self.answer_of(
            page,
            "How large are the operators, and what are they for?",
            reasoning("The user asks for sizes."),
            text(self.SAMPLE),
            0.05,
            finish(prompt_tokens=812, completion_tokens=164, prompt_tokens_details={"cached_tokens": 768}),
        )
        self.answer_of(
            page,
            "What is the weather in Paris?",
            call(0, "c1", "get_weather", '{"city": "Paris"}'),
            finish("tool_calls"),
        )

    def check_width(self, page, width):
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
        wide = page.evaluate("""[...document.querySelectorAll('main *')].filter(
            e => !e.closest('pre, .table, svg, .visually-hidden') &&
            e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))""")
        self.assertEqual(wide, [])

    def test_widths_and_themes(self):
        for width in (360, 390, 768, 1280, 1400):
            for dark in (False, True):
                with self.subTest(width=width, dark=dark):
                    page = self.open(width=width, height=800, dark=dark)
                    self.shoot(page, f"empty-{width}-{'dark' if dark else 'light'}")
                    self.fill(page)
                    self.check_width(page, width)
                    self.shoot(page, f"end-{width}-{'dark' if dark else 'light'}")
                    page.evaluate("document.querySelector('#scroller').scrollTop = 0")
                    self.shoot(page, f"chat-{width}-{'dark' if dark else 'light'}")
                    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
                    self.assertEqual(sum(map(int, re.findall(r"\d+", background)[:3])) < 384, dark)
                    page.click("#open-settings")
                    self.shoot(page, f"settings-{width}-{'dark' if dark else 'light'}")
                    page.press("Escape")
                    if width < 860:
                        page.click("#open-sidebar")
                        page.wait("document.querySelector('#sidebar').getBoundingClientRect().left === 0")
                        self.shoot(page, f"sidebar-{width}-{'dark' if dark else 'light'}")
                        page.press("Escape")
                    self.fine(page)

    def test_the_switch_goes_before_the_system(self):
        page = self.open(dark=True)
        background = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(background)
        page.click("#theme")
        self.assertNotEqual(page.evaluate(background), dark)
        page.go(self.upstream.url)
        self.assertNotEqual(page.evaluate(background), dark)
        page.click("#theme")
        page.set_dark(False)
        self.assertEqual(page.evaluate(background), dark)

    def test_keyboard_and_labels(self):
        page = self.open()
        page.click("#prompt")
        page.type("one")
        page.press("Enter", shift=True)
        page.type("two")
        self.assertEqual(page.evaluate("document.querySelector('#prompt').value"), "one\ntwo")
        self.assertEqual(self.upstream.requests, [])
        self.upstream.will_answer(text("x"), finish())
        page.press("Enter")
        page.wait(DONE)
        self.assertEqual(self.upstream.requests[0]["messages"][0]["content"], "one\ntwo")
        page.evaluate("document.activeElement.blur()")
        seen = []
        for _ in range(24):
            page.press("Tab")
            seen.append(page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label')"))
        wanted = ("new-chat", "export", "clear", "theme", "open-settings", "Copy", "Edit", "Retry", "prompt")
        order = [name for name in wanted if name in seen]
        self.assertEqual(order, sorted(order, key=seen.index), seen)
        self.assertEqual(len(order), 9, seen)
        unnamed = page.evaluate("""[...document.querySelectorAll('button, input, select, textarea')].filter(e =>
            !(e.getAttribute('aria-label') || e.innerText?.trim() || e.labels?.length))
            .map(e => e.outerHTML.slice(0, 90))""")
        self.assertEqual(unnamed, [])
        self.assertEqual(page.text("#announcer"), "The answer is complete")

    def test_one_answer_at_a_time(self):
        page = self.open()
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        self.upstream.will_answer(text("begun"), go_on, text(" and ended"), finish())
        self.say(page, "a")
        page.wait("document.querySelector('.prose')?.innerText === 'begun'")
        page.type("b")
        page.press("Enter")
        self.assertIn("Esc", page.text("#notice"))
        page.click("#new-chat")  # it goes on where nobody looks
        page.evaluate("document.querySelector('#chat-list .open').focus()")
        go_on.set()
        page.wait("document.querySelector('#stop').hidden")
        self.assertEqual(page.evaluate("document.activeElement.className"), "open", "the focus stays")
        page.click("#chat-list .open")
        self.assertEqual(page.text(".message.last .prose"), "begun and ended")
        self.assertEqual(len(self.upstream.requests), 1)
        self.fine(page)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--screenshots", metavar="FOLDER")
    arguments, tests = parser.parse_known_args()
    if find_browser() is None:
        print("page: skipped, there is no Chromium here (scripts/setup.sh --browser installs it)")
        sys.exit(77)
    open_setting(arguments.program, arguments.screenshots)
    try:
        program = unittest.main(argv=[sys.argv[0], *tests], exit=False, verbosity=2)
    finally:
        close_setting()
    sys.exit(0 if program.result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
