#!/usr/bin/env python3
"""What a chat template is given: conversations as clients of all four APIs send them, beside transformers.

    tools/check_messages.py PROGRAM [TEMPLATE.jinja...]

For each template (else those in tests/data/templates) a server of the demo model is started with it. Every conversation
is sent to /v1/chat/completions/render, whose text must be what transformers' apply_chat_template makes of the messages
as its users write them: arguments of calls parsed, members without a value left out. The same conversation in the
words of Messages, Responses and Ollama must have as many tokens. Where transformers refuses, the server must refuse.

In four cases the server is meant to do otherwise, and each is checked and counted:
    as text   a template that stops at arguments that were parsed gets their text, and the prompt must be that
    filled    a template that stops at a message without content gets "" there, likewise
    left out  transformers' text lacks a message whose role the template does not know: the server refuses the role
    empty     transformers' text is empty: the server refuses to continue nothing

Needs transformers and jinja2 (docs/testing.md); where they are missing it says so and is skipped.
"""

import collections
import json
import pathlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

try:
    from transformers.utils.chat_template_utils import render_jinja_template
except ImportError:
    print("skipped: transformers is not installed")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/demo-dense-nvfp4.gguf"
TOKENS = {"eos_token": "<|im_end|>"}  # of the demo model, as its tokenizer gives them to a template
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": PARAMETERS}}
ARGUMENTS = {"city": "Köln", "days": 2}


def user(text):
    return {"role": "user", "content": text}


def answer(text):
    return {"role": "assistant", "content": text}


def calls(content, *ids):
    """A turn with calls, as OpenAI's clients send it back."""
    function = {"name": "weather", "arguments": json.dumps(ARGUMENTS)}
    turn = {"role": "assistant", "tool_calls": [{"id": i, "type": "function", "function": function} for i in ids]}
    return turn if content is MISSING else turn | {"content": content}


def result(call_id, text="drizzle"):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


MISSING = object()
# name: (messages as chat clients send them, whether tools are declared)
CONVERSATIONS = {
    "one turn": ([user("Hi")], False),
    "system": ([{"role": "system", "content": "Be brief."}, user("Hi")], False),
    "three turns": ([user("Hi"), answer("Hello"), user("And now?")], False),
    "answer with members of null": ([user("Hi"), answer("Hello") | {"refusal": None, "audio": None, "tool_calls": None,
                                                                    "function_call": None}, user("And?")], False),
    "tools": ([user("Weather?")], True),
    "call, content null": ([user("Weather?"), calls(None, "call_1"), result("call_1"), user("Thanks")], True),
    "call, content missing": ([user("Weather?"), calls(MISSING, "call_1"), result("call_1"), user("Thanks")], True),
    "call, content empty": ([user("Weather?"), calls("", "call_1"), result("call_1"), user("Thanks")], True),
    "call and a word": ([user("Weather?"), calls("I look.", "call_1"), result("call_1")], True),
    "white space": ([{"role": "system", "content": "Be\nbrief."}, user(" Hi "), answer("\nHello"),
                     user("And\n\nnow?\n")], False),
    "member of null in a call": ([user("Weather?"), calls(None, "call_1") | {"refusal": None, "name": None},
                                  result("call_1") | {"name": None}, user("Thanks")], True),
    "two calls": ([user("Weather?"), calls(None, "call_1", "call_2"), result("call_1"), result("call_2", "sunshine")],
                  True),
}


def given(messages, parsed=True, filled=False):
    """The messages as users of transformers write them: arguments parsed or as text, missing content left out or ""."""
    out = []
    for m in messages:
        m = ({"content": ""} if filled else {}) | {k: v for k, v in m.items() if v is not None}
        if parsed and "tool_calls" in m:
            m["tool_calls"] = [c | {"function": c["function"] | {"arguments": json.loads(c["function"]["arguments"])}}
                               for c in m["tool_calls"]]
        out.append(m)
    return out


def as_anthropic(messages, tools):
    body = {"model": "demo", "max_tokens": 1, "messages": []}
    for m in messages:
        text = m.get("content")
        if m["role"] == "system":
            body["system"] = text
        elif m["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": m["tool_call_id"], "content": text}
            last = body["messages"][-1]
            if last["role"] == "user" and isinstance(last["content"], list):
                last["content"].append(block)
            else:
                body["messages"].append({"role": "user", "content": [block]})
        else:
            blocks = [{"type": "text", "text": text}] if text else []
            for c in m.get("tool_calls") or []:
                blocks.append({"type": "tool_use", "id": c["id"], "name": c["function"]["name"],
                               "input": json.loads(c["function"]["arguments"])})
            body["messages"].append({"role": m["role"], "content": blocks})
    if tools:
        body["tools"] = [{"name": "weather", "description": "Of a city.", "input_schema": PARAMETERS}]
    return "/v1/messages/count_tokens", body, lambda a: a["input_tokens"]


def as_responses(messages, tools):
    items = []
    for m in messages:
        if m["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": m["tool_call_id"], "output": m["content"]})
            continue
        if m.get("content"):
            items.append({"role": m["role"], "content": m["content"]})
        for c in m.get("tool_calls") or []:
            items.append({"type": "function_call", "call_id": c["id"]} | c["function"])
    body = {"model": "demo", "input": items, "max_output_tokens": 16}
    if tools:
        body["tools"] = [{"type": "function"} | WEATHER["function"]]
    return "/v1/responses", body, lambda a: a["usage"]["input_tokens"]


def as_ollama(messages, tools):
    out = []
    for m in messages:
        o = {"role": m["role"], "content": m.get("content") or ""}
        if m.get("tool_calls"):
            o["tool_calls"] = [{"id": c["id"], "function": {"name": c["function"]["name"],
                                                            "arguments": json.loads(c["function"]["arguments"])}}
                               for c in m["tool_calls"]]
        if m["role"] == "tool":
            o["tool_name"] = "weather"
            o["tool_call_id"] = m["tool_call_id"]
        out.append(o)
    body = {"model": "demo", "messages": out, "stream": False, "options": {"num_predict": 1}}
    if tools:
        body["tools"] = [WEATHER]
    return "/api/chat", body, lambda a: a["prompt_eval_count"]


class Server:
    """A server of the demo model with a template."""

    def __init__(self, program, template):
        self.process = subprocess.Popen(
            [program, "serve", "-m", MODEL, "--port", "0", "--no-repack", "--default-model", "--chat-template", template],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.url = None
        for line in self.process.stdout:
            if "http://" in line:
                self.url = "http://" + line.split("http://")[1].split()[0].rstrip("/,;.")
                break

    def post(self, path, body):
        """(status, answer)"""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    def close(self):
        self.process.terminate()
        self.process.wait(30)


def transformers_text(template, messages, tools, **how):
    """The text of messages given so, or None where the template refuses."""
    try:
        rendered, _ = render_jinja_template([given(messages, **how)], tools=[WEATHER] if tools else None,
                                            chat_template=template, add_generation_prompt=True, **TOKENS)
        return rendered[0]
    except Exception:  # whatever a template raises
        return None


GIVEN_OTHERWISE = {"as text": {"parsed": False}, "filled": {"filled": True},
                   "as text, filled": {"parsed": False, "filled": True}}


def meant_refusal(error, messages, want):
    """Which of the cases above a refusal is, or None."""
    if not want.strip() and error["message"].startswith("the prompt is empty"):
        return "empty"
    unknown = re.match(r"'messages\[(\d+)\]\.role' is ", error["message"])
    if unknown and messages[int(unknown[1])]["content"].strip() not in want:
        return "left out"
    return None


def compare(server, template, name, meant):
    """Lines about what differs; what differs and is meant to is counted in `meant`."""
    messages, tools = CONVERSATIONS[name]
    others = (as_anthropic, as_responses, as_ollama)
    given_as, want = None, transformers_text(template, messages, tools)
    body = {"model": "demo", "messages": messages} | ({"tools": [WEATHER]} if tools else {})
    status, answer = server.post("/v1/chat/completions/render", body)
    for case, how in GIVEN_OTHERWISE.items():
        if want is None:
            given_as, want = case, transformers_text(template, messages, tools, **how)
    if want is None:
        return [] if status == 400 else [f"transformers refuses, the server says {status}"]
    if status != 200:
        case = meant_refusal(answer["error"], messages, want)
        if case is None:
            return [f"the server says {status}: {answer}"]
        meant[case] += 1
        return []
    if given_as is not None:
        meant[given_as] += 1
    if given_as is not None and "as text" in given_as:
        others = (as_responses,)  # the server writes the text of what Messages and Ollama send parsed
    ids = answer["token_ids"]
    got = server.post("/detokenize", {"tokens": ids})[1]["prompt"]
    if got != want:
        return [f"chat: {got!r}\n    transformers: {want!r}"]
    problems = []
    for translate in others:
        path, body, count_of = translate(messages, tools)
        status, answer = server.post(path, body)
        count = count_of(answer) if status == 200 else f"{status}: {answer}"
        if count != len(ids):
            problems.append(f"{path}: {count} tokens, not {len(ids)}")
    return problems


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    templates = [pathlib.Path(p) for p in sys.argv[2:]] or sorted((ROOT / "tests/data/templates").glob("*.jinja"))
    differ = compared = 0
    meant = collections.Counter()
    started = time.monotonic()
    for path in templates:
        server = Server(program, path)
        try:
            if server.url is None:
                print(f"{path.name}: the server does not start")
                differ += 1
                continue
            for name in CONVERSATIONS:
                compared += 1
                for problem in compare(server, path.read_text(), name, meant):
                    differ += 1
                    print(f"{path.name}, {name}: {problem}")
        finally:
            server.close()
    cases = ", ".join(f"{n} {case}" for case, n in sorted(meant.items())) or "none"
    print(f"{compared} conversations, {len(templates)} templates, {differ} differences (meant: {cases}), "
          f"{time.monotonic() - started:.0f} s")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
