"""Quire's own Jinja for the tools that compare it with Jinja2: tests/jinja/render_lines.cpp, compiled when it is asked
for, beside the libraries of a built tree."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def binary(build):
    """`build`: a built tree, relative to the repository."""
    folder = ROOT / build
    program = folder / "render_lines"
    source = ROOT / "tests/jinja/render_lines.cpp"
    libraries = [folder / f"libquire_{layer}.a" for layer in ("tokenizer", "jinja", "core")]
    if not program.exists() or program.stat().st_mtime < max(f.stat().st_mtime for f in [source, *libraries]):
        subprocess.run(["g++", "-std=c++20", "-O1", f"-I{ROOT}/src", source, *libraries, "-lfmt", "-lspdlog",
                        "-lutf8proc", "-o", program], check=True)
    return program


def render_all(build, jobs):
    """Of each (template, variables) {"text": ...} or {"error": ...}. Ends the program where the renderer does."""
    lines = "".join(json.dumps({"template": t, "variables": v}) + "\n" for t, v in jobs)
    done = subprocess.run([binary(build)], input=lines, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    if len(answers) != len(jobs):
        sys.exit(f"the renderer stopped at template {len(answers)}: {jobs[len(answers)][0]!r}")
    return answers
