#!/usr/bin/env python3
"""What a build from nothing costs: CPU seconds of every compilation, by layer.

    tools/build_cost.py [--preset release] [--jobs 2] [--targets quire ...] [--slowest 20] [FOLDER]

Builds a preset in FOLDER (a new folder under the system's temporary one, removed at the end, if none is given), without
ccache, and prints a table: compilations and CPU seconds (user and system, the compiler's own processes included) of every
CMake target. CPU seconds hardly change with what else the machine does; wall time does.
"""
import argparse
import collections
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile


def launch(log, command):
    """What CMake calls for every compilation: runs it and notes what it cost."""
    status = subprocess.call(command)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = command[command.index("-o") + 1] if "-o" in command else "?"
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{used.ru_utime + used.ru_stime:.2f} {output}\n")
    return status


def report(log, slowest):
    seconds, count, each = collections.Counter(), collections.Counter(), []
    for line in pathlib.Path(log).read_text(encoding="utf-8").splitlines():
        cost, output = line.split(" ", 1)
        found = re.search(r"CMakeFiles/([^/]+)\.dir/", output)
        target = found[1] if found else output
        if output.endswith(".cu.o"):
            target += " (CUDA)"
        seconds[target] += float(cost)
        count[target] += 1
        each.append((float(cost), output.split(".dir/")[-1]))
    print(f"{'CPU s':>8} {'files':>6}  target")
    for target, cost in seconds.most_common():
        print(f"{cost:8.0f} {count[target]:6}  {target}")
    print(f"{sum(seconds.values()):8.0f} {sum(count.values()):6}  all")
    if slowest:
        print("\nslowest files")
    for cost, output in sorted(each, reverse=True)[:slowest]:
        print(f"{cost:8.1f}  {output}")


def main():
    if len(sys.argv) > 2 and sys.argv[1] == "--launch":
        return launch(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--preset", default="release")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--targets", nargs="*", default=[])
    parser.add_argument("--slowest", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or f"{temporary}/build"
        log = pathlib.Path(folder).resolve() / "cost.txt"
        launcher = ";".join([sys.executable, os.path.abspath(__file__), "--launch", str(log)])
        source = pathlib.Path(__file__).resolve().parent.parent
        subprocess.run(["cmake", "--log-level=WARNING", "--preset", asked.preset, "-B", folder, f"-DCCACHE={launcher}"],
                       cwd=source, check=True)
        log.write_text("", encoding="utf-8")
        build = ["cmake", "--build", folder, "-j", str(asked.jobs)]
        if asked.targets:
            build += ["--target", *asked.targets]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        report(log, asked.slowest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
