#!/usr/bin/env python3
"""Writes the tables of options in docs/ anew, from what the program says of itself.

    tools/update_docs.py [build/release/quire]

A table stands between two lines: <!-- quire options COMMAND --> and <!-- end -->.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = re.compile(r"(<!-- quire options (\w[\w-]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(program: str | pathlib.Path, command: str) -> str:
    return subprocess.run([program, "options", command], check=True, capture_output=True, text=True).stdout


def main() -> None:
    program = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/quire"
    for page in sorted((ROOT / "docs").glob("*.md")):
        old = page.read_text()
        new = TABLE.sub(lambda m: m[1] + table(program, m[2]) + m[3], old)
        if new != old:
            page.write_text(new)
            print(f"{page.relative_to(ROOT)}: written anew")


if __name__ == "__main__":
    main()
