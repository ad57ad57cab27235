"""Clients that others made, with pictures: picture_clients_test.py SERVER HOST FOLDER. See clients.sh.

HOST serves the files of FOLDER, from where the server may fetch them. The model is random: that an answer is the same
says that the same picture was seen.
"""

import base64
import io
import pathlib
import sys
import unittest

import anthropic
import litellm
import ollama
import openai
from PIL import Image

SERVER, HOST, FOLDER = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
QUESTION = "What is this?"


def picture(kind, size=(320, 256)):
    image = Image.linear_gradient("L").resize(size)
    file = io.BytesIO()
    Image.merge("RGB", (image, image.rotate(90), image.rotate(180))).save(file, kind)
    return file.getvalue()


PNG = picture("PNG")
DATA = base64.b64encode(PNG).decode()
(FOLDER / "picture.png").write_bytes(PNG)
URLS = {"base64": "data:image/png;base64," + DATA, "url": HOST + "/picture.png"}


def parts(url):
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]


def messages(content):
    return [{"role": "user", "content": content}]


class Pictures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.openai = openai.OpenAI(base_url=SERVER + "/v1", api_key="none", max_retries=0)
        # What all others must say of the same picture.
        r = cls.openai.chat.completions.create(
            model="sees", messages=messages(parts(URLS["base64"])), temperature=0, max_tokens=12)
        cls.text, cls.tokens = r.choices[0].message.content, r.usage.prompt_tokens
        words = cls.openai.chat.completions.create(model="sees", messages=messages(QUESTION), max_tokens=1)
        assert cls.tokens == words.usage.prompt_tokens + 82, "80 rows, and a token on either side"

    def said(self, text, tokens=None):
        self.assertEqual(text, self.text)
        if tokens is not None:
            self.assertEqual(tokens, self.tokens)

    def test_openai(self):
        for name, url in URLS.items():
            with self.subTest(name):
                asked = dict(model="sees", messages=messages(parts(url)), temperature=0, max_tokens=12)
                r = self.openai.chat.completions.create(**asked)
                self.said(r.choices[0].message.content, r.usage.prompt_tokens)
                chunks = self.openai.chat.completions.create(**asked, stream=True)
                self.said("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))

    def test_openai_responses(self):
        for name, url in URLS.items():
            with self.subTest(name):
                content = [{"type": "input_image", "image_url": url, "detail": "auto"},
                           {"type": "input_text", "text": QUESTION}]
                r = self.openai.responses.create(
                    model="sees", input=messages(content), temperature=0, max_output_tokens=12)
                self.said(r.output_text, r.usage.input_tokens)

    def test_a_second_turn(self):
        first = messages(parts(URLS["base64"])) + [{"role": "assistant", "content": self.text}]
        r = self.openai.chat.completions.create(
            model="sees", messages=first + messages("And that?"), temperature=0, max_tokens=4)
        self.assertGreater(r.usage.prompt_tokens, self.tokens)
        self.assertGreater(r.usage.prompt_tokens_details.cached_tokens, 0)

    def test_what_cannot_be_seen(self):
        for url, said in (("data:image/png;base64,aGVsbG8=", "invalid_image"),
                          (HOST + "/none.png", "invalid_image_url"),
                          ("https://elsewhere.example/a.png", "invalid_image_url")):
            with self.subTest(url), self.assertRaises(openai.BadRequestError) as e:
                self.openai.chat.completions.create(model="sees", messages=messages(parts(url)))
            self.assertEqual(e.exception.code, said)

    def test_anthropic(self):
        client = anthropic.Anthropic(base_url=SERVER, api_key="none", max_retries=0)
        sources = {"base64": {"type": "base64", "media_type": "image/png", "data": DATA},
                   "url": {"type": "url", "url": URLS["url"]}}
        for name, source in sources.items():
            with self.subTest(name):
                content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
                asked = dict(model="sees", messages=messages(content), max_tokens=12, extra_body={"temperature": 0})
                r = client.messages.create(**asked)
                self.said(r.content[0].text, r.usage.input_tokens + (r.usage.cache_read_input_tokens or 0))
                with client.messages.stream(**asked) as stream:
                    self.said("".join(stream.text_stream))
                counted = client.messages.count_tokens(model="sees", messages=messages(content))
                self.assertEqual(counted.input_tokens, self.tokens)

    def test_ollama(self):
        client = ollama.Client(host=SERVER)
        options = {"temperature": 0, "num_predict": 12}
        (FOLDER / "local.png").write_bytes(PNG)
        for name, image in ("bytes", PNG), ("base64", DATA), ("path", str(FOLDER / "local.png")):
            with self.subTest(name):
                message = {"role": "user", "content": QUESTION, "images": [image]}
                r = client.chat(model="sees", messages=[message], options=options)
                self.said(r.message.content, r.prompt_eval_count)
                pieces = client.chat(model="sees", messages=[message], options=options, stream=True)
                self.said("".join(p.message.content for p in pieces))
                r = client.generate(model="sees", prompt=QUESTION, images=[image], options=options)
                self.said(r.response, r.prompt_eval_count)

    def test_litellm(self):
        for model, base in ("openai/sees", "/v1"), ("anthropic/sees", ""), ("ollama_chat/sees", ""):
            for name, url in URLS.items():
                if name == "url" and not model.startswith("openai"):
                    continue  # it fetches what stands at http: itself, and not from this machine
                with self.subTest(f"{model} {name}"):
                    r = litellm.completion(model=model, api_base=SERVER + base, api_key="none", temperature=0,
                                           max_tokens=12, messages=messages(parts(url)), num_retries=0)
                    self.said(r.choices[0].message.content)

    def test_other_files(self):
        for kind in "JPEG", "WEBP", "GIF":
            with self.subTest(kind):
                url = "data:image/png;base64," + base64.b64encode(picture(kind)).decode()
                r = self.openai.chat.completions.create(model="sees", messages=messages(parts(url)), max_tokens=1)
                self.assertEqual(r.usage.prompt_tokens, self.tokens)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
