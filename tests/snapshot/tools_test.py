#!/usr/bin/env python3
"""What is made of a snapshot's file: the page, and what two of them differ by. tools_test.py PROGRAM"""

import copy
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import snapshot_diff  # noqa: E402
import snapshot_page  # noqa: E402
import snapshot_statistics as statistics  # noqa: E402
from snapshot_charts import html  # noqa: E402
from snapshot_record import Problem, escaped, parse  # noqa: E402

PROGRAM = sys.argv.pop(1)


def figure(name, values, unit="tokens/s", more_is_better=True):
    return {"name": name, "unit": unit, "more_is_better": more_is_better, "values": values,
            "compute": [1e12] * len(values), "memory": [1e10] * len(values)}


def sample():
    gpu = {"name": "<gpu>", "compute_capability": "9.0", "multiprocessors": 132, "memory": 85e9, "copy_bandwidth": 5e10,
           "kernels": "wgmma", "unusable": "", "driver": "<driver>", "link": "", "power_limit": "700 W", "links": ""}
    spread = {"mean": 0.1, "p50": 0.1, "p90": 0.2, "p99": 0.3}
    return {
        "schema": "quire-snapshot/1", "program": "quire 0", "time": "t", "model": "<b>m</b>.gguf", "device": "cpu",
        "fingerprint": "f\"1'&", "threads": 2, "quick": False, "seconds": 3.5,
        "hardware": {"cpu": "<script>alert(1)</script>", "cpu_features": "avx2", "system": "Linux", "cpus": 4,
                     "usable_cpus": 2, "caches": [{"name": "L1d", "bytes": 32768, "count": 4}], "memory": 25.9e9,
                     "available_memory": 0, "group_memory_limit": 0, "group_cpu_quota": 1.5, "load_average": 0.25,
                     "read_bandwidth": 1.2e10, "bf16_peak": 1e12, "no_gpu": "", "gpus": [gpu]},
        "gates": [{"name": "a", "what": "</td><img src=x>", "result": "passed", "detail": "\x1b[31m"},
                  {"name": "b", "what": "b", "result": "failed", "detail": "because"},
                  {"name": "c", "what": "c", "result": "skipped", "detail": "no <model>"}],
        "conformance": [{"operator": "norm", "kernel": "avx2", "passed": 5, "failed": 1, "skipped": ""},
                        {"operator": "norm", "kernel": "amx", "passed": 0, "failed": 0, "skipped": "no AMX"}],
        "figures": [figure("pp512", [100, 110, 90]), figure("npl2 decode", [10, 11, 9]),
                    figure("npl8 decode", [20, 21, 19]), figure("npl2 prompts", [100, 110, 105]),
                    figure("npl8 prompts", [200, 210, 205]), figure("decode moe", [0.1], "s", False)],
        "buckets": [{"phase": "decode", "operator": "<op>", "calls": 3, "seconds": 0.1, "bytes": 1000, "flops": 5}],
        "buckets_missing": "",
        "loads": [{"server": "<peer>", "load": f"{n} clients", "requests": 8, "errors": 0,
                   "decode_tokens_per_second": 80.0, "ttft_seconds": spread, "itl_seconds": None} for n in (1, 4)],
        "memory": [{"seconds": 0, "stage": "start", "resident": 1000000, "gpu_used": 0},
                   {"seconds": 1, "stage": "<stage>", "resident": 2000000, "gpu_used": 0}],
        "quality": {"text": "<text>", "windows": 2, "window": 512, "perplexity": 1.5,
                    "reference": {"name": "<r>", "perplexity": 1.25, "kl_mean": 0.01, "kl_p99": 0.1,
                                  "top1_agreement": 0.9}},
    }


def with_member(path, value):
    """The sample with the member at `path` replaced, or taken away where the value is None."""
    s = sample()
    at = s
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return s


class Page(unittest.TestCase):
    def test_escapes_everything(self):
        self.assertEqual(html("<a href=\"x\" id='y'>&\n"), "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;\\n")
        page = snapshot_page.page(parse(json.dumps(sample())))
        for markup in ["<script", "<img", "<b>m", "<op>", "<peer>", "<stage>", "<text>", "<r>", "<model>", "<gpu>",
                       "<driver>", "\x1b"]:
            self.assertNotIn(markup, page)
        self.assertIn("&lt;script&gt;alert(1)&lt;/script&gt;", page)
        self.assertIn("prefers-color-scheme: dark", page)
        # Nothing is fetched from anywhere, and nothing runs.
        for foreign in ["http://", "https://", 'src="', "<link", "url(", "@import", "onload"]:
            self.assertNotIn(foreign, page)

    def test_says_what_is_in_the_file(self):
        page = snapshot_page.page(sample())
        for said in ["1 of 2 gates failed", "took 4 s", "prompt, one sequence (pp512)", "<b>100.0</b>",
                     "Tokens over HTTP",
                     "100.0 / 200.0 / 300.0", "first token over HTTP, 1 clients, p50", "100%, 100.0 ms, 10 kB/s",
                     "2.0 MB", "25.9 GB, not told available", "L1d 4 x 32 KiB", "CPUs 1.50", "12 GB/s", "1.00 TFLOP/s",
                     "power limit 700 W", "1.500000", "90.00%", "5/6", "not for this machine"]:
            self.assertIn(said, page)
        self.assertEqual(page.count("<polyline"), 5)  # two of sequences, two of clients, one of memory

    def test_any_number_can_be_shown(self):
        def with_numbers(of, value, key=""):
            if isinstance(value, dict):
                return {k: with_numbers(of, v, k) for k, v in value.items()}
            if isinstance(value, list):
                return [with_numbers(of, v, key) for v in value]
            return value if isinstance(value, (str, bool)) or value is None else of()

        numbers = random.Random(6)
        for _ in range(50):
            odd = with_numbers(lambda: numbers.choice([5e-324, 1e-9, 1, 1e9, 1e9 + 1, 2 ** 60, 1e100]), sample())
            for figure_ in odd["figures"]:
                for key in ("values", "compute", "memory"):
                    figure_[key] = figure_[key] * 5
            odd = parse(json.dumps(odd))
            self.assertIn("</html>", snapshot_page.page(odd))
            self.assertIn("verdict", snapshot_diff.difference_table(snapshot_diff.difference(sample(), odd)))
            self.assertIn("verdict", snapshot_diff.difference_table(snapshot_diff.difference(odd, odd)))

    def test_of_nothing_is_a_page(self):
        s = sample()
        for key in ("gates", "conformance", "figures", "buckets", "loads", "memory"):
            s[key] = []
        s["quality"], s["model"], s["buckets_missing"], s["hardware"]["gpus"] = None, "", "no <time>", []
        page = snapshot_page.page(parse(json.dumps(s)))
        for said in ["no model", "0 gates passed, 0 skipped", "no &lt;time&gt;", "</html>"]:
            self.assertIn(said, page)
        self.assertNotIn("<polyline", page)


class Record(unittest.TestCase):
    def refused(self, text, why):
        with self.assertRaises(Problem) as caught:
            parse(text)
        self.assertIn(why, str(caught.exception))

    def test_hostile_files_end_with_a_message(self):
        for text, why in [("", "no JSON"), ("[", "no JSON"), ("[]", "it is no object"), ("{}", 'has no "schema"'),
                          ('{"schema": 3}', "schema is no text"),
                          ('{"schema": "quire-snapshot/9"}', "quire-snapshot/9"),
                          ('{"a": 1, "a": 2}', "occurs twice"), ('{"a": NaN}', "NaN is no number")]:
            self.refused(text, why)
        self.refused("[" * 1000000, "nested too deep")
        for path, value, why in [
                (["figures"], 1, "figures is no array"), (["figures", 0], "x", "figures[0] is no object"),
                (["figures", 0, "values"], [1, "x"], "figures[0].values[1] is no number"),
                (["figures", 0, "values"], [1, -1, 2], "figures[0].values[1] is no number from 0 to 1e+100"),
                (["figures", 0, "values"], [1, True, 2], "figures[0].values[1] is no number from 0"),
                (["figures", 0, "values"], [1, 10 ** 400, 2], "figures[0].values[1] is no number from 0"),
                (["figures", 0, "values"], [1, 0, 2], "figures[0].values holds a 0"),
                (["figures", 0, "values"], [1], "different numbers"),
                (["figures", 0, "name"], "x" * 5000, "at most 4096"),
                (["gates", 0, "result"], "maybe", "is neither passed, failed nor skipped"),
                (["loads", 0, "ttft_seconds"], {}, 'loads[0].ttft_seconds has no "mean"'),
                (["quality", "reference"], 3, "quality.reference is no object"),
                (["hardware"], [], "hardware is no object"),
                (["hardware", "gpus"], [1], "hardware.gpus[0] is no object"),
                (["quick"], 1, "quick is neither true nor false"), (["model"], None, 'has no "model"')]:
            self.refused(json.dumps(with_member(path, value)), why)

    def test_text_of_strangers_is_shown_on_one_line(self):
        self.assertEqual(escaped("a\n\t\x1b\u202e\U000e0001é"), "a\\n\\t\\u001b\\u202e\\U000e0001é")
        self.assertEqual(escaped("x" * 100, 30), "x" * 20 + " ... " + "x" * 10)


class Noise:
    """A machine of this kind: its readings scatter, some are disturbed, and all of a run's move together, as do the
    fixed loops beside them."""

    def __init__(self, seed, deviation=0.02, disturbed=0.1, drift=0.0):
        self.random, self.deviation, self.disturbed, self.drift = random.Random(seed), deviation, disturbed, drift

    def scatter(self, deviation):
        return math.exp(deviation * self.random.gauss(0, 1))

    def run(self, figures, readings, slower_first=1.0):
        speed = self.scatter(self.drift)
        s = sample()
        s["figures"] = []
        for f in range(figures):
            rate = f % 2 == 0
            seconds = [self.scatter(self.deviation) / speed * (slower_first if f == 0 else 1) *
                       (1 + self.random.random() if self.random.random() < self.disturbed else 1)
                       for _ in range(readings)]
            one = figure(f"figure {f}", [1000 / x if rate else x for x in seconds], "tokens/s" if rate else "s", rate)
            one["compute"] = [1e12 * speed * self.scatter(0.01) for _ in seconds]
            one["memory"] = [1e10 * speed * self.scatter(0.01) for _ in seconds]
            s["figures"].append(one)
        return s


def changed(d):
    return d.count(statistics.SLOWER) + d.count(statistics.FASTER)


class Statistics(unittest.TestCase):
    def test_follow_student(self):
        # Tables of Student's t, two-sided.
        for degrees, probability, t in [(1, 0.05, 12.7062), (5, 0.05, 2.5706), (10, 0.01, 3.1693), (1e9, 0.05, 1.9600),
                                        (9, 0.0005, 5.2907)]:
            self.assertAlmostEqual(statistics.student_t(degrees, probability), t, delta=1e-4)
        i = statistics.mean_interval([1, 2, 3, 4, 5], 0.05)
        self.assertAlmostEqual(i.middle, 3)
        self.assertAlmostEqual(i.half_width, 2.7764 * math.sqrt(2.5) / math.sqrt(5), delta=1e-3)
        self.assertAlmostEqual(statistics.trimmed_mean([1, 2, 3, 4, 1000]), 3)
        self.assertFalse(statistics.Interval(0.05, 0.04).beyond(0.03))
        self.assertTrue(statistics.Interval(-0.08, 0.04).beyond(0.03))

    def test_the_same_program_has_no_change(self):
        for how in ({}, {"deviation": 0.1, "disturbed": 0.3}, {"drift": 0.15}):
            noise = Noise(1, **how)
            pairs = ((noise.run(20, 10), noise.run(20, 10)) for _ in range(100))
            alarms = sum(changed(snapshot_diff.difference(a, b)) > 0 for a, b in pairs)
            self.assertLess(alarms, 3, how)

    def test_a_tenth_slower_is_found(self):
        noise = Noise(2, deviation=0.01, disturbed=0.03)
        found = wrong = 0
        for _ in range(100):
            d = snapshot_diff.difference(noise.run(20, 12), noise.run(20, 12, 1.1))
            found += d.changes[0].verdict == statistics.SLOWER
            wrong += changed(d) > 1
        self.assertGreater(found, 95)
        self.assertLess(wrong, 3)

    def test_what_the_machine_did_is_unclear(self):
        before = Noise(3, deviation=0.005, disturbed=0).run(4, 10)
        after = copy.deepcopy(before)
        for f in after["figures"]:
            f["values"] = [x * (0.8 if f["more_is_better"] else 1.25) for x in f["values"]]
            f["compute"], f["memory"] = [x * 0.8 for x in f["compute"]], [x * 0.8 for x in f["memory"]]
        d = snapshot_diff.difference(before, after)
        self.assertEqual([changed(d), d.count(statistics.UNCLEAR)], [0, 4])
        self.assertAlmostEqual(d.changes[0].drift, -0.2, delta=0.01)
        self.assertAlmostEqual(d.changes[0].normalised.middle, 0, delta=0.02)

    def test_turns_find_four_percent(self):
        noise = Noise(4)
        found = alarms = 0
        for _ in range(400):
            minutes = [noise.scatter(0.3) for _ in range(10)]  # both see the same minute, however slow it is
            before, same, slower = ([speed * m * noise.scatter(0.008) for m in minutes] for speed in (1000, 1000, 960))
            alarms += statistics.compare_turns("x", "tokens/s", True, before, same, 20).verdict != statistics.SAME
            found += statistics.compare_turns("x", "tokens/s", True, before, slower, 20).verdict == statistics.SLOWER
        self.assertLess(alarms, 3)
        self.assertGreater(found, 320)

    def test_a_difference_says_what_cannot_be_compared(self):
        noise = Noise(5)
        a, b = noise.run(3, 10), noise.run(3, 10)
        a["hardware"]["cpu"], b["hardware"]["cpu"] = "one", "another"
        b["figures"][1]["name"] = "new"
        for key in ("values", "compute", "memory"):
            del b["figures"][2][key][2:]
        a["gates"] = [{"name": "company", "what": "", "result": "passed", "detail": ""}]
        b["gates"] = [{"name": "company", "what": "", "result": "failed", "detail": ""}]
        d = snapshot_diff.difference(a, b)
        self.assertEqual(len(d.changes), 1)
        self.assertEqual(d.left_out, ["figure 1", "figure 2", "new"])
        self.assertEqual(d.remarks, ["CPU: one, then another"])
        self.assertEqual(d.gates, ["company: passed, then failed"])
        self.assertEqual(d.newly_failed, 1)
        table = snapshot_diff.difference_table(d)
        for line in ["other CPU: one, then another", "gate company: passed, then failed",
                     "not compared: new (only one has it, or it was read fewer than 5 times)", "1 figures: "]:
            self.assertIn(line, table)


class Programs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return pathlib.Path(self.folder.name) / name

    def tool(self, name, *arguments):
        return subprocess.run([sys.executable, ROOT / "tools" / name, *arguments], capture_output=True, text=True)

    def fake(self, name, rates):
        """A program that answers --turns; one rate a launch, the same for all turns."""
        hello = {"schema": "quire-turns/1", "program": name, "fingerprint": "f", "tasks": [
            {"name": "t", "figures": [{"name": "pp512", "unit": "tokens/s", "more_is_better": True},
                                      {"name": name, "unit": "s", "more_is_better": False}]}]}
        script = self.path(name)
        script.write_text(f"""#!{sys.executable}
import pathlib, sys
count = pathlib.Path(__file__ + ".count")
launch = int(count.read_text()) if count.exists() else 0
count.write_text(str(launch + 1))
print({json.dumps(hello)!r}, flush=True)
for line in sys.stdin:
    print([{rates!r}[launch % len({rates!r})], 1.0], flush=True)
""")
        script.chmod(0o755)
        return str(script)

    def test_the_page_of_what_the_program_writes(self):
        taken = subprocess.run([PROGRAM, "snapshot", "--quick", "--skip", "conformance", "--out", self.path("s.json")],
                               capture_output=True, text=True)
        self.assertEqual(taken.returncode, 0, taken.stderr)
        made = self.tool("snapshot_page.py", self.path("s.json"))
        self.assertEqual(made.returncode, 0, made.stderr)
        page = self.path("s.html").read_text(encoding="utf-8")
        self.assertIn("conformance", page)
        self.assertTrue(page.endswith("</html>\n"))
        same = self.tool("snapshot_diff.py", self.path("s.json"), self.path("s.json"))
        self.assertEqual(same.returncode, 0, same.stderr)
        self.assertIn("0 slower, 0 faster", same.stdout)

    def test_files_that_are_none(self):
        self.path("odd.json").write_text("{}")
        for tool, arguments in [("snapshot_page.py", ["odd.json"]), ("snapshot_diff.py", ["odd.json", "odd.json"]),
                                ("snapshot_page.py", ["none"]), ("snapshot_diff.py", ["none", "odd.json"])]:
            result = self.tool(tool, *map(self.path, arguments))
            self.assertNotEqual(result.returncode, 0)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(arguments[0], result.stderr)

    def test_turns_tell_the_slower_program(self):
        minutes = [1000, 700, 900, 1300]
        old, new = self.fake("old", minutes), self.fake("new", [0.9 * (m + i) for i, m in enumerate(minutes)])
        result = self.tool("snapshot_diff.py", "--against", old, new, "--launches", "4", "--rounds", "1", "--",
                           "--synth")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stdout, r"pp512 .*-9\.\d%.* slower")
        self.assertIn("not compared: new (only one has it)\nnot compared: old (only one has it)\n", result.stdout)
        self.assertIn("1 figures: 1 slower, 0 faster, 0 without change", result.stdout)
        self.assertRegex(result.stdout, r"^before: \S*/old, old, f\nafter:  \S*/new, new, f\n")
        self.assertRegex(result.stderr, r"4 launches of each program; about \d+ s left")

    def test_turns_with_what_takes_none(self):
        for other, why in [("/bin/true", "ended with code 0 instead of answering; run it by hand: /bin/true snapshot"),
                           ("/bin/echo", "is it a quire that has --turns?"), ("/nowhere", "cannot be run")]:
            result = self.tool("snapshot_diff.py", "--against", other, other, "--", "-m", "x")
            self.assertEqual(result.returncode, 2)
            self.assertIn(why, result.stderr)
        result = self.tool("snapshot_diff.py", "--against", PROGRAM, PROGRAM, "--", "-m", self.path("none"))
        self.assertEqual(result.returncode, 2)
        self.assertIn("ended with code 2 instead of answering", result.stderr)

    def test_turns_of_the_program_with_itself(self):
        result = self.tool("snapshot_diff.py", "--against", PROGRAM, PROGRAM, "--launches", "3", "--rounds", "1", "--",
                           "--quick", "-m", ROOT / "models/demo-dense-nvfp4.gguf")
        self.assertIn(result.returncode, (0, 1), result.stderr)
        self.assertIn("| npl8 decode ", result.stdout)


if __name__ == "__main__":
    unittest.main()
