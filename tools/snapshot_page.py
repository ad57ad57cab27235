#!/usr/bin/env python3
"""The page of a snapshot (docs/snapshot.md): one HTML file that needs no network and no script.

    tools/snapshot_page.py snapshot.json [snapshot.html]
"""

import argparse
import pathlib
import re
import sys

from snapshot_charts import bar_chart, html, line_chart, short_bytes, strip
from snapshot_record import Problem, escaped, read
from snapshot_statistics import standard_deviation, trimmed_mean

STYLE = pathlib.Path(__file__).with_name("snapshot_page.css")


def table(head, rows, texts=1):
    """Cells of rows are markup already: html() has been through what is text. The first `texts` columns are texts."""
    def cells(tag, contents):
        return "".join(f"<{tag}>{c}</{tag}>" if i < texts else f'<{tag} class="number">{c}</{tag}>'
                       for i, c in enumerate(contents))

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    return ('<div class="scroll"><table><thead><tr>' + cells("th", map(html, head)) + "</tr></thead><tbody>\n" + body +
            "</tbody></table></div>\n")


def section(title, content):
    return f"<section><h2>{title}</h2>\n{content}</section>\n" if content else ""


def grid(figures):
    return f'<div class="charts">{figures}</div>\n' if figures else ""


def milliseconds(seconds):
    return f"{seconds * 1e3:.{2 if seconds < 0.01 else 1 if seconds < 1 else 0}f}"


def leading_number(text):
    found = re.match(r"\d+(\.\d+)?", text)
    return float(found[0]) if found else 0.0


def gates_that(s, result):
    return sum(g["result"] == result for g in s["gates"])


# ---- Sections ----

def heading(s):
    failed, passed = gates_that(s, "failed"), gates_that(s, "passed")
    out = (f'<header><p class="brand">quire snapshot</p><h1>{html(s["model"] or "no model")}</h1><p class="soft">'
           f'{html(s["program"])} · {html(s["time"])} · {html(s["device"])} · {s["threads"]} threads · took '
           f'{s["seconds"]:.0f} s{" · quick" if s["quick"] else ""}</p>')
    if s["fingerprint"]:
        out += f'<p class="soft mono">{html(s["fingerprint"])}</p>'
    if failed:
        verdict = f'<p class="verdict failed">{failed} of {failed + passed} gates failed</p>'
    else:
        verdict = f'<p class="verdict passed">{passed} gates passed, {gates_that(s, "skipped")} skipped</p>'
    return out + verdict + "</header>\n"


def gates(s):
    rows = [[f'<span class="badge {g["result"]}">{g["result"]}</span>', html(g["name"]), html(g["what"]),
             html(g["detail"])] for g in s["gates"]]
    return table(["", "gate", "what it demands", "what was found"], rows, 4)


def headline(s):
    tiles = []
    for f in s["figures"]:
        if f["name"].startswith(("pp", "tg")):
            what = "prompt" if f["name"].startswith("pp") else "generation"
            tiles.append((f"{what}, one sequence ({f['name']})", f"{trimmed_mean(f['values']):.1f}", f["unit"]))
    widest = [f for f in s["figures"] if f["name"].startswith("npl") and f["name"].endswith("decode")][-1:]
    tiles += [(f["name"], f"{trimmed_mean(f['values']):.1f}", f["unit"]) for f in widest]
    for load in s["loads"][:1]:
        ttft = load["ttft_seconds"] or {"p50": 0}
        tiles.append((f"first token over HTTP, {load['load']}, p50", milliseconds(ttft["p50"]), "ms"))
    if s["quality"] and s["quality"]["perplexity"] > 0:
        tiles.append((f"perplexity of {s['quality']['text']}", f"{s['quality']['perplexity']:.4f}", ""))
    shown = "".join(f'<div class="tile"><b>{html(value)}</b> <span>{html(unit)}</span><p>{html(name)}</p></div>'
                    for name, value, unit in tiles)
    return f'<div class="tiles">{shown}</div>\n' if shown else ""


def speeds(s):
    rows, prompts, decode = [], [], []
    for f in s["figures"]:
        values, middle = f["values"], trimmed_mean(f["values"])
        scatter = "-" if len(values) < 2 or middle == 0 else f"{100 * standard_deviation(values) / middle:.1f}%"
        is_time = f["unit"] == "s"
        rows.append([html(f["name"]), milliseconds(middle) if is_time else f"{middle:.1f}",
                     "ms" if is_time else html(f["unit"]), scatter, strip(values)])
        if f["name"].startswith("npl"):
            (decode if f["name"].endswith("decode") else prompts).append((leading_number(f["name"][3:]), middle))
    if not rows:
        return ""
    charts = ""
    if len(decode) > 1:
        of = {"x_name": "sequences at once", "y_name": "tokens/s", "log_x": True}
        charts = (line_chart("Generation, many sequences", [("decode", decode)], **of) +
                  line_chart("Prompts, many sequences", [("prompts", prompts)], **of))
    return grid(charts) + table(["figure", "value", "unit", "deviation", "readings, ±10% or all"], rows)


def served(s):
    def spread(x):
        return "-" if x is None else " / ".join(milliseconds(x[q]) for q in ("p50", "p90", "p99"))

    rows, ttft, rate = [], {}, {}
    for load in s["loads"]:
        name, clients, speed = load["server"], leading_number(load["load"]), load["decode_tokens_per_second"]
        rows.append([html(name), html(load["load"]), f"{load['requests']}", f"{load['errors']}", f"{speed:.1f}",
                     spread(load["ttft_seconds"]), spread(load["itl_seconds"])])
        rate.setdefault(name, []).append((clients, speed))
        if load["ttft_seconds"] is not None:
            ttft.setdefault(name, []).append((clients, load["ttft_seconds"]["p50"] * 1e3))
    if not rows:
        return ""
    of = {"x_name": "clients at once", "log_x": True}
    charts = (line_chart("Tokens over HTTP", sorted(rate.items()), y_name="tokens/s", **of) +
              line_chart("Time to first token, p50", sorted(ttft.items()), y_name="ms", **of))
    return grid(charts) + table(["server", "load", "requests", "errors", "tokens/s", "TTFT ms p50 / p90 / p99",
                                 "ITL ms p50 / p90 / p99"], rows, 2)


def buckets(s):
    if not s["buckets"]:
        return f'<p class="soft">{html(s["buckets_missing"])}</p>\n' if s["buckets_missing"] else ""
    phases = {}
    for b in s["buckets"]:
        phases.setdefault(b["phase"], []).append(b)
    out = ""
    for phase, of in phases.items():
        total = sum(b["seconds"] for b in of)
        bars = []
        for b in sorted(of, key=lambda b: -b["seconds"]):
            value = f"{100 * b['seconds'] / total if total > 0 else 0:.0f}%, {milliseconds(b['seconds'])} ms"
            if b["bytes"] > 0 and b["seconds"] > 0:
                value += f", {short_bytes(b['bytes'] / b['seconds'])}/s"
            bars.append((b["operator"], value, b["seconds"]))
        out += bar_chart(f"{phase}: {milliseconds(total)} ms", bars)
    return grid(out)


def quality(s):
    q = s["quality"]
    if not q:
        return ""
    rows = [["text", html(q["text"])], ["windows", f"{q['windows']} of {q['window']} tokens"],
            ["perplexity", f"{q['perplexity']:.6f}"]]
    if r := q.get("reference"):
        rows += [["reference", html(r["name"])], ["its perplexity", f"{r['perplexity']:.6f}"],
                 ["KL(reference || model), mean", f"{r['kl_mean']:.3g}"], ["99th percentile", f"{r['kl_p99']:.3g}"],
                 ["same likeliest token", f"{100 * r['top1_agreement']:.2f}%"]]
    return table(["", ""], rows, 2)


def memory(s):
    samples = s["memory"]
    if not samples:
        return ""
    rows = []
    for before, m in zip([None] + samples, samples):
        if before is None or before["stage"] != m["stage"]:
            most = max(x["resident"] for x in samples if x["stage"] == m["stage"])
            rows.append([html(m["stage"]), f"{m['seconds']:.1f} s", short_bytes(m["resident"]), short_bytes(most)])
    of = {"x_name": "seconds", "y_name": "MB", "dots": False}
    resident = [(m["seconds"], m["resident"] / 1e6) for m in samples]
    gpu = [(m["seconds"], m["gpu_used"] / 1e6) for m in samples if m["gpu_used"] > 0]
    charts = (line_chart("Memory of the process", [("resident", resident)], **of) +
              line_chart("Memory of the GPU", [("GPU, in use by anybody", gpu)], **of))
    return grid(charts) + table(["stage", "began", "resident", "at most"], rows)


def human_bytes(count, none):
    """512 B, 25.9 MB: three digits."""
    if count <= 0:
        return none
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    u = 0
    while count >= 999.5 and u + 1 < len(units):
        count, u = count / 1000, u + 1
    return f"{count:.{0 if u == 0 or count >= 99.95 else 1 if count >= 9.995 else 2}f} {units[u]}"


def gpu_text(g):
    text = (f"{g['name']}, compute capability {g['compute_capability']}, {g['multiprocessors']} multiprocessors, "
            f"{human_bytes(g['memory'], '?')}, copies {short_bytes(g['copy_bandwidth'])}/s")
    for what, key in [("driver ", "driver"), ("power limit ", "power_limit"), ("", "link"), ("NVLink ", "links"),
                      ("cannot be used: ", "unusable")]:
        text += f", {what}{g[key]}" if g[key] else ""
    return text


def hardware(s):
    h = s["hardware"]
    caches = ", ".join(f"{c['name']} {c['count']} x {c['bytes'] // 1024:.0f} KiB" for c in h["caches"])
    limit = human_bytes(h["group_memory_limit"], "without limit")
    available = human_bytes(h["available_memory"], "not told")
    quota = f"{h['group_cpu_quota']:.2f}" if h["group_cpu_quota"] > 0 else "without limit"
    rows = [["CPU", h["cpu"]],
            ["instructions", h["cpu_features"]],
            ["CPUs", f"{h['cpus']}, of which {h['usable_cpus']} may be used; load {h['load_average']:.2f} when it "
                     "began"],
            ["caches", caches or "not told"],
            ["memory", f"{human_bytes(h['memory'], 'not told')}, {available} available"],
            ["control groups", f"memory {limit}, CPUs {quota}"],
            ["reads memory with", short_bytes(h["read_bandwidth"]) + "/s"],
            ["bf16 peak", f"{h['bf16_peak'] * 1e-12:.2f} TFLOP/s"],
            ["system", h["system"]]]
    rows += [["GPU", gpu_text(g)] for g in h["gpus"]] or [["GPU", h["no_gpu"]]]
    return table(["", ""], [[name, html(text)] for name, text in rows], 2)


def conformance(s):
    rows = []
    for c in s["conformance"]:
        if not rows or rows[-1]["op"] != c["operator"]:
            rows.append({"op": c["operator"], "passed": 0, "checks": 0, "run": [], "skipped": []})
        row = rows[-1]
        row["passed"] += c["passed"]
        row["checks"] += c["passed"] + c["failed"]
        row["skipped" if c["skipped"] else "run"].append(c["kernel"])
    if not rows:
        return ""
    cells = [[html(r["op"]), html(", ".join(r["run"])), html(", ".join(r["skipped"])), f"{r['passed']}/{r['checks']}"]
             for r in rows]
    return ("<details><summary>Checks of each operator</summary>" +
            table(["operator", "kernels", "not for this machine", "passed"], cells, 3) + "</details>\n")


def page(s):
    style = STYLE.read_text(encoding="utf-8")
    out = ('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
           '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
           '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'">\n'
           f"<title>quire snapshot: {html(s['model'])}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n")
    out += heading(s) + headline(s)
    for title, content in [("Gates", gates(s) + conformance(s)), ("Speed", speeds(s)), ("Over HTTP", served(s)),
                           ("Where the time goes", buckets(s)), ("Quality", quality(s)), ("Memory", memory(s)),
                           ("Machine", hardware(s))]:
        out += section(title, content)
    return out + "</main>\n</body>\n</html>\n"


def main():
    parser = argparse.ArgumentParser(description="The page of a snapshot, as one HTML file.")
    parser.add_argument("snapshot", help="what quire snapshot wrote")
    parser.add_argument("page", nargs="?", help="the file to write (default: the snapshot's name with .html)")
    given = parser.parse_args()
    to = pathlib.Path(given.page or pathlib.Path(given.snapshot).with_suffix(".html"))
    try:
        text = page(read(given.snapshot))
        to.write_text(text, encoding="utf-8")
    except Problem as e:
        sys.exit(f"snapshot_page: {e}")
    except OSError as e:
        sys.exit(f"snapshot_page: {escaped(str(to), 200)}: {e.strerror}")
    print(f"{to} is written")


if __name__ == "__main__":
    main()
