"""The Jinja2 environment of Hugging Face's apply_chat_template, for the tools that compare with it."""

import datetime
import json

import jinja2
from jinja2.ext import Extension
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 7, 14, 9, 5, 0)


class Generation(Extension):
    """{% generation %}...{% endgeneration %}: marks the assistant's text; prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: NOW.strftime(fmt)
    return env


def render(env, template, variables):
    """(text, None) or (None, error)."""
    try:
        return env.from_string(template).render(**variables), None
    except Exception as e:  # whatever Python raises, a native interpreter must refuse
        return None, f"{type(e).__name__}: {e}"
