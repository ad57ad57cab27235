#!/usr/bin/env python3
"""Checks the order of the layers (docs: architecture). A file under src/ may include only its own layer and layers
above it in the list; CUDA headers belong to *.cu files and to ops/cuda*, and CLI11 to one file; no include may form a
cycle between files. Prints every violation as file:line and exits with 1 if there is one."""

import argparse
import pathlib
import re
import sys

LAYERS = ["core", "gguf", "hub", "arch", "quant", "jinja", "image", "tokenizer", "constraint", "ops", "convert",
          "cache", "parts", "vision", "model", "engine", "eval", "server", "command", "localai", "lab", "cli"]
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Headers that take so long to compile that one file alone may see them.
SEEN_BY_ONE = {"CLI/CLI.hpp": "command/parse.cpp"}
CUDA_HEADER = re.compile(r"^(cuda\w*|cub|cute|cutlass|cooperative_groups|nccl|mma|thrust)(\.h|\.hpp|\.cuh|/|$)")


def includes(path):
    """Yields (line number, delimiter, name) for the includes of a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def may_use_cuda(relative):
    in_folder = re.match(r"(ops/([^/]+/)?cuda|core/cuda)", relative.as_posix())
    return relative.name.endswith((".cu", ".cuh", ".cu.in")) or bool(in_folder)


def find_cycle(graph):
    """A list of files that include each other in a circle, or None. Iterative depth-first search."""
    state = {}
    for root in sorted(graph):
        if root in state:
            continue
        path, stack = [root], [iter(sorted(graph[root]))]
        state[root] = "open"
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                state[path.pop()] = "done"
            elif state.get(following) == "open":
                return path[path.index(following):] + [following]
            elif following not in state:
                state[following] = "open"
                path.append(following)
                stack.append(iter(sorted(graph.get(following, ()))))
    return None


def check(src):
    errors = []
    graph = {}
    files = sorted(p for p in src.rglob("*") if p.suffix in SOURCES or p.name.endswith(".cu.in"))
    for path in files:
        relative = path.relative_to(src)
        layer = relative.parts[0]
        if layer not in LAYERS:
            errors.append(f"{path}: '{layer}' is no layer; the list in tools/check_layers.py names all of them")
            continue
        graph[relative.as_posix()] = edges = set()
        for number, delimiter, name in includes(path):
            where = f"{path}:{number}"
            if CUDA_HEADER.match(name) and not may_use_cuda(relative):
                errors.append(f"{where}: CUDA header <{name}> outside *.cu, core/cuda* and ops/**/cuda*")
            if name in SEEN_BY_ONE and relative.as_posix() != SEEN_BY_ONE[name]:
                errors.append(f"{where}: <{name}> is for {SEEN_BY_ONE[name]} alone")
            if delimiter == "<":
                continue
            if not (src / name).is_file():
                errors.append(f'{where}: "{name}" is not a file under src/ (includes are relative to src/)')
                continue
            edges.add(name)
            target = name.split("/")[0]
            if target in LAYERS and LAYERS.index(target) > LAYERS.index(layer):
                errors.append(f'{where}: layer {layer} includes "{name}", but {target} stands below it')
    cycle = find_cycle(graph)
    if cycle:
        errors.append("includes form a cycle: " + " -> ".join(cycle))
    return errors, len(files)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("src", nargs="?", type=pathlib.Path, default=root / "src", help="the folder to check")
    errors, count = check(parser.parse_args().src)
    for error in errors:
        print(error)
    print(f"{count} files, {len(errors)} violations")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
