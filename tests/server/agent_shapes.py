"""Conversations in the shape in which agents and front ends send them, one function for each.

Each yields (path, headers, body, follow) for one request after the other; `follow` is whether its prompt goes on from
the one before. What the server answered comes back from the yield and stands in the next request, as the client would
send it back. Shapes follow the clients' public documentation and sources; all texts are made up.
"""

import json
import random

WORDS = (
    """file path change test read write keep short clear name line code tool run list find check error task step plan
answer user ask never always before after only when make small commit branch folder search open result output input
safe value type list function module build fail pass log text format note rule style""".split()
)


def prose(seed, words):
    """A text of so many words, the same for the same seed."""
    rng = random.Random(seed)
    sentences = []
    while words > 0:
        n = min(words, rng.randint(6, 14))
        sentences.append(" ".join(rng.choice(WORDS) for _ in range(n)).capitalize() + ".")
        words -= n
    return " ".join(sentences)


def schema(seed, **properties):
    described = {name: {"type": kind, "description": prose(f"{seed}{name}", 8)} for name, kind in properties.items()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": described,
        "required": list(properties)[:1],
        "additionalProperties": False,
    }


TOOLS = {
    "bash": schema("bash", command="string", timeout="number", description="string"),
    "read": schema("read", file_path="string", offset="integer", limit="integer"),
    "edit": schema("edit", file_path="string", old_string="string", new_string="string", replace_all="boolean"),
    "todo": {
        "type": "object",
        "properties": {
            "todos": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "content": {"type": "string", "minLength": 1},
                        "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                    },
                    "required": ["content", "status"],
                },
            }
        },
        "required": ["todos"],
    },
}
RESULT = "\n".join(f"{i:6}\tline {i}: {prose(i, 6)}" for i in range(1, 16))
ASKS = ("Why does the test of the parser fail?", "Fix it, please.", "Thanks. Now run all of the tests.")


def claude_code(model):
    """Messages of Anthropic: probes, then a turn of two calls, and another question."""
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
        "x-app": "cli",
        "User-Agent": "claude-cli/2.1.0 (external, cli)",
        "X-Stainless-Lang": "js",
        "anthropic-dangerous-direct-browser-access": "true",
    }
    user = {"user_id": "user_0123_account__session_4567"}
    path = "/v1/messages?beta=true"
    tools = [{"name": n, "description": prose(n, 40), "input_schema": s} for n, s in TOOLS.items()]
    tools.append({"type": "web_search_20250305", "name": "web_search", "max_uses": 8})
    probe = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}], "metadata": user}
    yield path, headers, probe, False
    count = {"model": model, "messages": [{"role": "user", "content": "foo"}], "tools": tools[:1]}
    yield "/v1/messages/count_tokens?beta=true", headers, count, False
    title = {
        "model": model,
        "max_tokens": 512,
        "system": [{"type": "text", "text": prose("title", 40)}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": ASKS[0]}]}],
        "metadata": user,
        "temperature": 1,
        "stream": True,
    }
    yield path, headers, title, False

    def body(messages, turn):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.0; cch={turn:05x};"},
            {"type": "text", "text": "You are a tool for the terminal.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": prose("claude", 900), "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        ]
        marked = json.loads(json.dumps(messages))
        marked[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        return {
            "model": model,
            "max_tokens": 32000,
            "system": system,
            "messages": marked,
            "tools": tools,
            "metadata": user,
            "stream": True,
            "thinking": {"type": "enabled", "budget_tokens": 31999},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "medium"},
        }

    reminder = {"type": "text", "text": f"<system-reminder>\n{prose('reminder', 60)}\n</system-reminder>\n"}
    messages = [{"role": "user", "content": [reminder, {"type": "text", "text": ASKS[0]}]}]
    turn = 0
    for question in range(len(ASKS)):
        if question > 0:
            messages.append({"role": "user", "content": [{"type": "text", "text": ASKS[question]}]})
        for call in range(2):
            answer = yield path, headers, body(messages, turn), turn > 0
            turn += 1
            identifier = f"toolu_{turn:04}"
            use = {"type": "tool_use", "id": identifier, "name": "read", "input": {"file_path": f"/src/{turn}.py"}}
            messages.append({"role": "assistant", "content": [*answer, use]})
            result = {"type": "tool_result", "tool_use_id": identifier, "content": RESULT}
            if call == 1:
                result.update(content=[{"type": "text", "text": RESULT}], is_error=True)
            messages.append({"role": "user", "content": [result]})
        answer = yield path, headers, body(messages, turn), True
        turn += 1
        messages.append({"role": "assistant", "content": answer or [{"type": "text", "text": "Done."}]})


def codex(model):
    """Responses: items without end, custom tools, reasoning that is sent back encrypted."""
    headers = {"originator": "codex_cli_rs", "session_id": "0199-aaaa", "Accept": "text/event-stream"}
    headers["User-Agent"] = "codex_cli_rs/0.145.0"
    yield "/v1/models?client_version=0.145.0", headers, None, False

    def message(role, *texts):
        kind = "output_text" if role == "assistant" else "input_text"
        return {"type": "message", "role": role, "content": [{"type": kind, "text": t} for t in texts]}

    functions = {
        "exec_command": schema("exec", cmd="string", workdir="string", yield_time_ms="number"),
        "write_stdin": schema("stdin", session_id="number", chars="string"),
        "view_image": schema("image", path="string"),
        "update_plan": TOOLS["todo"],
    }
    tools = [
        {"type": "function", "name": n, "description": prose(n, 30), "strict": False, "parameters": s}
        for n, s in functions.items()
    ]
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" LF'}
    tools.append({"type": "custom", "name": "apply_patch", "description": prose("patch", 30), "format": grammar})
    tools.append({"type": "web_search", "external_web_access": False})
    items = [
        message("developer", f"<permissions instructions>\n{prose('permissions', 120)}\n</permissions instructions>"),
        message(
            "user", f"# AGENTS.md instructions\n{prose('agents', 150)}", "<environment_context>\n<cwd>/src</cwd>\n"
        ),
        message("user", ASKS[0]),
    ]
    for turn in range(6):
        body = {
            "model": model,
            "instructions": prose("codex", 700),
            "input": items,
            "tools": tools,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "0199-aaaa",
            "text": {"verbosity": "low"},
            "client_metadata": {"x-codex-installation-id": "1"},
        }
        answer = yield "/v1/responses", headers, body, turn > 0
        items = [*items, *answer]
        if turn % 3 == 0:
            items.append({"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAAA"})
        if turn % 3 == 2:
            items.append(message("user", ASKS[1 + turn // 3]))
        elif turn % 3 == 1:
            patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-a\n+b\n*** End Patch"
            call = {"type": "custom_tool_call", "status": "completed", "call_id": f"c{turn}", "name": "apply_patch"}
            items.append({**call, "input": patch})
            items.append({"type": "custom_tool_call_output", "call_id": f"c{turn}", "output": "Success."})
        else:
            arguments = json.dumps({"cmd": "pytest -q", "workdir": "/src"})
            call = {"type": "function_call", "name": "exec_command", "arguments": arguments, "call_id": f"c{turn}"}
            items.append(call)
            items.append({"type": "function_call_output", "call_id": f"c{turn}", "output": RESULT})


def chat_tools(seed):
    return [
        {"type": "function", "function": {"name": n, "description": prose(seed + n, 40), "parameters": s}}
        for n, s in TOOLS.items()
    ]


def chat_turns(path, headers, body, messages, call_of=None):
    """Questions, each with two calls, of a client of chat completions (or of Ollama's chat)."""
    followed = False
    for question in range(len(ASKS)):
        messages.append({"role": "user", "content": ASKS[question]})
        for call in range(3):
            answer = yield path, headers, {**body, "messages": messages}, followed
            followed = True
            message = {"role": "assistant", "content": answer["content"] if call == 2 else ""}
            if answer["reasoning"]:
                message["reasoning_content"] = answer["reasoning"]
            messages.append(message)
            if call == 2:
                continue
            identifier, arguments = f"call_{question}{call}", {"file_path": f"/src/{call}.py", "limit": 15}
            message["tool_calls"] = [
                {"id": identifier, "type": "function", "function": {"name": "read", "arguments": json.dumps(arguments)}}
            ]
            result = {"role": "tool", "tool_call_id": identifier, "content": RESULT}
            if call_of is not None:
                message["tool_calls"], result = call_of("read", arguments, RESULT)
            messages.append(result)


def opencode(model):
    """Chat completions through the AI SDK; a title first."""
    headers = {"User-Agent": "opencode/1.2.0 ai-sdk/openai-compatible/1.0.30"}
    path = "/v1/chat/completions"
    stream = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    title = [
        {"role": "system", "content": prose("opencode title", 120)},
        {"role": "user", "content": "Generate a title for this conversation:\n"},
        {"role": "user", "content": f'"{ASKS[0]}"'},
    ]
    yield path, headers, {**stream, "messages": title, "max_tokens": 200, "temperature": 0.5}, False
    body = {**stream, "max_tokens": 512, "temperature": 0, "top_p": 1, "tools": chat_tools("oc"), "tool_choice": "auto"}
    yield from chat_turns(path, headers, body, [{"role": "system", "content": prose("opencode", 900)}])


def vscode_ollama(model):
    """VS Code's provider for Ollama: what it asks of models, then chats in OpenAI's form."""
    headers = {"User-Agent": "GitHubCopilotChat/0.40.0", "X-Initiator": "agent", "OpenAI-Intent": "conversation-agent"}
    yield "/api/version", headers, None, False
    yield "/api/tags", headers, None, False
    yield "/api/show", headers, {"model": model}, False
    body = {
        "model": model,
        "temperature": 0,
        "top_p": 1,
        "max_tokens": 512,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": chat_tools("vs"),
    }
    system = {"role": "system", "content": [{"type": "text", "text": prose("vscode", 900)}]}
    system["copilot_cache_control"] = {"type": "ephemeral"}
    yield from chat_turns("/v1/chat/completions", headers, body, [system])


def ollama_chat(model):
    """Ollama's own chat, as its libraries send it."""
    headers = {"User-Agent": "ollama-python/0.6.1"}
    body = {"model": model, "stream": True, "tools": chat_tools("ol"), "think": True, "keep_alive": "5m"}
    body["options"] = {"temperature": 0, "num_ctx": 32768, "num_predict": 100000}

    def call_of(name, arguments, result):
        call = [{"function": {"name": name, "arguments": arguments}}]
        return call, {"role": "tool", "tool_name": name, "content": result}

    yield from chat_turns("/api/chat", headers, body, [{"role": "system", "content": prose("ollama", 900)}], call_of)


def open_webui(model, ollama=False):
    """Open WebUI 0.12 with its built-in tools: a list of models, a conversation, and its tasks beside each answer.

    By default it asks at both kinds of connections, and takes a model that both have from Ollama's."""
    headers = {"User-Agent": "Python/3.11 aiohttp/3.14.5", "Accept": "*/*", "Accept-Encoding": "gzip, deflate, br"}
    path = "/api/chat" if ollama else "/v1/chat/completions"
    for asked in ("/v1/models", "/api/tags", "/api/ps", "/api/version"):
        yield asked, headers, None, False
    names = "get_current_timestamp ask_user search_chats view_chat search_memories add_memory write_note create_tasks"
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": prose(name, 14),
                "parameters": {
                    "properties": {
                        "query": {"description": prose(name + "q", 8), "type": "string"},
                        "count": {"default": 5, "description": "Most results", "type": "integer"},
                        "since": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                    },
                    "required": ["query"],
                    "type": "object",
                },
            },
        }
        for name in names.split()
    ]
    # A title before the first answer, further questions and tags behind it; no system prompt, no options.
    messages = []

    def task(kind, **options):
        said = "\n".join(f"{m['role'].upper()}: {m['content']}" for m in messages)
        text = f"### Task:\n{prose(kind, 60)}\n### Output:\nJSON format: {{ }}\n<chat_history>\n{said}\n</chat_history>"
        asked = [{"role": "user", "content": text}]
        return path, headers, {"model": model, "messages": asked, "stream": False, **options}, None

    for turn, question in enumerate(ASKS):
        messages.append({"role": "user", "content": question})
        if turn == 0:
            yield task("title", **({"options": {"num_predict": 1000}} if ollama else {"max_tokens": 1000}))
        body = {"stream": True, "model": model, "messages": list(messages), "tools": tools}
        answer = yield path, headers, body, turn > 0
        messages.append({"role": "assistant", "content": answer["content"] or "Well."})
        yield task("follow-ups")
        if turn == 0:
            yield task("tags")


def open_webui_ollama(model):
    """The same with a connection of Ollama's kind."""
    return open_webui(model, ollama=True)


SHAPES = {
    "Claude Code": claude_code,
    "Codex CLI": codex,
    "OpenCode": opencode,
    "Open WebUI": open_webui,
    "Open WebUI (Ollama)": open_webui_ollama,
    "VS Code (Ollama)": vscode_ollama,
    "Ollama's chat": ollama_chat,
}
