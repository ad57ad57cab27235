"""What one does with chats on the page at /: branches, names, files, settings, long answers; page_test.py runs these."""

import json

from page_harness import DONE, PageTest, Setting
from scripted_upstream import Failure, call, finish, text

SHOWN = "[...document.querySelectorAll('.message')].map(m => m.querySelector('.text, .prose').innerText)"


class Branches(PageTest):
    def shown(self, page):
        return page.evaluate(SHOWN)

    def retry(self, page, answer):
        self.upstream.will_answer(text(answer), finish())
        page.click(".message.last [aria-label=Retry]")
        page.wait(f"document.querySelector('.message.last .prose')?.innerText === {json.dumps(answer)}")
        page.wait(DONE)

    def test_edit_and_retry_keep_what_was(self):
        page = self.open()
        self.answer_of(page, "one", text("1"), finish())
        self.assertFalse(page.evaluate("!document.querySelector('.branches').hidden"), "there is one way yet")
        self.retry(page, "uno")
        self.answer_of(page, "two", text("2"), finish())
        self.assertEqual(page.text(".message.assistant .branches span"), "2/2")
        page.click(".message.assistant .before")
        self.assertEqual(self.shown(page), ["one", "1"])
        self.assertEqual(page.text(".branches:not([hidden]) span"), "1/2")
        self.assertTrue(page.evaluate("document.querySelector('.message.assistant .before').disabled"))
        page.click(".message.assistant .after")
        self.assertEqual(self.shown(page), ["one", "uno", "two", "2"])

        page.click(".message.user [aria-label=Edit]")
        page.evaluate("document.querySelector('.editor textarea').select()")
        page.type("eins")
        self.upstream.will_answer(text("I"), finish())
        page.press("Enter")
        page.wait("document.querySelector('.message.last .prose')?.innerText === 'I'")
        page.wait(DONE)
        page.go(self.upstream.url)
        page.wait("document.querySelectorAll('.message').length === 2")
        page.click(".message.user .before")
        self.assertEqual(self.shown(page), ["one", "uno", "two", "2"])
        self.assertEqual(page.text(".message.assistant .branches span"), "2/2", "a fork within a fork")
        self.answer_of(page, "three", text("3"), finish())
        sent = [m["content"] for m in self.upstream.requests[-1]["messages"]]
        self.assertEqual(sent, ["one", "uno", "two", "2", "three"], "the path alone is sent")
        self.fine(page)

    def test_deleting_shows_another_branch(self):
        page = self.open()
        self.answer_of(page, "one", text("1"), finish())
        self.retry(page, "uno")
        self.retry(page, "un")
        page.click(".message.last [aria-label=Delete]")
        self.assertEqual(self.shown(page), ["one", "uno"])
        self.assertEqual(page.text(".message.last .branches span"), "2/2")
        page.click(".message.last [aria-label=Delete]")
        self.assertEqual(self.shown(page), ["one", "1"])
        self.assertEqual(page.text(".message.last .branches span") or "", "")
        self.fine(page)

    def test_answers_that_failed_are_no_branches(self):
        page = self.open()
        self.answer_of(page, "one", Failure(500, "{}"))
        self.retry(page, "1")
        self.assertTrue(page.evaluate("document.querySelector('.message.last .branches').hidden"))
        self.fine(page)


class LongAnswers(PageTest):
    def test_continue_after_a_cut(self):
        page = self.open()
        self.answer_of(page, "a", text("half an"), finish("length"))
        self.upstream.will_answer(text(" answer"), finish())
        page.click(".more")
        page.wait("document.querySelector('.message.last .prose')?.innerText === 'half an answer'")
        page.wait(DONE)
        sent = self.upstream.requests[-1]
        self.assertEqual(sent["messages"][-1], {"role": "assistant", "content": "half an"})
        self.assertIs(sent["continue_final_message"], True)
        self.assertIs(sent["add_generation_prompt"], False)
        self.assertTrue(page.evaluate("document.querySelector('.more').hidden"))
        self.answer_of(page, "b", call(0, "c", "look", "{}"), finish("length"))
        self.assertTrue(page.evaluate("document.querySelector('.message.last .more').hidden"), "a call is no text")
        self.fine(page)

    def test_continue_with_the_model(self):
        page = self.open(Setting.server.url)
        page.click("#open-settings")
        page.click("[data-setting=max_tokens]")
        page.type("6")
        page.click("#close-settings")
        self.say(page, "Tell me a story about a fox who lost a key.")
        page.wait(DONE)
        half = page.text(".message.last .prose")
        page.click(".more")
        page.wait(f"document.querySelector('.message.last .prose').innerText.length > {len(half)}")
        page.wait(DONE)
        self.assertTrue(page.text(".message.last .prose").startswith(half))
        self.assertIsNone(page.text(".message.last .error") or None)
        self.fine(page)

    def test_a_gauge_of_the_context(self):
        page = self.open()
        self.assertTrue(page.evaluate("document.querySelector('#gauge').hidden"))
        self.answer_of(page, "a", text("x"), 0.05, finish(prompt_tokens=1500, completion_tokens=24))
        self.assertEqual(page.text("#gauge"), "1,524 of 2,048 tokens")
        self.assertEqual(page.evaluate("document.querySelector('#gauge meter').value"), 1524)
        self.answer_of(page, "b", text("x"), 0.05, finish("length", prompt_tokens=2000, completion_tokens=48))
        self.assertIn("Begin a new chat", page.text(".message.last"), "it is full: going on would not help")
        self.assertTrue(page.evaluate("document.querySelector('.message.last .more').hidden"))
        page.click("#new-chat")
        self.assertTrue(page.evaluate("document.querySelector('#gauge').hidden"))
        self.fine(page)

    def test_a_chat_that_is_too_long_says_what_to_do(self):
        page = self.open(Setting.server.url)
        page.click("#prompt")
        page.type("word " * 4000)
        page.press("Enter")
        page.wait(DONE)
        self.assertIn("Begin a new chat", page.text(".message.last"))
        self.assertIn("context", page.text(".message.last .error"))
        page = self.open()
        self.answer_of(page, "a", Failure(400, json.dumps({"error": {"message": "no", "code": "invalid_value"}})))
        self.assertNotIn("Begin a new chat", page.text(".message.last"))


CHOOSE = """(() => {{ const field = document.querySelector('#{field}'); const files = new DataTransfer();
    for (const [name, parts] of {files}) files.items.add(new File(parts.map((p) => Array.isArray(p)
        ? new Uint8Array(p) : p), name));
    field.files = files.files; field.dispatchEvent(new Event('change')); }})()"""


class Files(PageTest):
    def choose(self, page, field, *files):
        page.evaluate(CHOOSE.format(field=field, files=json.dumps(files)))

    def test_text_goes_with_a_message(self):
        page = self.open()
        code = "a = 1\n```\nb\n"
        self.choose(page, "attach-file", ("a.py", [code]), ("<b>.txt", ["é"]))
        page.wait("document.querySelectorAll('#attached li').length === 2")
        self.assertEqual(page.text("#attached").split(), ["a.py", "<b>.txt"])
        page.click("#attached li:last-child button")
        self.assertEqual(page.count("#attached li"), 1)
        self.answer_of(page, "What is it?", text("x"), finish())
        sent = self.upstream.requests[-1]["messages"][0]["content"]
        self.assertEqual(sent, "a.py:\n````\na = 1\n```\nb\n````\n\nWhat is it?")
        self.assertTrue(page.evaluate("document.querySelector('#attached').hidden"))
        self.assertIn("a.py", page.text(".message.user .file summary"))
        page.go(self.upstream.url)
        page.wait("document.querySelector('.message.user .file') !== null")
        self.choose(page, "attach-file", ("alone.txt", ["alone"]))
        page.wait("!document.querySelector('#send').disabled")
        self.upstream.will_answer(text("y"), finish())
        page.click("#send")
        page.wait("document.querySelectorAll('.message').length === 4")
        page.wait(DONE)
        self.assertEqual(self.upstream.requests[-1]["messages"][2]["content"], "alone.txt:\n```\nalone\n```")
        self.fine(page)

    def test_what_is_no_text_is_refused(self):
        page = self.open()
        for name, content in (("a.bin", [255, 254]), ("b.bin", [65, 0, 66]), ("large", "x" * 1_000_001)):
            self.choose(page, "attach-file", (name, [content]))
            page.wait(f"document.querySelector('#notice').innerText.startsWith('{name} is')")
            self.assertEqual(page.count("#attached li"), 0)
        self.fine(page)

    def test_chats_come_in_as_they_went_out(self):
        page = self.open()
        self.answer_of(page, "one", text("1"), finish())
        self.upstream.will_answer(text("uno"), finish())
        page.click(".message.last [aria-label=Retry]")
        page.wait("document.querySelector('.message.last .prose')?.innerText === 'uno'")
        page.wait(DONE)
        page.evaluate("URL.createObjectURL = (blob) => { window.exported = blob; return '#exported'; }")
        page.click("#export")
        exported = page.evaluate("window.exported.text()")
        self.choose(page, "import-file", ("chats.json", [exported]))
        page.wait("document.querySelector('#notice').innerText === '0 chats of 1 came in.'")
        page.click("#clear")
        page.click("#confirm-yes")
        page.wait("document.querySelectorAll('#chat-list .open').length === 0")
        self.choose(page, "import-file", ("chats.json", [exported]))
        page.wait("document.querySelectorAll('#chat-list .open').length === 1")
        page.click("#chat-list .open")
        self.assertEqual(page.text(".message.last .prose"), "uno")
        page.click(".message.last .before")
        self.assertEqual(page.text(".message.last .prose"), "1")
        self.fine(page)

    def test_files_of_chats_may_be_anything(self):
        page = self.open()
        deep = {"messages": [{"role": "user", "content": "deep"}]}
        for _ in range(60):
            deep = {"messages": [{"role": "user", "content": "d", "fork": {"at": 1, "tails": [deep["messages"], None]}}]}
        for content in (
            "",
            "[]",
            "null",
            '{"chats": 1}',
            '{"chats": [null, 1, {}, {"messages": 1}, {"messages": [{"role": "system"}]}]}',
            json.dumps({"chats": [deep]}),
            json.dumps({"chats": [{"title": {}, "messages": [{"role": "user", "content": "a", "fork": {"at": "x"}}]}]}),
            json.dumps({"chats": [{"messages": [{"role": "user", "content": "a", "files": [1], "stats": 3}]}]}),
            '{"chats": [{"messages": [{"role": "assistant", "content": "a", "stats": {"prompt": 1e999}, "calls": 1}]}]}',
            json.dumps({"chats": [{"messages": [{"role": "assistant", "content": "a", "fork": {"tails": [[], None]}}]}]}),
        ):
            page.evaluate("document.querySelector('#notice').textContent = ''")
            self.choose(page, "import-file", ("x.json", [content]))
            page.wait("document.querySelector('#notice').innerText !== ''")
        for i in range(1, page.count("#chat-list .open") + 1):
            page.click(f"#chat-list li:nth-child({i}) .open")
            self.assertEqual(page.count(".message"), 1)
        self.fine(page)


class Lists(PageTest):
    def test_rename_and_search(self):
        page = self.open()
        self.answer_of(page, "about foxes", text("They are red."), finish())
        page.click("#new-chat")
        self.answer_of(page, "about bears", text("They are brown."), finish())
        rename = "#chat-list li:last-child [aria-label^=Rename]"
        page.evaluate("document.querySelector('#chat-list li:last-child .open').focus()")
        page.click(rename)
        page.type("Vulpes")
        page.press("Escape")
        self.assertEqual(page.text("#chat-list").split("\n"), ["about bears", "about foxes"])
        page.evaluate("document.querySelector('#chat-list li:last-child .open').focus()")
        page.click(rename)
        page.type("Vulpes")
        page.press("Enter")
        self.assertEqual(page.text("#chat-list").split("\n"), ["Vulpes", "about bears"])
        for words, found in (("VULPES", ["Vulpes"]), ("brown", ["about bears"]), ("about", ["Vulpes", "about bears"])):
            page.click("#search")
            page.evaluate("document.querySelector('#search').select()")
            page.type(words)
            self.assertEqual(page.text("#chat-list").split("\n"), found)
        page.type("x")
        self.assertEqual(page.text("#chat-list"), "No chat has this.")
        page.click("#new-chat")
        self.fine(page)


class Settings(PageTest):
    def test_they_reach_the_server(self):
        page = self.open()
        page.click("#open-settings")
        page.click(".more-settings summary")
        numbers = {
            "top_k": 12,
            "min_p": 0.1,
            "presence_penalty": -0.5,
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.1,
        }
        for name, value in numbers.items():
            page.click(f"[data-setting={name}]")
            page.type(str(value))
        page.click("[data-setting=schema]")
        page.type('{"type": "object"}')
        page.click("[data-setting=extra]")
        page.type('{"stop": ["END"], "top_k": 3, "stream": false}')
        page.click("#close-settings")
        self.answer_of(page, "a", text("x"), finish())
        sent = self.upstream.requests[-1]
        self.assertEqual({name: sent[name] for name in numbers}, {**numbers, "top_k": 3})
        self.assertEqual(sent["response_format"]["json_schema"]["schema"], {"type": "object"})
        self.assertEqual(sent["stop"], ["END"])
        self.assertIs(sent["stream"], True)
        page.evaluate("document.querySelector('[data-setting=extra]').value = '[1]'")
        page.evaluate("document.querySelector('#settings').dispatchEvent(new Event('input'))")
        self.say(page, "b")
        page.wait("document.querySelector('.message.last .error')?.innerText.includes('no JSON object')")
        self.fine(page)


class Phones(PageTest):
    def test_enter_begins_a_line(self):
        page = self.open(width=390, height=800)
        page.call("Emulation.setTouchEmulationEnabled", enabled=True)
        page.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        page.call("Emulation.setEmulatedMedia", features=[{"name": n, "value": v} for n, v in self.TOUCH])
        page.go(self.upstream.url)
        page.wait("document.querySelector('#state').dataset.state === 'ready'")
        if not page.evaluate("matchMedia('(hover: none) and (pointer: coarse)').matches"):
            self.skipTest("this Chromium does not play a phone")
        page.evaluate("document.querySelector('#prompt').focus()")
        page.type("one")
        page.press("Enter")
        page.type("two")
        self.assertEqual(page.evaluate("document.querySelector('#prompt').value"), "one\ntwo")
        self.assertEqual(self.upstream.requests, [])
        self.upstream.will_answer(text("x"), finish())
        page.evaluate("document.querySelector('#send').click()")
        page.wait(DONE)
        self.assertEqual(self.upstream.requests[0]["messages"][0]["content"], "one\ntwo")
        self.fine(page)

    TOUCH = (("hover", "none"), ("pointer", "coarse"))


class Buttons(PageTest):
    def test_none_takes_room_that_cannot_be_seen(self):
        for width in (390, 1280):
            page = self.open(width=width)
            self.answer_of(page, "a", text("x"), finish())
            self.answer_of(page, "b", text("y"), finish())
            unseen = page.evaluate("""[...document.querySelectorAll('button')].filter(e => {
                const r = e.getBoundingClientRect();
                const seen = e.checkVisibility({opacityProperty: true, visibilityProperty: true});
                return r.width > 0 && !seen && !e.closest('#sidebar'); }).map(e => e.outerHTML.slice(0, 80))""")
            self.assertEqual(unseen, [])
            self.fine(page)
