"""Options of LLM as arguments of the program."""
from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

from ._options import OPTIONS
from .errors import OptionError


def arguments_of(options: Mapping[str, object]) -> list[str]:
    """OPTIONS says of each name what the program's flag is, what it takes (bool: nothing), and the flag for False."""
    arguments: list[str] = []
    for name, value in options.items():
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, 1)
            raise OptionError(f"there is no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        flag, takes, negative = OPTIONS[name]
        if value is None:
            continue
        if takes == "bool":
            if not isinstance(value, bool):
                raise OptionError(f"{name}={value!r}: must be True or False")
            if value or negative:
                arguments.append(flag if value else negative)
            continue
        for one in value if isinstance(value, (list, tuple)) else (value,):
            arguments += [flag, _text(name, takes, one)]
    return arguments


def _text(name: str, takes: str, value: object) -> str:
    if isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: must be {_NAMES[takes]}")
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return str(os.fspath(value))
    raise OptionError(f"{name}={value!r}: must be {_NAMES[takes]}")


_NAMES = {"int": "a whole number", "float": "a number", "str": "a text", "path": "a path"}
