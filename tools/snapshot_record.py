"""A snapshot's file (docs/snapshot.md), read as one from strangers: what is wrong is said with the field's name."""

import json
import pathlib

SCHEMA = "quire-snapshot/1"
MOST_BYTES = 64 << 20
MOST_NUMBER = 1e100  # whose square is a number, too
MOST_TEXT, MOST_READINGS, MOST_FIGURES, MOST_ROWS = 4096, 10000, 2000, 200000


class Problem(Exception):
    """What is wrong with a request or a file, in one line."""


# ---- What a file holds: a shape for each value ----

class Array:
    def __init__(self, of, most):
        self.of, self.most = of, most


class OrNull:
    def __init__(self, of):
        self.of = of


TEXT, FLAG, NUMBER = "text", "flag", "number"

SPREAD = OrNull({"mean": NUMBER, "p50": NUMBER, "p90": NUMBER, "p99": NUMBER})
HARDWARE = {
    "cpu": TEXT, "cpu_features": TEXT, "system": TEXT, "cpus": NUMBER, "usable_cpus": NUMBER,
    "caches": Array({"name": TEXT, "bytes": NUMBER, "count": NUMBER}, 64), "memory": NUMBER, "available_memory": NUMBER,
    "group_memory_limit": NUMBER, "group_cpu_quota": NUMBER, "load_average": NUMBER, "read_bandwidth": NUMBER,
    "bf16_peak": NUMBER, "no_gpu": TEXT,
    "gpus": Array({"name": TEXT, "compute_capability": TEXT, "multiprocessors": NUMBER, "memory": NUMBER,
                   "copy_bandwidth": NUMBER, "kernels": TEXT, "unusable": TEXT, "driver": TEXT, "link": TEXT,
                   "power_limit": TEXT, "links": TEXT}, 64),
}
SNAPSHOT = {
    "program": TEXT, "time": TEXT, "model": TEXT, "device": TEXT, "fingerprint": TEXT, "threads": NUMBER, "quick": FLAG,
    "seconds": NUMBER, "hardware": HARDWARE,
    "gates": Array({"name": TEXT, "what": TEXT, "result": ("passed", "failed", "skipped"), "detail": TEXT},
                   MOST_FIGURES),
    "conformance": Array({"operator": TEXT, "kernel": TEXT, "passed": NUMBER, "failed": NUMBER, "skipped": TEXT},
                         MOST_ROWS),
    "figures": Array({"name": TEXT, "unit": TEXT, "more_is_better": FLAG, "values": Array(NUMBER, MOST_READINGS),
                      "compute": Array(NUMBER, MOST_READINGS), "memory": Array(NUMBER, MOST_READINGS)}, MOST_FIGURES),
    "buckets": Array({"phase": TEXT, "operator": TEXT, "calls": NUMBER, "seconds": NUMBER, "bytes": NUMBER,
                      "flops": NUMBER}, MOST_ROWS),
    "buckets_missing": TEXT,
    "loads": Array({"server": TEXT, "load": TEXT, "requests": NUMBER, "errors": NUMBER,
                    "decode_tokens_per_second": NUMBER, "ttft_seconds": SPREAD, "itl_seconds": SPREAD}, MOST_ROWS),
    "memory": Array({"seconds": NUMBER, "stage": TEXT, "resident": NUMBER, "gpu_used": NUMBER}, MOST_ROWS),
    "quality": OrNull({"text": TEXT, "windows": NUMBER, "window": NUMBER, "perplexity": NUMBER}),
}
REFERENCE = {"name": TEXT, "perplexity": NUMBER, "kl_mean": NUMBER, "kl_p99": NUMBER, "top1_agreement": NUMBER}


def check(value, shape, path):
    """Raises Problem where the value has another shape. Members that a shape does not name may be there."""
    def wrong(what):
        raise Problem(f"{path or 'it'} {what}")

    if isinstance(shape, OrNull):
        if value is not None:
            check(value, shape.of, path)
    elif isinstance(shape, Array):
        if not isinstance(value, list) or len(value) > shape.most:
            wrong(f"is no array of at most {shape.most} entries")
        for i, entry in enumerate(value):
            check(entry, shape.of, f"{path}[{i}]")
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            wrong("is no object")
        for key, of in shape.items():
            if key not in value:
                wrong(f'has no "{key}"')
            check(value[key], of, f"{path}.{key}" if path else key)
    elif isinstance(shape, tuple):
        if value not in shape:
            wrong(f"is neither {', '.join(shape[:-1])} nor {shape[-1]}")
    elif shape == TEXT:
        if not isinstance(value, str) or len(value.encode(errors="replace")) > MOST_TEXT:
            wrong(f"is no text of at most {MOST_TEXT} bytes")
    elif shape == FLAG:
        if not isinstance(value, bool):
            wrong("is neither true nor false")
    elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_NUMBER:
        wrong(f"is no number from 0 to {MOST_NUMBER:g}")


def check_figures(figures):
    for i, figure in enumerate(figures):
        lengths = {len(figure[key]) for key in ("values", "compute", "memory")}
        if len(lengths) != 1:
            raise Problem(f"figures[{i}] has values and calibrations of different numbers")
        if 0 in figure["values"]:
            raise Problem(f"figures[{i}].values holds a 0")


# ---- Reading ----

def once(pairs):
    """Objects whose keys are told apart: one that occurs twice would hide one of its values."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Problem("a key occurs twice in an object")
    return found


def no_number(name):
    raise Problem(f"{name} is no number")


def parse(text):
    try:
        s = json.loads(text, object_pairs_hook=once, parse_constant=no_number)
    except RecursionError:
        raise Problem("it is nested too deep") from None
    except ValueError as e:
        raise Problem(f"no JSON of a snapshot: {e}") from None
    check(s, {"schema": TEXT}, "")
    if s["schema"] != SCHEMA:
        raise Problem(f"its schema is '{escaped(s['schema'], 60)}', and this program reads {SCHEMA}")
    check(s, SNAPSHOT, "")
    check_figures(s["figures"])
    if s["quality"] is not None and "reference" in s["quality"]:
        check(s["quality"]["reference"], REFERENCE, "quality.reference")
    return s


def read(path):
    """The snapshot in the file. Raises Problem, with the file's name."""
    shown = escaped(str(path), 200)
    try:
        with pathlib.Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as e:
        raise Problem(f"{shown}: {e.strerror}") from None
    if len(data) > MOST_BYTES:
        raise Problem(f"{shown}: has more than {MOST_BYTES} bytes, and that is too much for a snapshot")
    try:
        return parse(data.decode(errors="replace"))
    except Problem as e:
        raise Problem(f"{shown}: {e}") from None


# ---- Showing ----

def is_hidden(c):
    """Control characters, what turns the direction of writing, and what separates lines and paragraphs."""
    n = ord(c)
    return (n < 0x20 or 0x7f <= n < 0xa0 or n in (0x61c, 0x200e, 0x200f, 0xfeff) or 0x2028 <= n <= 0x202e
            or 0x2066 <= n <= 0x2069 or 0xd800 <= n < 0xe000 or 0xe0000 <= n <= 0xe007f)


def escaped(text, most=0):
    """The text on one line of a terminal: what could move its cursor is shown as \\u001b. At most so many characters of
    what is longer; 0: all."""
    shown = "".join(
        "\\n" if c == "\n" else "\\t" if c == "\t" else c if not is_hidden(c)
        else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}" for c in text)
    if most == 0 or len(shown) <= most:
        return shown
    return f"{shown[:most - most // 3]} ... {shown[len(shown) - most // 3:]}"
