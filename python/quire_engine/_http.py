"""HTTP/1.1 as the engine speaks it, without a socket: bytes of requests, and a reader that answers are fed to."""
from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .errors import OverloadedError, PromptTooLongError, QuireError, RequestError


def request_bytes(method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    """One request, after which the connection closes."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    # Half a pair of surrogates stays an escape, which the engine reads as U+FFFD.
    content = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


class Reader:
    """Reads one answer. `body` grows as bytes come; events() takes those of a stream out of it."""

    def __init__(self) -> None:
        self.status = 0  # 0: its head has not come yet
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.done = False
        self._input = bytearray()
        self._left: int | None = None  # of a body, or of a chunk of one; None: not known yet
        self._chunked = False

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def feed(self, data: bytes) -> None:
        """Bytes that came. No bytes: the connection is closed."""
        if not data:
            if not self.done:
                raise ConnectionResetError("the connection was closed")
            return
        self._input += data
        if not self.status and not self._read_head():
            return
        if not self._chunked:
            self._take(self._left or 0)
            self.done = self._left == 0
        else:
            self._read_chunks()

    def _read_head(self) -> bool:
        end = self._input.find(b"\r\n\r\n")
        if end < 0:
            return False
        lines = self._input[:end].decode("latin-1").split("\r\n")
        del self._input[:end + 4]
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.status = int(lines[0].split(" ", 2)[1])
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if not self._chunked:
            self._left = int(self.headers.get("content-length", "0"))
        return True

    def _take(self, most: int) -> None:
        piece = self._input[:most]
        del self._input[:most]
        self.body += piece
        self._left = most - len(piece)

    def _read_chunks(self) -> None:
        while not self.done:
            if self._left is None:
                end = self._input.find(b"\r\n")
                if end < 0:
                    return
                self._left = int(self._input[:end].split(b";")[0], 16)
                del self._input[:end + 2]
                if self._left == 0:
                    self.done = True
                    return
            if self._left > 0:
                self._take(self._left)
            if self._left > 0 or len(self._input) < 2:
                return
            del self._input[:2]
            self._left = None

    def events(self) -> Iterator[dict[str, Any]]:
        """The objects of the events that are complete. An error among them is raised."""
        while (end := self.body.find(b"\n\n")) >= 0:
            event = bytes(self.body[:end])
            del self.body[:end + 2]
            for line in event.split(b"\n"):
                if line.startswith(b"data: {"):
                    value = json.loads(line[6:])
                    if "error" in value:
                        raise error_of(value, 500)
                    yield value

    def value(self) -> Any:
        """The object of a whole answer. An error is raised."""
        try:
            value = json.loads(self.body) if self.body else None
        except ValueError:
            value = None
        if self.status != 200:
            raise error_of(value, self.status)
        return value


def error_of(value: Any, status: int) -> QuireError:
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return RequestError(f"the engine answers with status {status}", status)
    message, code, param = str(error.get("message")), error.get("code"), error.get("param")
    if code == "context_length_exceeded":
        return PromptTooLongError(message, status, code, param)
    if status in (429, 503):
        return OverloadedError(message, status, code, param)
    return RequestError(message, status, code, param)
