#!/usr/bin/env python3
"""What differs between two snapshots, or two programs that are measured in turns, beyond noise (docs/snapshot.md).

    tools/snapshot_diff.py before.json after.json
    tools/snapshot_diff.py --against BEFORE AFTER [--launches N] -- -m m.gguf [options of quire snapshot]

Ends with 1 where a figure is slower, or a gate fails that did not before, and with 2 where it cannot tell.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import subprocess
import sys
import time

from snapshot_record import Problem, escaped, read
from snapshot_statistics import (Change, FASTER, SAME, SLOWER, UNCLEAR, compare_runs, compare_turns, median)

LEAST_READINGS = 5
TURNS_SCHEMA = "quire-turns/1"
MOST_LINE = 16 << 20
MOST_FIGURES = 1000


@dataclasses.dataclass
class Difference:
    changes: list[Change] = dataclasses.field(default_factory=list)  # of all figures that both have
    left_out: list[str] = dataclasses.field(default_factory=list)  # figures that only one has, or read too seldom
    gates: list[str] = dataclasses.field(default_factory=list)  # "conformance: passed, then failed"
    newly_failed: int = 0  # of these
    remarks: list[str] = dataclasses.field(default_factory=list)  # what makes figures incomparable

    def count(self, verdict):
        return sum(c.verdict == verdict for c in self.changes)


# ---- Two files ----

def compare_figures(before, after, d):
    first = {f["name"]: f for f in reversed(before)}
    second = {f["name"]: f for f in reversed(after)}
    pairs = []
    for a in before:
        b = second.get(a["name"])
        fits = (b is not None and b["unit"] == a["unit"] and b["more_is_better"] == a["more_is_better"]
                and min(len(a["values"]), len(b["values"])) >= LEAST_READINGS)
        if fits:
            pairs.append((a, b))
        else:
            d.left_out.append(a["name"])
    d.left_out += [b["name"] for b in after if b["name"] not in first]
    d.changes = [compare_runs(a, b, len(pairs)) for a, b in pairs]


def compare_gates(before, after, d):
    first = {g["name"]: g["result"] for g in reversed(before)}
    second = {g["name"] for g in after}
    for g in after:
        was = first.get(g["name"], "not there")
        if was != g["result"]:
            d.gates.append(f"{g['name']}: {was}, then {g['result']}")
            d.newly_failed += g["result"] == "failed"
    d.gates += [f"{g['name']}: {g['result']}, then not there" for g in before if g["name"] not in second]


def remarks(before, after):
    def gpu(s):
        return s["hardware"]["gpus"][0]["name"] if s["hardware"]["gpus"] else ""

    for what, of in [("program", lambda s: s["program"]), ("model", lambda s: s["model"]),
                     ("device", lambda s: s["device"]), ("CPU", lambda s: s["hardware"]["cpu"]),
                     ("instructions", lambda s: s["hardware"]["cpu_features"]), ("GPU", gpu),
                     ("fingerprint", lambda s: s["fingerprint"])]:
        if of(before) != of(after):
            yield f"{what}: {of(before) or '-'}, then {of(after) or '-'}"


def difference(before, after):
    d = Difference(remarks=list(remarks(before, after)))
    compare_gates(before["gates"], after["gates"], d)
    compare_figures(before["figures"], after["figures"], d)
    return d


# ---- Tables ----

def value_text(value, unit):
    return f"{value * 1e3:.3f} ms" if unit == "s" else f"{value:.1f} {escaped(unit, 20)}"


def interval_text(i):
    return f"{100 * i.middle:+.1f}% ± {100 * i.half_width:.1f}%"


def changes_table(changes):
    def row(name, before, after, change, normalised, verdict):
        return f"| {name:<26} | {before:>18} | {after:>18} | {change:>20} | {normalised:>20} | {verdict:<9} |\n"

    text = row("figure", "before", "after", "change", "normalised", "verdict")
    text += f"|{'-' * 28}|{'-' * 19}:|{'-' * 19}:|{'-' * 21}:|{'-' * 21}:|{'-' * 11}|\n"
    return text + "".join(row(escaped(c.name, 60), value_text(c.before, c.unit), value_text(c.after, c.unit),
                              interval_text(c.change), interval_text(c.normalised), c.verdict) for c in changes)


def difference_table(d):
    text = "".join(f"other {escaped(r, 400)}\n" for r in d.remarks)
    text += "".join(f"gate {escaped(g, 400)}\n" for g in d.gates)
    text += ("\n" if text else "") + changes_table(d.changes)
    for name in d.left_out:
        text += (f"not compared: {escaped(name, 60)} (only one has it, or it was read fewer than {LEAST_READINGS} "
                 "times)\n")
    text += (f"\n{len(d.changes)} figures: {d.count(SLOWER)} slower, {d.count(FASTER)} faster, "
             f"{d.count(UNCLEAR)} unclear, {d.count(SAME)} without change\n")
    if d.count(UNCLEAR) > 0:
        text += "unclear: the figure moved, and so did the machine; --against measures two programs in turns\n"
    return text


# ---- Two programs in turns: each is `PROGRAM snapshot --turns` (src/lab/snapshot/turns.h) ----

class Runner:
    """A program that measures when it is told to."""

    def __init__(self, program, arguments):
        self.name = escaped(program, 200)
        self.command = [program, "snapshot", "--turns", *arguments]
        self.process = None

    def start(self):
        try:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as e:
            raise Problem(f"{self.name}: cannot be run: {e.strerror}") from None
        hello = self.answer()
        try:
            if hello["schema"] != TURNS_SCHEMA:
                raise Problem(f"{self.name}: its --turns is of another version")
            self.program, self.fingerprint = str(hello["program"]), str(hello["fingerprint"])
            self.tasks = [len(task["figures"]) for task in hello["tasks"]]
            self.figures = {}  # name: task, place in its answer, unit, whether more is better
            for t, task in enumerate(hello["tasks"]):
                for i, f in enumerate(task["figures"]):
                    if len(self.figures) < MOST_FIGURES:
                        self.figures.setdefault(str(f["name"]), (t, i, str(f["unit"]), bool(f["more_is_better"])))
        except (KeyError, TypeError):
            raise Problem(f"{self.name}: its first line is not what --turns prints") from None

    def measure(self, task):
        try:
            self.process.stdin.write(b"%d\n" % task)
            self.process.stdin.flush()
        except OSError:
            raise self.ended() from None
        values = self.answer()
        if not isinstance(values, list) or len(values) != self.tasks[task]:
            raise Problem(f"{self.name}: it answers a turn with something else than its figures")
        if not all(isinstance(v, (int, float)) and 0 < v < math.inf for v in values):
            raise Problem(f"{self.name}: it answers a turn with what is no number above 0")
        return values

    def stop(self):
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.close_input()
        self.process.stdout.close()
        self.process = None

    def close_input(self):
        with contextlib.suppress(OSError):  # of what was not read any more
            self.process.stdin.close()

    def ended(self):
        self.close_input()
        code = self.process.wait()
        code = 128 - code if code < 0 else code
        return Problem(f"{self.name} ended with code {code} instead of answering; run it by hand: "
                       f"{escaped(' '.join(self.command), 500)}")

    def answer(self):
        line = self.process.stdout.readline(MOST_LINE)
        if not line.endswith(b"\n"):
            raise self.ended()
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise Problem(f"{self.name}: it prints what is no JSON; is it a quire that has --turns?") from None


def one_launch(launch, rounds, old, new):
    """The two take turns at each task, and who goes first changes. Of what both have: the medians of the rounds."""
    readings = {name: ([], []) for name in old.figures if name in new.figures}
    for turn in range(rounds):
        for task in range(min(len(old.tasks), len(new.tasks))):
            order = (old, new) if (launch + turn + task) % 2 else (new, old)
            values = {id(program): program.measure(task) for program in order}
            for name, lists in readings.items():
                for program, list_ in zip((old, new), lists):
                    t, place, _, _ = program.figures[name]
                    if t == task:
                        list_.append(values[id(program)][place])
    return {name: (median(a), median(b)) for name, (a, b) in readings.items() if a and b}


def run_turns(old, new, launches, rounds):
    """Both programs are launched again and again: where a program's memory happens to lie makes it a few percent faster
    or slower for as long as it runs, so launches are what is counted, and not turns."""
    measured = {}
    began = time.monotonic()
    for launch in range(launches):
        try:
            for program in (new, old) if launch % 2 == 0 else (old, new):
                program.start()
            for name, pair in one_launch(launch, rounds, old, new).items():
                measured.setdefault(name, []).append(pair)
        finally:
            old.stop()
            new.stop()
        if launch == 0:
            left = (time.monotonic() - began) * (launches - 1)
            print(f"{launches} launches of each program; about {left:.0f} s left", file=sys.stderr)
    whole = {name: pairs for name, pairs in measured.items() if len(pairs) == launches}
    d = Difference()
    for name, (_, _, unit, more_is_better) in new.figures.items():
        if name in whole:
            before, after = zip(*whole[name])
            d.changes.append(compare_turns(name, unit, more_is_better, before, after, len(whole)))
        else:
            d.left_out.append(name)
    d.left_out += [name for name in old.figures if name not in new.figures]
    return d


def turns_table(d, old, new):
    text = (f"before: {old.name}, {escaped(old.program, 60)}, {escaped(old.fingerprint, 400)}\n"
            f"after:  {new.name}, {escaped(new.program, 60)}, {escaped(new.fingerprint, 400)}\n\n")
    text += changes_table(d.changes)
    text += "".join(f"not compared: {escaped(name, 60)} (only one has it)\n" for name in d.left_out)
    return text + (f"\n{len(d.changes)} figures: {d.count(SLOWER)} slower, {d.count(FASTER)} faster, "
                   f"{d.count(SAME)} without change\n")


def main():
    parser = argparse.ArgumentParser(description="What differs between two snapshots, or two programs, beyond noise.",
                                     epilog="With --against, what stands behind -- goes to quire snapshot.")
    parser.add_argument("before", help="a snapshot's JSON file; with --against, a quire or quire-lab")
    parser.add_argument("after", help="another one")
    parser.add_argument("--against", action="store_true", help="measure two programs in turns")
    parser.add_argument("--launches", type=int, default=10, help="how often each program is launched, at least 3 (10)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each launch (3)")
    own, arguments = sys.argv[1:], []
    if "--" in own:
        own, arguments = own[:own.index("--")], own[own.index("--") + 1:]
    given = parser.parse_args(own)
    if given.launches < 3 or given.rounds < 1:
        parser.error("--launches must be at least 3, and --rounds at least 1")
    if bool(arguments) != given.against:
        parser.error("--against needs the model behind --: -- -m m.gguf" if given.against else
                     "what stands behind -- is for --against")
    try:
        if given.against:
            old, new = Runner(given.before, arguments), Runner(given.after, arguments)
            d = run_turns(old, new, given.launches, given.rounds)
            sys.stdout.write(turns_table(d, old, new))
        else:
            d = difference(read(given.before), read(given.after))
            sys.stdout.write(difference_table(d))
    except Problem as e:
        print(f"snapshot_diff: {e}", file=sys.stderr)
        sys.exit(2)
    sys.exit(1 if d.count(SLOWER) + d.newly_failed > 0 else 0)


if __name__ == "__main__":
    main()
