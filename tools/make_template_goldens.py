#!/usr/bin/env python3
"""Renders tests/data/templates/*.jinja with Jinja2 for a list of conversations; writes goldens.json beside them.

    tools/make_template_goldens.py

Needs python3-jinja2 (3.1). The environment is Hugging Face's (tools/hf_jinja.py); the date is fixed.
"""

import copy
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import hf_jinja  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/data/templates"


def tool(name, description, properties, required=()):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool("get_weather", "Weather of a place — “now”", {
        "city": {"type": "string", "description": "e.g. Zürich"}, "unit": {"type": "string", "enum": ["c", "f"]},
        "days": {"type": "array", "items": {"type": "integer"}}}, ["city"]),
    tool("add", "Adds <a> & 'b'", {"a": {"type": ["number", "null"]}, "b": {"type": "number"}}, ["a", "b"]),
]


def call(name, arguments, call_id="abcdefghi"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


S = {"role": "system", "content": "Be brief.\n"}
U = {"role": "user", "content": "What is 2+2?"}
A = {"role": "assistant", "content": "4"}
CALL = {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"city": "Zürich", "days": [1, 2]})]}
SAID_CALL = {"role": "assistant", "content": "Let me look.", "tool_calls": [call("add", {"a": 1.5, "b": -3e-7})]}
TWO_CALLS = {"role": "assistant", "content": "", "tool_calls": [call("add", {"a": 1, "b": 2}), call("add", {"a": 3, "b": {"x": None}})]}
TOOL = {"role": "tool", "tool_call_id": "abcdefghi", "content": "{\"temp\": 21.5}"}

CONVERSATIONS = {
    "user": [U],
    "system": [S, U],
    "turns": [S, U, A, {"role": "user", "content": "  And 3+3?  "}],
    "no system turns": [U, A, {"role": "user", "content": "Größe? 😀 <b>&amp;</b>"}, {"role": "assistant", "content": " sechs \n"}],
    "think": [U, {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4"}, {"role": "user", "content": "Sure?"}],
    "think last": [S, U, {"role": "assistant", "content": "<think>\nHm.\n\n</think>\n\n4"}],
    "reasoning field": [U, {"role": "assistant", "reasoning_content": "\nI add.\n", "content": "4"}],
    "call": [S, U, CALL, TOOL],
    "call answered": [U, SAID_CALL, TOOL, {"role": "assistant", "content": "21.5 °C"}, {"role": "user", "content": "Thanks"}],
    "two calls": [S, U, TWO_CALLS, TOOL, {"role": "tool", "content": "7"}, {"role": "user", "content": "<result>x</result>"}],
    "string arguments": [U, {"role": "assistant", "content": "", "tool_calls": [call("add", "{\"a\": 1}", "x")]}, TOOL],
    "parts": [{"role": "system", "content": [{"type": "text", "text": "Look."}]},
              {"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": " What is this? "}]}],
    "parts only text": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two\nthree"}]}],
    "odd part": [{"role": "user", "content": [{"type": "audio", "audio": "x.wav"}]}],
    "no content": [{"role": "user"}],
    "null content": [{"role": "user", "content": None}, A],
    "late system": [U, A, S, U],
    "two users": [U, U],
    "odd role": [U, {"role": "critic", "content": "bad"}],
    "empty": [],
    "long": [m for i in range(5) for m in ({"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}\n" * i})],
}
OPTIONS = {
    "plain": {},
    "prompt": {"add_generation_prompt": True},
    "tools": {"tools": TOOLS, "add_generation_prompt": True},
    "thinking": {"enable_thinking": True, "add_generation_prompt": True},
    "no thinking": {"enable_thinking": False, "add_generation_prompt": True},
    "tools apart": {"tools": TOOLS, "tools_in_user_message": False, "date_string": "26 Jul 2024"},
}


def main():
    env = hf_jinja.environment()
    cases = []
    for path in sorted(FOLDER.glob("*.jinja")):
        source = path.read_text()
        for conversation, messages in CONVERSATIONS.items():
            for option, extra in OPTIONS.items():
                if option not in ("prompt", "tools") and (len(cases) + len(conversation) + len(option)) % 3:
                    continue  # a third of the less telling combinations is enough
                variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": False,
                             "bos_token": "<s>", "eos_token": "</s>", **extra}
                text, error = hf_jinja.render(env, source, copy.deepcopy(variables))
                expected = {"text": text} if error is None else {"error": error}
                cases.append({"template": path.name, "conversation": conversation, "options": option, **expected})
    goldens = {"conversations": CONVERSATIONS, "options": OPTIONS, "cases": cases}
    (FOLDER / "goldens.json").write_text(json.dumps(goldens, ensure_ascii=False, indent=1) + "\n")
    errors = sum("error" in c for c in cases)
    print(f"{len(cases)} cases, {errors} of them errors, {len(set(c['template'] for c in cases))} templates")


if __name__ == "__main__":
    main()
