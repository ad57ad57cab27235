"""Thirty requests with schemas and tools, as servers answer them: thirty_requests.py [--json-object] NAME=URL...

--json-object spells a schema as llama.cpp does, {"type": "json_object", "schema"}, and not as OpenAI does.

Each is sent five times with other seeds to /v1/chat/completions, and every answer is held against jsonschema (PyPI).
Prints a table with a column for each server:

    obeys           all answers are what was asked for
    obeys, told     they are, and a header says what of the schema is not enforced
    breaks, told    some are not, which the header said
    breaks          some are not, and nothing said so
    refuses (400)   with the status; where it is right, since nothing can satisfy the request, "rightly refuses"
    never ends      max_tokens cut all of them
    no answer       within two minutes

Fails if the first server breaks a request without a word, or answers one with 5xx.
"""

import json
import sys
import urllib.error
import urllib.request

import jsonschema

SEEDS = 5


def thing(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


AGE = {"type": "integer", "minimum": 0, "maximum": 99}
NAME = {"type": "string", "maxLength": 8}
TREE = {
    "$defs": {"node": thing(v=AGE, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]})},
    "$ref": "#/$defs/node",
}
ALL_OF = {
    "allOf": [
        {"type": "object", "properties": {"a": AGE}, "required": ["a"]},
        {"type": "object", "properties": {"b": NAME}, "required": ["b"]},
    ],
    "maxProperties": 2,
}
SIBLINGS = {
    "type": "object",
    "properties": {"kind": {"enum": ["x", "y"]}, "n": AGE},
    "required": ["kind"],
    "anyOf": [{"required": ["n"]}, {"properties": {"kind": {"const": "y"}}}],
    "additionalProperties": False,
}
ONE_OF = {"oneOf": [thing(kind={"const": "a"}, n=AGE), thing(kind={"const": "b"}, s=NAME)]}
IF_THEN = {
    **thing(country={"enum": ["US", "NL"]}, code={"type": "string", "maxLength": 6}),
    "if": {"properties": {"country": {"const": "US"}}},
    "then": {"properties": {"code": {"pattern": "^[0-9]{5}$"}}},
}
SCHEMAS = {
    "integer with limits, string with a length": thing(name=NAME, age=AGE),
    "array with 2 to 4 items": {"type": "array", "items": AGE, "minItems": 2, "maxItems": 4},
    "`enum` of 1,000 texts": {"enum": [f"option {i}" for i in range(1000)]},
    "`const` with Unicode": {"const": {"é": ["日本", None, 1]}},
    "`anyOf` beside `properties`": SIBLINGS,
    "`allOf` of two objects": ALL_OF,
    "`oneOf` by a constant": ONE_OF,
    "recursion by `$ref`": TREE,
    "`pattern`": thing(id={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"}),
    "`pattern` without anchors": thing(id={"type": "string", "pattern": "ab", "maxLength": 12}),
    "`pattern` with `maxLength`": thing(id={"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}),
    "`format: date-time`": thing(at={"type": "string", "format": "date-time"}),
    "`patternProperties`": {
        "type": "object",
        "patternProperties": {"^n_[a-c]$": AGE},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 2,
    },
    "`additionalProperties` with a schema": {"type": "object", "additionalProperties": AGE, "maxProperties": 2},
    "`exclusiveMinimum`, `exclusiveMaximum`": {"type": "integer", "exclusiveMinimum": 6, "exclusiveMaximum": 9},
    "`multipleOf`": {"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": 7},
    "`uniqueItems`": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2, "uniqueItems": True},
    "`not`": {"type": "integer", "minimum": 0, "maximum": 3, "not": {"enum": [0, 1, 2]}},
    "`if`, `then`": IF_THEN,
    "nothing can satisfy it": {"type": "integer", "minimum": 5, "maximum": 1},
    "`$ref` to another document": {"$ref": "https://example.com/schema.json"},
    "a pattern that is none": thing(id={"type": "string", "pattern": "(("}),
}
ASK = [{"role": "user", "content": "Answer with something short."}]
REFUSABLE = {"nothing can satisfy it", "`$ref` to another document", "a pattern that is none"}


def tool(name, schema):
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}


PLACE = thing(city=NAME, days={"type": "integer", "minimum": 1, "maximum": 9})
TOOLS = [tool("get_weather", PLACE), tool("add", thing(a=AGE, b=AGE)), tool("say", thing(text=NAME))]
# What agents offer: many tools, with keywords that grammars do not have.
ODD = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "format": "uri-reference", "minLength": 1, "pattern": "^(?!-)(?=.*[a-z]).+$"},
        "edits": {"type": "array", "uniqueItems": True, "items": {"type": "object", "additionalProperties": {}}},
        "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
        "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
    },
    "dependentRequired": {"edits": ["path"]},
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "not": {"required": ["nothing"]},
}
MANY = [tool(f"tool_{i}", ODD) for i in range(24)]
WEATHER = {"name": "get_weather", "arguments": '{"city": "Paris", "days": 2}'}
CALL = {"id": "call_1", "type": "function", "function": WEATHER}
BROKEN = {"id": "call_2", "type": "function", "function": {**WEATHER, "arguments": '{"city": "Par'}}
RESULTS = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]


def call_requests():
    """Name, body, and the schemas of the tools that may be called; None: any answer is one."""
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}
    named = {"type": "function", "function": {"name": "add"}}
    yield "tools: `required`", {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}, schemas
    yield "tools: a name", {"tools": TOOLS, "tool_choice": named}, {"add": schemas["add"]}
    yield "tools: `required`, in a stream", {"tools": TOOLS[:1], "tool_choice": "required", "stream": True}, schemas
    yield "tools: 24 with odd keywords, `auto`", {"tools": MANY}, None
    yield "tools: a call without content, and its result", {"tools": TOOLS, "messages": ASK + RESULTS}, None
    cut = {"role": "assistant", "content": "", "tool_calls": [BROKEN]}
    broken = ASK + [cut, {**RESULTS[1], "tool_call_id": "call_2"}]
    yield "tools: a call whose arguments were cut", {"tools": TOOLS, "messages": broken}, None
    yield "tools: a name that is no tool's", {"tools": TOOLS, "tool_choice": {**named, "function": {"name": "x"}}}, {}


def send(url, body):
    """Status, message, why it ended, what is told to be unenforced."""
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            text, told = answer.read().decode(), answer.headers.get("X-Unenforced")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), None, None
    except OSError:  # a timeout among them
        return None, "", None, None
    if not body.get("stream"):
        choice = json.loads(text)["choices"][0]
        return 200, choice["message"], choice["finish_reason"], told
    call, finish = {"name": "", "arguments": ""}, None
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:]).get("choices", []):
            finish = choice.get("finish_reason") or finish
            for delta in choice["delta"].get("tool_calls") or []:
                for name, value in delta["function"].items():
                    call[name] += value or ""
    return 200, {"tool_calls": [{"function": call}]}, finish, told


def is_valid(schema, text):
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return False
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(value)


def calls_are_valid(schemas, message):
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return bool(calls) and all(c["name"] in schemas and is_valid(schemas[c["name"]], c["arguments"]) for c in calls)


def verdict(url, body, check, refusable):
    ended = valid = 0
    told = None
    for seed in range(SEEDS):
        status, message, finish, said = send(url, {"messages": ASK, "max_tokens": 400, "seed": seed, **body})
        if status is None:
            return "no answer"
        if status != 200:
            return ("rightly refuses" if refusable and status < 500 else "refuses") + f" ({status})"
        told = told or said
        if finish != "length":
            ended += 1
            valid += check(message)
    if ended == 0:
        return "never ends"
    return ("obeys" if valid == ended else "breaks") + (", told" if told else "")


def requests(json_object=False):
    """Name, body, what a right answer is, whether a refusal is right."""
    for name, schema in SCHEMAS.items():
        form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
        if json_object:
            form = {"type": "json_object", "schema": schema}
        able = name not in REFUSABLE
        yield (name, {"response_format": form},
               lambda m, s=schema, able=able: able and is_valid(s, m["content"] or ""), not able)
    form = {"type": "json_object"}
    yield "`json_object`", {"response_format": form}, lambda m: is_valid({"type": "object"}, m["content"] or ""), False
    for name, body, schemas in call_requests():
        yield name, body, lambda m, s=schemas: s is None or calls_are_valid(s, m), schemas == {}


def main():
    json_object = sys.argv[1:2] == ["--json-object"]
    servers = [argument.split("=", 1) for argument in sys.argv[1 + json_object :]]
    print("| request | " + " | ".join(name for name, _ in servers) + " |\n|---" + "|---" * len(servers) + "|")
    bad, count = [], 0
    for name, body, check, refusable in requests(json_object):
        got = [verdict(url, body, check, refusable) for _, url in servers]
        count += 1
        print(f"| {name} | " + " | ".join(got) + " |", flush=True)
        if got[0] in ("breaks", "no answer") or "(5" in got[0]:
            bad.append(name)
    print(f"{count} requests")
    if bad:
        sys.exit("broken without a word, or an error of the server: " + "; ".join(bad))


if __name__ == "__main__":
    main()
