"""A server in front of `quire serve` that answers chats as a test says, and passes everything else on."""

import http.server
import json
import threading
import time
import urllib.error
import urllib.request


def text(content):
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}


def reasoning(content):
    return {"choices": [{"index": 0, "delta": {"reasoning_content": content}, "finish_reason": None}]}


def call(index, identifier=None, name=None, arguments=""):
    function = {"arguments": arguments, **({"name": name} if name else {})}
    delta = {"index": index, "function": function, **({"id": identifier, "type": "function"} if identifier else {})}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [delta]}, "finish_reason": None}]}


def finish(reason="stop", **usage):
    counts = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, **usage}
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": counts}


class Failure:
    """Instead of a stream: a whole response."""

    def __init__(self, status, body):
        self.status, self.body = status, body


BREAK = object()  # in a script: the connection ends here


class ScriptedUpstream:
    """Scripts are lists of events to send as JSON, of seconds to wait, and of threading.Event to wait for."""

    def __init__(self, upstream):
        self.upstream, self.scripts, self.requests = upstream, [], []
        handler = type("Handler", (Handler,), {"server_of_test": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def will_answer(self, *script):
        self.scripts.append(script)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    server_of_test = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/stranger":  # a page that is not the server's, and may do what it likes
            return self.respond(200, b"<!doctype html><iframe name=frame></iframe>", {"Content-Type": "text/html"})
        request = urllib.request.Request(self.server_of_test.upstream + self.path.lstrip("/"))
        request.add_header("Accept", self.headers.get("Accept", "*/*"))
        try:
            with urllib.request.urlopen(request) as answer:
                self.respond(answer.status, answer.read(), answer.headers)
        except urllib.error.HTTPError as failure:
            self.respond(failure.code, failure.read(), failure.headers)

    def respond(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "server", "date", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server_of_test.requests.append(body)
        script = self.server_of_test.scripts.pop(0)
        if isinstance(script[0], Failure):
            return self.respond(script[0].status, script[0].body.encode(), {"Content-Type": "application/json"})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self.play(script)
        except OSError:
            pass  # the page has left
        self.close_connection = True

    def play(self, script):
        for item in script:
            if item is BREAK:
                return
            if isinstance(item, float):
                time.sleep(item)
            elif isinstance(item, threading.Event):
                item.wait(60)
            else:
                self.wfile.write(b"data: " + json.dumps(item).encode() + b"\n\n")
                self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
