"""A scripted backend whose model has a template with tools, and parsers for calls and reasoning."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

from core.models import ModelCard
from tests.api.scripted import ScriptedBackend, card, files

TEMPLATE = (
    "{% for tool in tools or [] %}<tool {{ tool.function.name }}>{% endfor %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "<call {{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}>{% endfor %}"
    "{% if message.tool_call_id %}<of {{ message.tool_call_id }}>{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@cache
def speaking_files() -> dict[str, bytes]:
    """The scripted model's files, with this template and parsers named."""
    config = json.loads(files()["tokenizer_config.json"]) | {"chat_template": TEMPLATE}
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "deepseek_r1"}
    return {
        **files(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "contrail.json": json.dumps(parsers).encode(),
    }


def speak(backend: ScriptedBackend) -> None:
    """The backend's models are of that kind now, with a context that holds more."""

    def models() -> list[ModelCard]:
        return [replace(card("tiny"), files=speaking_files(), context_max=2000)]

    backend.models = models  # type: ignore[method-assign]
