"""Chat templates: messages to a prompt's text, as transformers renders them.

The environment is sandboxed and immutable, blocks are trimmed, `tojson` escapes no HTML. `strftime_now` is not
there: a prompt with today's date in it would be another prompt tomorrow, and templates ask whether it is defined.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from api.openai.errors import bad_parameter
from core.errors import Corrupt


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

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise Corrupt(f"the model's chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt up to where the assistant speaks; ApiError if the template refuses these messages."""
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **self._special_tokens
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise bad_parameter("messages", f"the model's chat template refuses them: {error}") from error
