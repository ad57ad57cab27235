"""Whatever models, servers and storage say stays text on the page at /; page_test.py runs these."""

import json
import time

from page_harness import DONE, PageTest
from scripted_upstream import Failure, call, finish, reasoning, text

ATTACKS = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](data:text/html,<script>alert(1)</script>)",
    "<javascript:alert(1)>",
    "![a](javascript:alert(1))",
    "![a](https://example.org/x.png)",
    "[a](vbscript:x)",
    "<svg onload=alert(1)>",
    '<iframe src="javascript:alert(1)"></iframe>',
    "<style>*{display:none}</style>",
    "`<img src=x onerror=alert(1)>`",
    '```html"><img src=x onerror=alert(1)>\n<script>alert(1)</script>\n```',
    "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| <script>alert(1)</script> | c |",
    "# <img src=x onerror=alert(1)>",
    "- <img src=x onerror=alert(1)>",
    "> <script>alert(1)</script>",
    '[a](https://example.org/"onmouseover="alert(1))',
    'https://example.org/"><script>alert(1)</script>',
    "[<img src=x onerror=alert(1)>](https://example.org/)",
    '<a href="javascript:alert(1)">x</a>',
    '<meta http-equiv=refresh content="0;url=https://example.org">',
    '<base href="https://example.org/">',
    "<form action=https://example.org><input name=a></form>",
    "\u0000<script>alert(1)</script>",
    "\\(\\text{<img src=x onerror=alert(1)>}\\)",
    "$$\\href{javascript:alert(1)}{x}$$",
    "\\[\\operatorname{<script>alert(1)</script>}\\]",
    "```js\n'<img src=x onerror=alert(1)>' // <script>alert(1)</script>\n```",
]
HARMLESS = (
    "p h1 h2 h3 h4 h5 h6 ul ol li code pre em strong del a blockquote hr table thead tbody tr th td figure "
    "figcaption span button div svg use math mrow mi mn mo mtext mspace msup msub msubsup mover munder munderover mfrac "
    "msqrt mroot mtable mtr mtd mstyle"
).split()


class Injection(PageTest):
    def test_what_models_write_is_text(self):
        page = self.open()
        for attack in ATTACKS:
            with self.subTest(attack):
                self.show(page, attack)
                found = page.evaluate("[...document.querySelectorAll('.prose *')].map(e => e.localName)")
                self.assertEqual(sorted(set(found) - set(HARMLESS)), [])
                for href in page.evaluate("[...document.querySelectorAll('.prose a')].map(a => a.href)"):
                    self.assertRegex(href, "^https?://")
        handlers = page.evaluate("""[...document.querySelectorAll('.message *')].flatMap(e => [...e.attributes])
            .filter(a => a.name.startsWith('on') || a.name === 'style' || a.name === 'src').map(a => a.name)""")
        self.assertEqual(handlers, [])
        self.fine(page)

    def test_everywhere_else_too(self):
        page = self.open()
        for attack in ATTACKS:
            self.answer_of(page, attack, reasoning(attack), call(0, "c", attack, attack), text("x"), finish(attack))
            page.click("#new-chat")
            page.click("#chat-list .open")
            page.click("#new-chat")
        self.answer_of(page, "a", Failure(400, json.dumps({"error": {"message": "".join(ATTACKS)}})))
        page.go(self.upstream.url)
        page.wait("document.querySelectorAll('#chat-list .open').length > 10")
        outside = (
            "document.querySelectorAll('body :is(img, iframe, object, base, meta, link), body script + script').length"
        )
        self.assertEqual(page.evaluate(outside), 0)
        self.fine(page)

    def test_the_policy_holds_what_slips_through(self):
        page = self.open()
        page.evaluate("""(() => { const s = document.createElement('script'); s.append('window.ran = 1');
            document.body.append(s); const i = document.createElement('img'); i.src = 'https://example.org/x.png';
            document.body.append(i); })()""")
        page.wait("window.violations.length >= 2")
        self.assertIsNone(page.evaluate("window.ran ?? null"))
        self.assertEqual(
            page.evaluate(
                "(() => { try { document.body.innerHTML = '<b>'; return 'made'; } catch { return 'refused'; } })()"
            ),
            "refused",
        )

    def test_what_is_stored_may_be_anything(self):
        page = self.open()
        for chats, chat_text in (
            ("[]", "{}"),
            ("7", "null"),
            ('[{"id": "a", "title": "t"}]', '{"messages": 3}'),
            (
                '[{"id": "a", "title": "<img src=x onerror=alert(1)>"}, null, {"id": 5}]',
                '{"messages": [null, {"role": "system"}, {"role": "user", "content": "kept"}]}',
            ),
        ):
            for name, value in (
                ("chats", chats),
                ("chat.a", chat_text),
                ("current", '"a"'),
                ("settings", "[1]"),
                ("theme", "9"),
            ):
                page.evaluate(f"localStorage.setItem('quire.{name}', {json.dumps(value)})")
            page.go(self.upstream.url)
            page.wait("document.querySelector('#state').dataset.state === 'ready'")
        self.assertEqual(page.text(".message .text"), "kept")
        self.fine(page)

    def test_no_more_is_kept_than_fits(self):
        page = self.open()
        page.evaluate("""(() => { const list = [];
            for (let i = 0; i < 300; ++i) {
              list.push({id: 'old' + i, title: 'old ' + i, size: 15000});
              const chat = {messages: [{role: 'user', content: 'x'.repeat(15000)}]};
              localStorage.setItem('quire.chat.old' + i, JSON.stringify(chat));
            }
            localStorage.setItem('quire.chats', JSON.stringify(list)); })()""")
        self.answer_of(page, "new", text("x"), finish())
        kept = page.evaluate("Object.keys(localStorage).filter(k => k.startsWith('quire.chat.'))")
        self.assertLessEqual(len(kept), 200)
        self.assertNotIn("quire.chat.old299", kept)
        self.assertIn("quire.chat.old0", kept)
        self.answer_of(page, "huge", text("y" * 6_000_000), finish())
        self.assertEqual(page.text("#notice"), "The browser has no room to keep this chat.")
        self.fine(page)


MARKDOWN = [
    ("plain", "<p>plain</p>"),
    ("a\nb\n\nc", "<p>a\nb</p><p>c</p>"),
    ("# T #\n## U", "<h1>T</h1><h2>U</h2>"),
    ("**b** *i* _j_ __k__ ~~d~~ `c` snake_case_name 2*3*4", None),
    ("`` a`b `` \\*no\\*", "<p><code>a`b</code> *no*</p>"),
    ("* * *", "<hr>"),
    ("***both***", None),
    ("> q\n> r", "<blockquote><p>q\nr</p></blockquote>"),
    ("- a\n- b\n  - c\n\ntext", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><p>text</p>"),
    ("3. x\n4. y", '<ol start="3"><li>x</li><li>y</li></ol>'),
    ("1. a\n\n   more\n2. b", '<ol start="1"><li>a<p>more</p></li><li>b</li></ol>'),
    ("unclosed **b and `c", "<p>unclosed **b and `c</p>"),
    ("a * b * c", "<p>a * b * c</p>"),
    ("<b>x</b> &amp;", "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp;</p>"),
]


class Markdown(PageTest):
    def test_blocks_and_marks(self):
        page = self.open()
        for source, expected in MARKDOWN:
            if expected is not None:
                with self.subTest(source):
                    self.assertEqual(self.show(page, source), expected)
        html = self.show(page, MARKDOWN[3][0])
        self.assertEqual(
            html,
            "<p><strong>b</strong> <em>i</em> <em>j</em> <strong>k</strong> <del>d</del> <code>c</code> "
            "snake_case_name 2<em>3</em>4</p>",
        )
        link = 'target="_blank" rel="noopener noreferrer nofollow"'
        self.assertEqual(
            self.show(page, "[a *b*](https://e.org/x_(y)) https://e.org/z."),
            f'<p><a href="https://e.org/x_(y)" {link}>a <em>b</em></a> '
            f'<a href="https://e.org/z" {link}>https://e.org/z</a>.</p>',
        )
        self.show(page, "| a | b |\n|:--|--:|\n| 1 | `x\\|y` |\n| 2 |\nend")
        self.assertEqual(page.text(".message.last table").replace("\t", "|"), "a|b\n1|x|y\n2")
        self.assertEqual(page.text(".message.last .prose > p"), "end")
        self.show(page, "| a |\n|---|\n| 1 | more |")
        self.assertEqual(page.text(".message.last table"), "a\n1\tmore", "nothing that was written is left out")
        self.show(page, "```py\nprint('*x*')\n\n# no heading\n```\nafter")
        self.assertEqual(page.text(".message.last pre"), "print('*x*')\n\n# no heading")
        self.assertEqual(page.text(".message.last figcaption span"), "py")
        self.fine(page)

    def test_an_answer_that_grows_is_what_it_is_at_once(self):
        page = self.open()
        source = "# T\n\n- a\n- **b** `c`\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n"
        source += "```\ncode\n```\n\n1. z\n   > q\n\nend [l](https://e.org)"
        whole = self.show(page, source)
        self.answer_of(page, "again", *[text(c) for c in source], finish())
        self.assertEqual(page.evaluate("document.querySelector('.message.last .prose').innerHTML"), whole)

    def test_hostile_texts_take_no_long_time(self):
        page = self.open()
        n = 19000
        for hostile in (
            "*" * n,
            "*a " * (n // 3),
            "[" * n,
            "`" * n,
            "`a``" * (n // 4),
            "_a" * (n // 2),
            "](" * (n // 2),
            "[a](" * (n // 4),
            "> " * 3000,
            "- " * 3000,
            "  " * 3000 + "- x\n" * 3000,
            "|" * n + "\n" + "|-" * 9000,
            "<" * n,
            "https://" * (n // 8),
            "#" * n,
            "-" * n,
            "- " * 100 + "\n" + "-\n" * 20000,
            "\n".join(" " * (i % 900) + "- x" for i in range(5000)),
            "~" * 50000,
            "a\n" * 50000,
            "!" * n,
            "\\" * n,
            "**a" * (n // 3),
            "1. " * 6000,
            "> - " * 3000,
        ):
            with self.subTest(hostile[:20]):
                self.upstream.will_answer(text(hostile), finish())
                began = time.monotonic()
                self.say(page, "a")
                page.wait(DONE)
                self.assertLess(time.monotonic() - began, 5)
                page.click("#new-chat")
        self.fine(page)
