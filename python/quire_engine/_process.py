"""The engine: `quire serve` as a child that listens at a socket of ours, and ends when we do."""
from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from ._arguments import arguments_of
from ._http import Reader, request_bytes
from .errors import EngineDeadError, StartError

# What a server has against strangers does not serve whoever started it: nothing is too much unless memory is short.
LIMITS = {"max_n": 1024, "max_inputs": 65536, "max_stops": 1024, "max_unread": 1_000_000,
          "max_total_body_bytes": 4 << 30}
FLAGS = ("--no-access-log", "--no-ui", "--default-model", "--exit-with-stdin")
DEFAULTS: Mapping[str, object] = {"max_queue": 1_000_000, "max_body_bytes": 1 << 30, "request_timeout": 0,
                                  "max_priority": -1_000_000}
LIMITS_FILE = "limits.json"
LAST_WORDS = 4096  # bytes of what the program said that errors show


def find_program() -> str:
    """The program of this wheel, wherever pip laid it; else the one that a shell would start."""
    try:
        files = importlib.metadata.files("quire-engine") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [str(f.locate()) for f in files if f.name == "quire"]
    found.append(os.path.join(sysconfig.get_path("scripts"), "quire"))
    found.append(shutil.which("quire") or "")
    for path in found:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    raise StartError("the program quire is not here: install the wheel quire-engine, or name a program (program=...)")


class Engine:
    """The process, and connections to it. Any thread."""

    def __init__(self, model: str | os.PathLike[str], program: str | os.PathLike[str] | None,
                 options: Mapping[str, object]) -> None:
        self.model = os.fspath(model)
        self._owner = os.getpid()
        self._said: IO[bytes] = tempfile.TemporaryFile()
        self._shown = 0
        self._folder = _private_folder()
        self.socket = os.path.join(self._folder, "s")
        try:
            command = self._command(program, {**DEFAULTS, **options})
            # A session of its own: Ctrl-C is for who called, who may go on afterwards.
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._said,
                                           start_new_session=True)
        except OSError as error:
            self._never_began()
            raise StartError(f"{command[0]} cannot be started: {error.strerror}") from error
        except BaseException:
            self._never_began()
            raise
        # Nothing is being computed then but a file of the prefix cache, which takes as long as the disk does.
        patience = None if options.get("prefix_cache_file") else 60.0
        self._end = weakref.finalize(self, _end, self._child, self._folder, self._said, self._owner, patience)
        self._closed = False
        self._lock = threading.Lock()
        self._connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        _alive.add(self)

    def _never_began(self) -> None:
        self._said.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self, program: str | os.PathLike[str] | None, options: dict[str, object]) -> list[str]:
        limits = options.pop("limits", None)
        if limits is None or isinstance(limits, Mapping):
            path = os.path.join(self._folder, LIMITS_FILE)
            Path(path).write_text(json.dumps({**LIMITS, **(limits or {})}))
            limits = path
        return [os.fspath(program) if program is not None else find_program(), "serve", "-m", self.model,
                *arguments_of({**options, "limits": limits}), *FLAGS, "--uds", self.socket]

    def wait_until_ready(self, show: bool) -> None:
        """Returns when the model is loaded. `show`: what the program says meanwhile goes to standard error."""
        pause = 0.002
        try:
            while not self._is_ready():
                if show:
                    self._show()
                if self._child.poll() is not None:
                    raise StartError(self._last_words() or f"the engine {self._how_it_ended()}")
                time.sleep(pause)
                pause = min(pause * 1.5, 0.1)
            with contextlib.suppress(FileNotFoundError):  # it has been read
                os.unlink(os.path.join(self._folder, LIMITS_FILE))
        except BaseException:
            self.close(at_once=True)
            raise

    def _is_ready(self) -> bool:
        try:
            if not stat.S_ISSOCK(os.stat(self.socket).st_mode):
                return False
            return self.ask("GET", "/health").status == 200
        except (OSError, EngineDeadError):
            return False

    def _show(self) -> None:
        said = os.pread(self._said.fileno(), 1 << 16, self._shown)
        if said:
            self._shown += len(said)
            sys.stderr.write(said.decode(errors="replace"))
            sys.stderr.flush()

    def connect(self, blocking: bool = True) -> socket.socket:
        self.check()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self.socket)
            connection.setblocking(blocking)
            with self._lock:
                self._connections.add(connection)
            return connection
        except OSError as error:
            connection.close()
            if isinstance(error, (ConnectionError, FileNotFoundError)):
                raise self.dead() from error
            raise

    def check(self) -> None:
        if os.getpid() != self._owner:
            raise EngineDeadError("the engine belongs to the process that this one was forked from: make another LLM")
        if self._closed:
            raise EngineDeadError("the LLM was closed")

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Reader:
        """One request and its whole answer."""
        reader = Reader()
        with self.connect() as connection:
            try:
                connection.sendall(request_bytes(method, path, body))
                while not reader.done:
                    reader.feed(connection.recv(1 << 16))
            except ConnectionError as error:
                raise self.dead() from error
        return reader

    def dead(self) -> EngineDeadError:
        """Why a connection broke off."""
        if self._closed:
            return EngineDeadError("the LLM was closed")
        try:
            self._child.wait(1)
        except subprocess.TimeoutExpired:
            return EngineDeadError("the engine closed the connection")
        said = self._last_words()
        return EngineDeadError(f"the engine {self._how_it_ended()}" + (f"; it said: {said}" if said else ""))

    def _how_it_ended(self) -> str:
        code = self._child.returncode
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def _last_words(self) -> str:
        """What the program said when it failed: its last line."""
        size = os.fstat(self._said.fileno()).st_size
        said = os.pread(self._said.fileno(), LAST_WORDS, max(size - LAST_WORDS, 0)).decode(errors="replace").strip()
        last = said.rsplit("\n", 1)[-1]
        return last.removeprefix("quire: ").removeprefix("error: ")

    @property
    def pid(self) -> int:
        return self._child.pid

    def close(self, at_once: bool = False) -> None:
        if not self._end.alive or os.getpid() != self._owner:
            return
        self._closed = True  # first of all: those whose connections break off ask why
        if at_once and self._child.poll() is None:
            self._child.kill()
        with self._lock:
            open_ones = list(self._connections)
        for connection in open_ones:  # which cancels what is computed for them
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._end()

    def forget(self) -> None:
        """In a forked process: the engine must see the end of its parent, whoever else still lives."""
        if self._child.stdin is not None:
            os.close(self._child.stdin.fileno())


def _private_folder() -> str:
    """Sockets have short names."""
    folder = tempfile.mkdtemp(prefix="quire-")
    if len(os.fsencode(folder)) < 100:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="quire-", dir="/tmp")


def _end(child: subprocess.Popen[bytes], folder: str, said: IO[bytes], owner: int, patience: float | None) -> None:
    if os.getpid() != owner:
        return
    if child.stdin is not None:
        child.stdin.close()
    try:
        child.wait(patience)
    except BaseException as error:
        child.kill()
        child.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    said.close()
    shutil.rmtree(folder, ignore_errors=True)


_alive: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_alive):
        engine.forget()


os.register_at_fork(after_in_child=_after_fork)
