"""What goes wrong, with the program's own messages."""
from __future__ import annotations


class QuireError(Exception):
    """All errors of this module."""


class OptionError(QuireError, TypeError):
    """An option that the program does not have, or of another type."""


class StartError(QuireError):
    """The engine did not start: no such model, not enough memory, a wrong option."""


class EngineDeadError(QuireError):
    """The engine's process has ended, or was closed, and answers nothing any more."""


class RequestError(QuireError, ValueError):
    """A request that was refused."""

    def __init__(self, message: str, status: int = 400, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status  # of HTTP, as docs/server-api.md has it
        self.code = code
        self.param = param  # the field that was wrong


class PromptTooLongError(RequestError):
    """The prompt, or the prompt with what was to be generated, does not fit into the context."""


class OverloadedError(RequestError):
    """More requests, or larger ones, than the engine keeps at a time."""
