"""Replays what agents send against `quire serve` with the demo model: replay_agents.py PROGRAM [MODEL].

Every request must be answered without an error, and a prompt that goes on from the one before must be found in the
prefix cache but for a tenth. Prints a table: requests, tokens of the last prompt, tokens that prompts had in common
with those before them, and how many of these were found.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from agent_shapes import SHAPES

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LEAST = 0.9  # of what prompts share


class Serve:
    def __init__(self, program, model, folder):
        self.log, self.access = folder / "log", folder / "access"
        command = [program, "serve", "-m", model, "--port", "0", "-a", "demo", "-np", "4", "--access-log", self.access]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        end = time.monotonic() + 120
        while not (said := re.search(r"at (http://[\d.:]+)", self.log.read_text())):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.05)
        self.url = said[1]

    def close(self):
        self.process.terminate()
        self.process.wait(60)

    def records(self):
        """Of each request by its id, what the access log says."""
        lines = map(json.loads, self.access.read_text().splitlines())
        return {line["request_id"]: line for line in lines if "request_id" in line}


def events_of(text):
    """The data of a stream's events, or its lines."""
    for line in text.splitlines():
        data = line.removeprefix("data: ") if line.startswith(("data: ", "{")) else ""
        if data and data != "[DONE]":
            yield json.loads(data)


def anthropic_blocks(events):
    blocks = []
    for e in events:
        if e["type"] == "content_block_start":
            blocks.append(dict(e["content_block"]))
        elif e["type"] == "content_block_delta":
            for name, value in e["delta"].items():
                if name != "type":
                    blocks[-1][name] = blocks[-1].get(name, "") + value
    return [b for b in blocks if b.get("text") != ""]


def response_items(events):
    kept = {"message": ("type", "role", "content"), "reasoning": ("type", "summary", "content")}
    items = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    return [{name: i[name] for name in kept[i["type"]] if name in i} for i in items if i["type"] in kept]


def chat_message(events):
    content = reasoning = ""
    for e in events:
        for part in [c.get("delta") or c.get("message", {}) for c in e.get("choices", [])] + [e.get("message", {})]:
            content += part.get("content") or ""
            reasoning += part.get("reasoning_content") or part.get("thinking") or ""
    return {"content": content, "reasoning": reasoning}


def answer_of(path, text):
    events = list(events_of(text))
    problems = [e for e in events if "error" in e or e.get("type") in ("error", "response.failed")]
    problems = [e for e in problems if e.get("error") or e.get("type") in ("error", "response.failed")]
    if problems:
        raise AssertionError(f"{path}: {problems[0]}")
    if path.startswith("/v1/messages"):
        return anthropic_blocks(events) if text.startswith("event:") else events
    if path.startswith("/v1/responses"):
        return response_items(events)
    return chat_message(events)


def send(url, path, headers, body):
    """The request's id, and what the client makes of the answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers} if data else headers
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=300) as answer:
            text = answer.read().decode()
            return answer.headers["X-Request-Id"], answer_of(path, text) if data else json.loads(text)
    except urllib.error.HTTPError as failure:
        raise AssertionError(f"{path}: {failure.code} {failure.read().decode()}") from None


def replay(url, shape):
    """[(request id, whether its prompt goes on from the last one that is not beside)]"""
    sent, answer = [], None
    conversation = shape("demo")
    while True:
        try:
            path, headers, body, follow = conversation.send(answer)
        except StopIteration:
            return sent
        identifier, answer = send(url, path, headers, body)
        sent.append((identifier, follow))


def row_of(sent, records):
    shared = found = last = 0
    for identifier, follow in sent:
        record = records[identifier]
        if follow is None or "prompt_tokens" not in record:
            continue
        if follow:
            # Where the log tells no place at which others went another way, all of the last prompt is in this one.
            common = min(record.get("diverged_at", last), last)
            shared += common
            found += min(record["cached_tokens"], common)
        last = record["prompt_tokens"]
    return len(sent), last, shared, found


def main():
    program = sys.argv[1]
    model = sys.argv[2] if len(sys.argv) > 2 else str(ROOT / "models/demo-moe-nvfp4.gguf")
    with tempfile.TemporaryDirectory() as folder:
        server = Serve(program, model, pathlib.Path(folder))
        try:
            sent = {name: replay(server.url, shape) for name, shape in SHAPES.items()}
        finally:
            server.close()
        records = server.records()
    print("| client | requests | last prompt | shared | found | |\n|---|--:|--:|--:|--:|--:|")
    bad = []
    for name, requests in sent.items():
        count, last, shared, found = row_of(requests, records)
        print(f"| {name} | {count} | {last} | {shared} | {found} | {found / shared:.1%} |")
        if found < LEAST * shared:
            bad.append(name)
    if bad:
        sys.exit(f"less than {LEAST:.0%} of what prompts share was found: {', '.join(bad)}")


if __name__ == "__main__":
    main()
