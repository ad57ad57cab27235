#!/usr/bin/env python3
"""Writes python/quire_engine/_options.py, the options of the Python module, from what the program says of itself.

    tools/make_python_options.py [build/release/quire] [--check]

--check writes nothing, and fails where the file is not as it would be.
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TO = ROOT / "python/quire_engine/_options.py"
# Of a server that others talk to, or set by the module itself.
WITHOUT = {"help", "model", "host", "port", "uds", "uds_mode", "api_key_file", "metrics_without_key", "no_ui",
           "allowed_origins", "allowed_hosts", "ssl_certfile", "ssl_keyfile", "access_log", "no_access_log",
           "notify_socket", "exit_with_stdin", "default_model", "responses_store_bytes", "responses_store_time"}
SEVERAL = {"NAME", "OP=NAME"}  # what may be given several times
TYPES = {"INT": "int", "UINT": "int", "FLOAT": "float"}


def row(option):
    """Python's names of an option, its flag, what it takes ("bool": nothing), the flag for False, its type."""
    flags = [n for n in option["names"] if n.startswith("--")]
    negative = ""
    if option["takes"] == "" and len(flags) == 2 and flags[1] == flags[0].replace("--", "--no-", 1):
        negative = flags.pop()
    names = [f[2:].replace("-", "_") for f in flags]
    takes, choices = option["takes"], option.get("choices")
    if takes == "":
        return names, flags[0], "bool", negative, "bool"
    if takes in TYPES:
        return names, flags[0], TYPES[takes], "", TYPES[takes]
    if takes in ("FILE", "FOLDER", "PATH") or takes.endswith("|FILE"):
        return names, flags[0], "path", "", "str | os.PathLike[str]"
    if choices:
        return names, flags[0], "str", "", "Literal[" + ", ".join(f'"{c}"' for c in choices) + "]"
    return names, flags[0], "str", "", "str | Sequence[str]" if takes in SEVERAL else "str"


def module_text(program):
    said = subprocess.run([program, "options", "serve", "--format", "json"], check=True, stdout=subprocess.PIPE)
    table, members = "", ""
    for option in json.loads(said.stdout)["options"]:
        names, flag, takes, negative, kind = row(option)
        if names[0] in WITHOUT:
            continue
        if names[0] == "limits":
            kind += " | Mapping[str, float]"
        for name in names:
            table += f'    "{name}": ("{flag}", "{takes}", "{negative}"),\n'
            members += f"    {name}: {kind}\n"
    return f'''"""Options of the program, as tools/make_python_options.py wrote them."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

# The flag, what it takes (bool: nothing), and the flag for False.
OPTIONS: dict[str, tuple[str, str, str]] = {{
{table}}}


class Options(TypedDict, total=False):
    """What `quire serve` takes, by the same names; `quire help serve` says what each means."""

{members}'''


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    text = module_text(arguments[0] if arguments else ROOT / "build/release/quire")
    if "--check" in sys.argv:
        if TO.read_text() != text:
            sys.exit(f"{TO.relative_to(ROOT)} is not what the program has: run tools/make_python_options.py")
        return
    TO.write_text(text)


if __name__ == "__main__":
    main()
