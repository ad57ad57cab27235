#!/usr/bin/env python3
"""Whether the commands in the documents are commands, and their options options of them.

    tools/check_docs_commands.py build/release/quire [FILE ...]

Looks at code (indented or fenced blocks, and what stands in backquotes) of README.md and docs/*.md for `quire`,
`quire-lab` and `quire-localai`, wherever they lie. Prints what is not there, with file and line, and ends with 1.
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = re.compile(r"(?:^|.*/)quire(?:-lab|-localai)?$")
END = {"|", ";", "&&", "||", "&", ">", ">>", "2>", "<"}


class Commands:
    """Names of commands, and of the options of each, as the program tells them."""

    def __init__(self, program):
        self.program = program
        self.options = {}
        said = self.run("--help")
        self.everywhere = set(re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", said.split("Subcommands:")[0]))
        own = re.findall(r"^  ([a-z][a-z-]*) {2,}", said.split("Subcommands:")[1], re.MULTILINE)
        others = re.findall(r"Of quire-\w+, which quire starts: ([a-z,\s-]+)\n\n", said)
        self.names = set(own) | {n for line in others for n in re.split(r",\s+", line.strip())} | {"help"}

    def run(self, *args):
        done = subprocess.run([self.program, *args], capture_output=True, text=True, check=False)
        return done.stdout

    def of(self, command):
        if command not in self.options:
            names = set()
            for row in json.loads(self.run("options", command, "--format", "json"))["options"]:
                names.update(row["names"])
            self.options[command] = names
        return self.options[command]


def code_of(text):
    """(line number, code) of blocks' lines, joined where one ends with a backslash, and of backquotes."""
    fenced, joined, began = False, "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if fenced or (line.startswith("    ") and not re.match(r"\s+([-*]|\d+\.)\s", line)):
            began = began if joined else number
            joined += line.strip().removesuffix("\\") + " "
            if not line.rstrip().endswith("\\"):
                yield began, joined
                joined = ""
            continue
        joined = ""
        yield from ((number, span) for span in re.findall(r"`([^`]+)`", line))


def words_of(code):
    lexer = shlex.shlex(code, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        return list(lexer)
    except ValueError:  # a quotation that is cut
        return code.split()


def faults_of(code, commands):
    words = words_of(code)
    at = 0
    while at < len(words):
        at += 1
        if not PROGRAM.match(words[at - 1]):
            continue
        command = None
        while at < len(words) and words[at] not in END and not PROGRAM.match(words[at]):
            word = words[at]
            at += 1
            if word == "--":
                break
            flag = re.match(r"(--?[a-z][\w-]*)", word, re.IGNORECASE)
            if flag is None:
                if command is None and re.fullmatch(r"[a-z][a-z-]*", word):
                    command = word
                    if command not in commands.names:
                        yield f"there is no command {command}"
                        break
                continue
            known = commands.everywhere if command in (None, "help") else commands.of(command) | commands.everywhere
            if command is not None and command != "help" and flag[1] not in known:
                yield f"{command} has no option {flag[1]}"


def main():
    commands = Commands(sys.argv[1])
    files = [pathlib.Path(f) for f in sys.argv[2:]] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    looked, wrong = 0, 0
    for file in files:
        for number, code in code_of(file.read_text()):
            looked += bool(re.search(r"\bquire(-lab|-localai)? [a-z]", code))
            for fault in faults_of(code, commands):
                wrong += 1
                print(f"{file}:{number}: {fault}: {code.strip()}")
    print(f"{looked} command lines looked at, {wrong} wrong")
    sys.exit(1 if wrong or looked == 0 else 0)


if __name__ == "__main__":
    main()
