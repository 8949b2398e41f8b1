"""Chat templates: messages to a prompt's text, as transformers renders them.

The environment is sandboxed and immutable, blocks are trimmed, `tojson` escapes no HTML. `strftime_now` is not
there: a prompt with today's date in it would be another prompt tomorrow, and templates ask whether it is defined.

Bounded are the rendered text (RENDERED_CHARS_MAX, counted while it is made) and each range (jinja's MAX_RANGE). Not
bounded are a template's own loops within loops, and text that it multiplies before any leaves: a template is the
model's, chosen by who runs it, and a request brings none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from api.openai.templates.system_probe import takes_system_anywhere
from api.openai.templates.template_tree import reads_parts
from api.server.errors import bad_parameter
from core.errors import Corrupt

RENDERED_CHARS_MAX = 64 * 1024 * 1024
"""Longest prompt's text; several times what a body of the largest size becomes."""
CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
"""Stands for the end of a message that is to be continued, while the template runs; the same as transformers'."""


class _GenerationTag(Extension):
    """`{% generation %}` marks an assistant's text for training; here its body stands as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own contract for extensions

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class ChatTemplate:
    """A model's chat template, compiled; Corrupt if it does not compile."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], tool_source: str | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except TemplateError as error:
            raise Corrupt(f"the model's chat template does not compile: {error}") from error
        # every rendering goes through them, and jinja's own chain of two makes that take twice as long
        self._template.globals = dict(self._template.globals)
        self._names = {**self._template.globals, **special_tokens}
        """What every rendering knows, beside what it is given."""
        self.wants_parts = reads_parts(tree)
        """Whether it goes through a message's content part by part, rather than take it as text."""
        self.knows_developer = '"developer"' in source or "'developer'" in source
        """Whether it has that role."""
        self.takes_system_anywhere = takes_system_anywhere(self.render, parts=self.wants_parts)
        """Whether a system message may stand between others, and is written there."""
        self.with_tools = None if tool_source is None else ChatTemplate(tool_source, special_tokens)
        """What stands in for it where tools are offered, if the model has two."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, up to where the assistant speaks; ApiError if the template refuses these messages.

        `variables` are its own, such as `enable_thinking`; what it does not know it ignores.
        """
        named = {
            **self._names,
            **(variables or {}),
            "messages": list(messages),
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            # as `generate` does, which beside that only makes tracebacks of templates readable
            return _bounded(self._template.root_render_func(self._template.new_context(named, shared=True)))
        # a template's expressions raise whatever Python raises for what a request holds
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise bad_parameter("messages", f"the model's chat template refuses them: {error}") from error
        except RecursionError as error:
            raise bad_parameter("messages", "they are nested too deeply for the model's chat template") from error


def _bounded(pieces: Any) -> str:
    rendered: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > RENDERED_CHARS_MAX:
            raise ValueError(f"they become a prompt of more than {RENDERED_CHARS_MAX} characters")
        rendered.append(piece)
    return "".join(rendered)
