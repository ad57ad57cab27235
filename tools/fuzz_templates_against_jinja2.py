#!/usr/bin/env python3
"""Random templates through Jinja2 and through our interpreter; prints where they differ.

    tools/fuzz_templates_against_jinja2.py [--count 5000] [--seed 1] [--build build/release] [--show 20]

Needs python3-jinja2 and a built tree. Where Jinja2 raises, we must fail; where it prints, we must print the same.
"""

import argparse
import copy
import pathlib
import random
import re
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import hf_jinja  # noqa: E402
import quire_jinja  # noqa: E402

VARIABLES = {
    "s": "Hello, World", "t": "  two  words\n", "u": "Größe €5 😀 naïve", "e": "", "q": "it's \"q\"\n<b>&",
    "i": 7, "z": 0, "n": -3, "f": 2.5, "g": -0.125, "yes": True, "no": False, "nil": None,
    "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "m": [1, "a", None, 2.5, True, [1], {"k": 1}], "el": [],
    "d": {"b": 1, "A": 2, "c": {"x": [1, 2]}, "items": 5}, "ed": {},
    "msgs": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi <there>", "n": 2},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "é": "ü"}}}]},
        {"role": "tool", "content": [{"type": "text", "text": "42"}]},
    ],
}
NAMES = list(VARIABLES) + ["missing"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or", "+", "~", "=="]
ATTRIBUTES = ["role", "content", "x", "b", "items", "missing", "upper", "c", "append", "n"]
FILTERS = [
    "upper", "lower", "title", "capitalize", "trim", "length", "count", "first", "last", "list", "join", "join(', ')",
    "join('-', attribute='role')", "default('D')", "d('D', true)", "replace('l', 'L')", "replace('o', '0', 1)", "string",
    "int", "int(5)", "float", "abs", "round", "round(1)", "round(1, 'floor')", "round(method='ceil')", "items|list", "dictsort",
    "dictsort(by='value')", "dictsort(reverse=true)", "sort", "sort(reverse=true)", "sort(case_sensitive=true)",
    "sort(attribute='role')", "unique|list", "reverse|list", "reverse", "indent", "indent(2, true)", "indent(2, first=true, blank=true)",
    "safe", "escape", "e", "min", "max", "sum", "sum(attribute='n')", "batch(2)|list", "batch(3, 'x')|list", "slice(2)|list",
    "slice(3, 'x')|list", "groupby('role')|list", "urlencode", "wordcount", "format(1)", "format('a', 2)", "tojson",
    "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "tojson(ensure_ascii=true)",
    "map('upper')|list", "map('length')|list", "map(attribute='role')|list", "map(attribute='n', default=0)|list",
    "map('default', 'x')|join(',')", "select|list", "select('string')|list", "reject('none')|list", "reject('odd')|list",
    "selectattr('role', 'equalto', 'user')|list", "selectattr('content')|map(attribute='role')|list",
    "rejectattr('role', 'in', ['user', 'tool'])|list|length", "selectattr('n', 'defined')|list", "truncate(8)", "truncate(5, true, '.')",
    "center(20)", "attr('x')", "forceescape", "map('string')|join", "select('gt', 1)|list", "string|length", "nosuchfilter",
    "list|tojson", "map('tojson')|join", "first|default('none')", "last|upper", "map(attribute=0)|list",
]
TESTS = [
    "defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "iterable",
    "sequence", "callable", "odd", "even", "lower", "upper", "divisibleby 2", "divisibleby(3)", "equalto 7", "eq(7)", "ne 7",
    "lt 3", "gt(3)", "ge 2.5", "le 2", "in [1, 2, 7]", "in 'Hello, World'", "sameas none", "sameas(true)", "escaped", "filter",
    "test", "nosuchtest", "in(l)",
]
METHODS = [
    "upper()", "lower()", "title()", "capitalize()", "strip()", "lstrip()", "rstrip()", "strip('Hd ')", "lstrip('He')",
    "rstrip('\\n')", "split()", "split(' ')", "split('l', 1)", "rsplit(' ', 1)", "rsplit()", "split(None, 1)", "splitlines()", "splitlines(true)",
    "startswith('He')", "startswith(('x', 'He'))", "endswith('d')", "endswith(('d', '\\n'))", "find('o')", "rfind('o')",
    "find('o', 5)", "find('o', 5, -3)", "index('l')", "count('l')", "count('')", "replace('l', 'LL')", "replace('', '-')", "replace('o', '', 1)",
    "join(['a', 'b'])", "join(w)", "removeprefix('He')", "removesuffix('ld')", "isdigit()", "isalpha()", "isalnum()", "isspace()",
    "isupper()", "islower()", "istitle()", "isnumeric()", "zfill(15)", "center(17, '*')", "center(16)", "ljust(15)", "rjust(15, '.')",
    "partition(',')", "rpartition('o')", "swapcase()", "format(1, 2)", "get('b')", "get('zz', 4)", "get('role')", "keys()|list", "keys()", "items()",
    "values()|list", "items()|list", "copy()", "append(1)", "pop()", "update({})", "index(1)", "count(1)", "nosuch()", "casefold()",
    "expandtabs(4)", "isidentifier()", "isascii()", "isprintable()", "split(sep=',', maxsplit=1)",
]


class Generator:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.locals = []

    def literal(self):
        r = self.r
        return r.choice([
            lambda: str(r.randint(0, 12)), lambda: r.choice(["0.5", "1e3", "1.25e-7", "3.0", "1_000", "0x1F"]),
            lambda: r.choice(["'a'", "\"b\"", "'it\\'s'", "'\\n'", "'x' 'y'", "''", "'%s-%d'", "'{}:{}'", "'\\u00e9\\x41'"]),
            lambda: r.choice(["true", "false", "none", "True", "None"]),
            lambda: "[" + ", ".join(self.expr(1) for _ in range(r.randint(0, 3))) + "]",
            lambda: "(" + ", ".join(self.expr(1) for _ in range(r.randint(2, 3))) + ")",
            lambda: "{" + ", ".join(f"'{k}': {self.expr(1)}" for k in r.sample("abc", r.randint(0, 2))) + "}",
            lambda: f"range({r.randint(-2, 5)})", lambda: f"range({r.randint(0, 9)}, {r.randint(-3, 9)}, {r.choice([-2, -1, 1, 2])})",
            lambda: f"dict(a={self.expr(1)})", lambda: f"namespace(a={self.expr(1)}).a",
        ])()

    def slice(self):
        r = self.r
        part = lambda: r.choice(["", "", str(r.randint(-4, 5))])  # noqa: E731
        text = part() + ":" + part()
        return text + (":" + r.choice(["-1", "2", "-2", "1", ""]) if r.random() < 0.4 else "")

    def expr(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice([lambda: r.choice(NAMES + self.locals), self.literal])() if r.random() < 0.8 else r.choice(NAMES)
        inner = lambda: self.expr(depth - 1)  # noqa: E731
        return r.choice([
            inner, lambda: f"{inner()} {r.choice(BINARY)} {inner()}", lambda: f"({inner()} {r.choice(BINARY)} {inner()})",
            lambda: f"not {inner()}", lambda: f"-{inner()}", lambda: f"{inner()}|{r.choice(FILTERS)}", lambda: f"({inner()})|{r.choice(FILTERS)}",
            lambda: f"{r.choice(NAMES)}|{r.choice(FILTERS)}", lambda: f"{inner()} is {r.choice(TESTS)}",
            lambda: f"{r.choice(NAMES)} is not {r.choice(TESTS)}", lambda: f"{inner()} if {inner()} else {inner()}",
            lambda: f"({inner()} if {inner()})", lambda: f"{r.choice(NAMES)}[{self.slice()}]", lambda: f"({inner()})[{self.slice()}]",
            lambda: f"{r.choice(NAMES)}[{inner()}]", lambda: f"({inner()}).{r.choice(ATTRIBUTES)}", lambda: f"{r.choice(NAMES)}.{r.choice(METHODS)}",
            lambda: f"{r.choice(['s', 't', 'u', 'q', 'd'])}.{r.choice(METHODS)}", lambda: f"({inner()}).{r.choice(METHODS)}",
            lambda: f"{inner()} < {inner()} <= {inner()}", lambda: f"msgs[{r.randint(-1, 4)}].{r.choice(ATTRIBUTES)}",
            lambda: f"'%s|%5.1f|%03d' % ({inner()}, {r.choice(['f', 'i', '2'])}, i)", lambda: f"'{{:>6}}|{{!r}}'.format({inner()}, {inner()})",
            lambda: f"{inner()} ** {r.choice(['2', '0', 'z', '0.5'])}",
        ])()

    def tag(self, text):
        r = self.r
        return "{%" + r.choice(["", "", "-", "+"]) + " " + text + " " + r.choice(["", "", "-", "+"]) + "%}"

    def out(self, text):
        r = self.r
        return "{{" + r.choice(["", "", "-"]) + " " + text + " " + r.choice(["", "", "-"]) + "}}"

    def space(self):
        return self.r.choice(["", "", "\n", " ", "  \n  ", "\n\n", "x", " y\n", "\t", "\r\n"])

    def body(self, depth, loop=False):
        return "".join(self.space() + self.statement(depth, loop) for _ in range(self.r.randint(1, 3))) + self.space()

    def statement(self, depth, loop):
        r = self.r
        e = lambda: self.expr(r.randint(0, 2))  # noqa: E731
        if depth <= 0:
            return self.out(e())
        b = lambda lp=loop: self.body(depth - 1, lp)  # noqa: E731
        loop_names = ["loop.index", "loop.first", "loop.last", "loop.length", "loop.revindex0", "loop.previtem", "loop.nextitem",
                      "loop.cycle('a', 'b')", "loop.changed(i)", "loop.depth", "a"]
        iterables = ["l", "w", "msgs", "d", "d.items()", "s", "el", "range(3)", "missing", "m", "d|dictsort", "l|map('string')", "l[::-1]"]

        def for_loop():
            targets = r.choice(["a", "a", "a", "a, b"])
            self.locals.append("a")
            test = f" if {e()}" if r.random() < 0.25 else ""
            text = self.tag(f"for {targets} in {r.choice(iterables)}{test}") + b(True)
            if r.random() < 0.2:
                text += self.tag("if " + e()) + self.tag(r.choice(["break", "continue"])) + self.tag("endif")
            text += self.out(r.choice(loop_names))
            self.locals.pop()
            return text + (self.tag("else") + b() if r.random() < 0.3 else "") + self.tag("endfor")

        def conditional():
            text = self.tag("if " + e()) + b()
            if r.random() < 0.4:
                text += self.tag("elif " + e()) + b()
            return text + (self.tag("else") + b() if r.random() < 0.5 else "") + self.tag("endif")

        def macro():
            name = r.choice(["m1", "m2"])
            text = self.tag(f"macro {name}(p, q={self.expr(1)})") + self.out(r.choice(["p", "q", "p ~ q", "varargs", "kwargs", "caller()", "i"])) + b(False)
            call = r.choice([f"{name}({e()})", f"{name}({e()}, q={e()})", f"{name}()", f"{name}(1, 2, 3)", f"{name}(p=1, z=2)"])
            text += self.tag("endmacro")
            return text + (self.out(call) if r.random() < 0.7 else self.tag("call " + call) + b(False) + self.tag("endcall"))

        return r.choice([
            lambda: self.out(e()), lambda: self.out(e()), for_loop, for_loop, conditional, conditional, macro,
            lambda: self.tag(f"set v = {e()}") + self.out("v"), lambda: self.tag("set v") + b(False) + self.tag("endset") + self.out("v|length"),
            lambda: self.tag("set v | upper | trim") + b(False) + self.tag("endset") + self.out("v"), lambda: self.tag(f"set v, x = {e()}, {e()}") + self.out("v ~ x"),
            lambda: self.tag(f"set ns = namespace(c={e()})") + self.tag("for a in [1, 2]") + self.tag("set ns.c = [ns.c, a]") + self.tag("endfor") + self.out("ns.c"),
            lambda: self.tag("filter upper") + b(False) + self.tag("endfilter"), lambda: self.tag(f"with v = {e()}, k = 2") + b(False) + self.tag("endwith"),
            lambda: "{#" + r.choice(["", "-"]) + " c " + r.choice(["", "-", "+"]) + "#}", lambda: self.tag("raw") + " {{ x }} " + self.tag("endraw"),
            lambda: self.tag("generation") + b(False) + self.tag("endgeneration"), lambda: self.tag(r.choice(["break", "nosuch", "endif", "if", "else", "set x"])) if r.random() < 0.1 else self.out(e()),
        ])()

    def template(self):
        self.locals = []
        if self.r.random() < 0.5:
            return self.out(self.expr(self.r.randint(1, 3)))
        return self.body(self.r.randint(1, 3))


# Addresses, generator names and whole numbers beyond 64 bits are not ours to reproduce.
def comparable(text):
    return not re.search(r"(?i) at 0x|<generator|<built-in|<bound method|<function|iterator object|<Macro|<LoopContext|[0-9]{19,}|<class|<jinja2", text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--count", type=int, default=5000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--build", default="build/release")
    p.add_argument("--show", type=int, default=20)
    args = p.parse_args()
    warnings.simplefilter("ignore")
    env = hf_jinja.environment()
    jobs = []
    for n in range(args.count):
        jobs.append(Generator(args.seed * 1_000_003 + n).template())
    answers = quire_jinja.render_all(args.build, [(t, VARIABLES) for t in jobs])
    differ = skipped = failed = 0
    for template, ours in zip(jobs, answers):
        text, error = hf_jinja.render(env, template, copy.deepcopy(VARIABLES))
        # Jinja folds a slice of a constant at compile time, and then gives undefined where Python would raise. We have no complex numbers.
        folded = re.search("cannot be sliced|is complex", ours.get("error", ""))
        if text is not None and (folded or not comparable(text)):
            skipped += 1
            continue
        failed += error is not None
        same = "text" in ours and ours["text"] == text if error is None else "error" in ours
        if not same:
            differ += 1
            if differ <= args.show:
                print(f"--- {template!r}\n  jinja2: {text!r} {error or ''}\n  ours:   {ours}")
    print(f"{len(jobs)} templates: {differ} differ, {failed} fail in both or one, {skipped} not comparable (seed {args.seed})")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
