"""The parts of the page at / that make elements of text, in Node: page_linear_test.py PROGRAM.

Ends with 77, which ctest takes for "skipped", where there is no Node.
"""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

node = shutil.which("node") or shutil.which("nodejs")
if node is None:
    print("there is no Node on this machine")
    sys.exit(77)
test = ROOT / "tests/server/page_linear_test.mjs"
sys.exit(subprocess.run([node, str(test), str(ROOT / "src/server/page")], check=False).returncode)
