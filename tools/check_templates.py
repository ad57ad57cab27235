#!/usr/bin/env python3
"""Chat templates of others through Jinja2 and through Quire; prints where they differ.

    tools/check_templates.py [--build build/release] [--show 10] [--only NAME] SOURCE...

A source is a template (*.jinja, *.jinja2), a file that holds some ("chat_template" in *.json, as in a model's
tokenizer_config.json, or constants in *.py), a folder or a package (*.tar.gz, *.zip, *.whl) that any of these are
looked for in. Each is rendered for many conversations: with and without a system message, tools, calls, reasoning,
parts, empty and null contents and the beginning of an answer. Where Jinja2 raises, Quire must fail; where it prints,
Quire must print the same.

Needs a built tree and python3-jinja2 (3.1), whose environment is that of tools/hf_jinja.py; where the transformers
library can be imported, it is the library's own.
"""

import argparse
import ast
import collections
import copy
import json
import pathlib
import re
import sys
import tarfile
import warnings
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import hf_jinja  # noqa: E402
import quire_jinja  # noqa: E402
from make_template_goldens import CALL, CONVERSATIONS, OPTIONS, TOOL, TOOLS, TWO_CALLS, A, S, U, call  # noqa: E402

SUFFIXES = (".jinja", ".jinja2", ".json", ".py")
MORE = {"role": "user", "content": "And now?"}
THOUGHT = {"reasoning_content": "Two and two.\nThat is four.", "thinking": "Two and two.", "reasoning": "Two and two."}
EMPTY = {"role": "assistant", "content": ""}


def thought(*keys):
    return {k: THOUGHT[k] for k in keys}


MORE_CONVERSATIONS = {
    "empty system": [{"role": "system", "content": ""}, U],
    "null system": [{"role": "system", "content": None}, U],
    "developer": [{"role": "developer", "content": "Be brief.\n"}, U, A, MORE],
    "system and developer": [S, {"role": "developer", "content": "In verse."}, U],
    "empty user": [{"role": "user", "content": ""}, A, MORE],
    "empty answer": [U, EMPTY, MORE],
    "answer without content": [U, {"role": "assistant"}, MORE],
    "answer last": [S, U, A],
    "answer last, thinking": [U, A | thought("reasoning_content", "thinking")],
    "reasoning, turns": [S, U, A | thought("reasoning_content"), MORE, A | thought("reasoning_content"), U],
    "reasoning by three names": [U, A | thought("reasoning_content", "thinking", "reasoning"), MORE],
    "null reasoning": [U, A | {"reasoning_content": None, "thinking": None}, MORE],
    "empty reasoning": [U, A | {"reasoning_content": "", "thinking": ""}, MORE],
    "thinking and a call": [U, CALL | thought("thinking", "reasoning_content"), TOOL, A],
    "thinking and two calls": [U, TWO_CALLS | thought("reasoning_content"), TOOL, TOOL, A, MORE],
    "call awaits": [S, U, CALL],
    "call without id": [U, {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]},
        {"role": "tool", "content": "3"}],
    "call without arguments": [U, {"role": "assistant", "tool_calls": [call("add", {})]}, TOOL],
    "call of odd values": [U, {"role": "assistant", "content": "", "tool_calls": [call("add", {
        "a": True, "b": None, "c": [1, "zwei", {"x": 1.0}], "d": "<b> & \"quoted\"\n", "e": 1e21, "f": {}})]}, TOOL],
    "calls one after the other": [U, CALL, TOOL, TWO_CALLS, TOOL, TOOL, A, MORE],
    "named tool": [U, CALL, TOOL | {"name": "get_weather"}, A],
    "tool of parts": [U, CALL, TOOL | {"content": [{"type": "text", "text": "21"}]}],
    "tool of a mapping": [U, CALL, TOOL | {"name": "get_weather", "content": {"temp": 21.5}}],
    "empty tool": [U, CALL, TOOL | {"content": ""}, A],
    "null tool": [U, CALL, TOOL | {"content": None}],
    "tool responses": [U, CALL | {"tool_responses": [{"name": "get_weather", "response": {"temp": 21.5}}]}, A],
    "null calls": [U, A | {"tool_calls": None}, MORE],
    "no calls": [U, A | {"tool_calls": []}, MORE],
    "parts of all": [{"role": "system", "content": [{"type": "text", "text": "Look."}]},
                     {"role": "user", "content": [{"type": "text", "text": "one"}]},
                     {"role": "assistant", "content": [{"type": "text", "text": " two "}]},
                     {"role": "user", "content": [{"type": "text", "text": "three"}, {"type": "text", "text": ""}]}],
    "image and video": [
        {"role": "user", "content": [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "?"}]}],
    "no parts": [{"role": "user", "content": []}, A],
    "control tokens": [{"role": "user", "content": "<start_of_turn>model\n[INST]<|im_end|><|channel|>[gMASK]</s>"}, A],
    "white space": [{"role": "system", "content": " \n"}, {"role": "user", "content": "\n a \n"},
                    {"role": "assistant", "content": "\t b\n\n"}, {"role": "user", "content": "c"}],
    "ends in a think": [U, {"role": "assistant", "content": "a</think>b</think>c"}, MORE],
    "harmony text": [U, {"role": "assistant", "content": "<|channel|>analysis<|message|>x<|end|>"}, MORE],
    "model role": [U, {"role": "model", "content": "4"}, MORE],
}
MORE_OPTIONS = {
    "tools, no prompt": {"tools": TOOLS},
    "tools, thinking": {"tools": TOOLS, "enable_thinking": True, "add_generation_prompt": True},
    "no tools": {"tools": [], "add_generation_prompt": True},
    "effort": {"reasoning_effort": "high", "add_generation_prompt": True, "model_identity": "You are a parrot."},
    "effort and tools": {"reasoning_effort": "low", "tools": TOOLS, "builtin_tools": ["browser", "python"],
                         "add_generation_prompt": True},
    "preserved thinking": {"preserve_thinking": True, "clear_thinking": False, "keep_past_thinking": True,
                           "add_generation_prompt": True},
    "documents": {"documents": [{"title": "T", "text": "Some text.", "content": "c", "doc_id": 1}],
                  "add_generation_prompt": True},
}


def values_of(held, name):
    """(name, template) of every "chat_template" in what a JSON file holds."""
    if isinstance(held, list):
        for i, value in enumerate(held):
            yield from values_of(value, f"{name} {i}")
    elif isinstance(held, dict):
        name = held.get("model_name", held.get("name", name))
        template = held.get("chat_template", held.get("template"))
        if isinstance(template, str) and "{%" in template:
            yield name, template
        for value in held.values():
            yield from values_of(value, name)


def constants_of(source):
    """(name, template) of every template that a module in Python gives a name to."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)):
            continue
        target, value = node.targets[0], node.value.value
        if isinstance(target, ast.Name) and isinstance(value, str) and "{%" in value and "messages" in value:
            yield target.id, value


def templates_in(name, read):
    """Those of a file: its name, or its name and that of the template in it."""
    text = read().decode("utf-8", "replace")
    if not name.endswith((".json", ".py")):
        return {name: text}
    if "chat_template" not in text:
        return {}
    try:
        found = values_of(json.loads(text), "") if name.endswith(".json") else constants_of(text)
        return {f"{name} {of}".strip(): template for of, template in found}
    except (ValueError, SyntaxError):
        return {}


def find_templates(source):
    found = {}
    path = pathlib.Path(source)
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.name.endswith(SUFFIXES) and file.is_file():
                found |= templates_in(str(file.relative_to(path)), file.read_bytes)
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(SUFFIXES):
                    found |= templates_in(member.name, archive.extractfile(member).read)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(SUFFIXES):
                    found |= templates_in(member, lambda m=member: archive.read(m))
    else:
        found |= templates_in(path.name, path.read_bytes)
    return found


def reference():
    """Compiles a source as transformers does, and the name of what does it."""
    try:
        import transformers
        from transformers.utils import chat_template_utils as library
        compiled = library._compile_jinja_template
    except (ImportError, AttributeError):
        env = hf_jinja.environment()
        return env.from_string, f"the environment of {pathlib.Path(hf_jinja.__file__).name}"

    def compile_source(source):
        template = compiled(source)
        template.environment.globals["strftime_now"] = lambda fmt: hf_jinja.NOW.strftime(fmt)
        return template

    return compile_source, f"transformers {transformers.__version__}"


def render(compile_source, source, variables):
    """(text, None) or (None, error)."""
    try:
        return compile_source(source).render(**variables), None
    except Exception as e:  # whatever Python raises, Quire must refuse
        return None, f"{type(e).__name__}: {e}"


def jobs_of(source):
    for conversation, messages in (CONVERSATIONS | MORE_CONVERSATIONS).items():
        for option, extra in (OPTIONS | MORE_OPTIONS).items():
            yield f"{conversation} / {option}", source, {
                "messages": messages, "tools": None, "documents": None, "add_generation_prompt": False,
                "bos_token": "<s>", "eos_token": "</s>", **extra}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("sources", nargs="+")
    p.add_argument("--build", default="build/release")
    p.add_argument("--show", type=int, default=10, help="differences to print in full")
    p.add_argument("--only", default="", help="templates whose name contains this")
    args = p.parse_args()
    warnings.simplefilter("ignore")
    compile_source, by = reference()
    found = {}
    for source in args.sources:
        for name, template in find_templates(source).items():
            if args.only in name and template not in found.values():  # packages have many of the same
                found[name] = template
    if not found:
        sys.exit("there are no templates in " + ", ".join(args.sources))
    shown = differ = 0
    kinds = collections.Counter()
    for name, source in found.items():
        jobs = list(jobs_of(source))
        answers = quire_jinja.render_all(args.build, [(s, v) for _, s, v in jobs])
        rendered = wrong = 0
        for (what, _, variables), ours in zip(jobs, answers):
            text, error = render(compile_source, source, copy.deepcopy(variables))
            rendered += error is None
            if (ours.get("text") == text) if error is None else ("error" in ours):
                continue
            # Of addresses nobody prints the same.
            if text is not None and re.search(r" at 0x[0-9a-f]+>", text):
                continue
            wrong += 1
            kinds[ours.get("error", "another text")] += 1
            if shown < args.show:
                shown += 1
                print(f"--- {name}: {what}\n  Jinja2: {text!r} {error or ''}\n  Quire:  {ours}")
        differ += wrong
        print(f"{name}: {len(jobs)} conversations, {rendered} rendered, {wrong} differ", flush=True)
    print(f"{len(found)} templates against {by}: {differ} differences")
    for kind, count in kinds.most_common(20):
        print(f"  {count} x {kind}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
