"""Bodies that were valid once: each is a valid one with a few places in it changed, or its bytes spoiled."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

from api.openapi import SURFACE

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
RICHER: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"stream": True, "stream_options": {"include_usage": True}, "n": 2, "logprobs": True, "top_logprobs": 2},
        {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
        {"structured_outputs": {"regex": "[a-c]{3}"}},
        {"stop": ["a", "b"], "seed": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "user": "u"},
        {"logit_bias": {"5": 1.5}, "bad_words": ["x"], "allowed_token_ids": [20, 21], "stop_token_ids": [30]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
        {"cache_salt": "s", "priority": 3, "request_id": "mine", "chat_template_kwargs": {"enable_thinking": False}},
    ],
    "/v1/completions": [
        {"prompt": ["a", "b"], "n": 2, "best_of": 2, "echo": True, "logprobs": 2},
        {"prompt": [[20, 21], [22]], "stream": True},
        {"prompt_logprobs": 1, "return_token_ids": True, "truncate_prompt_tokens": 2},
    ],
    "/v1/responses": [
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], "stream": True},
        {"tools": [{"type": "function", "name": "look", "parameters": {}}], "reasoning": {"effort": "low"}},
    ],
    "/v1/messages": [
        {"system": [{"type": "text", "text": "be short"}], "stream": True, "stop_sequences": ["x"]},
        {"tools": [{"name": "look", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}},
    ],
    "/v1/embeddings": [{"input": [[20, 21], [22]], "encoding_format": "base64", "dimensions": 8}],
    "/tokenize": [{"prompt": None, "messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True}],
}
"""What is added to an example, so that most of what the routes read is there to be changed."""

PLAIN: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 0.5, -0.0, 1e308, "", "a", "x" * 3000, "\0", "\r\nx: y", "🤡",
    "{{ 7 * 7 }}", "{% for x in range(9) %}{% endfor %}", "<|im_start|>", "../../etc", "\ud800", [], {}, [[]], [None],
    ["a", 1], {"": ""}, {"type": "text"}, {"role": "user", "content": "hi"}, {"type": "json_schema"}, [0] * 3000,
    "(a+)+$", "(" * 200, float("nan"), float("inf"), "null", "tiny", "stop", "required", "auto",
)  # fmt: skip
CHANGES_MAX = 3
DEPTH_MAX = 3000
KEYS = ("", "model", "messages", "type", "content", "n", "stream", "\0", "__proto__", "x" * 500)


def paths() -> list[str]:
    """Routes that take a body."""
    return [operation.path for operation in SURFACE if operation.example]


def valid(random: Random, path: str, model: str) -> dict[str, Any]:
    """A body that the route answers, unless the model cannot do what is asked; few tokens are asked for."""
    example = next(operation.example for operation in SURFACE if operation.path == path) or {}
    added = random.choice([{}, *RICHER.get(path, [])])
    return copy.deepcopy({**example, **added, "model": model})


def spoiled(random: Random, body: dict[str, Any]) -> bytes:
    """The body with a few of its places changed; now and then its bytes are spoiled as well."""
    for _ in range(random.randint(0, CHANGES_MAX)):
        _change(random, body)
    raw = json.dumps(body, ensure_ascii=random.random() < 0.8).encode("utf-8", "surrogatepass")
    return _bytes(random, raw) if random.random() < 0.2 else raw


def _change(random: Random, body: dict[str, Any]) -> None:
    """One value anywhere in it is another one, gone, doubled, or under another name."""
    places = list(_places(body))
    if not places:
        return
    holder, key = random.choice(places)
    match random.randrange(6):
        case 0 if isinstance(holder, dict):
            holder[random.choice(KEYS)] = holder.pop(key, None)
        case 1 if isinstance(holder, list):
            holder.extend(copy.deepcopy(holder[:1]) * random.choice((1, 5, 300)))
        case 2:
            del holder[key]
        case 3:
            holder[key] = _deep(random.randint(1, DEPTH_MAX // 25))
        case 4 if isinstance(holder, dict):
            holder[random.choice(KEYS)] = copy.deepcopy(random.choice(PLAIN))
        case _:
            holder[key] = copy.deepcopy(random.choice(PLAIN))


def _places(value: Any) -> Any:
    """Every place in it that holds a value, as what holds it and under which key."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from _places(inner)


def _deep(depth: int) -> Any:
    found: Any = "deep"
    for level in range(depth):
        found = [found] if level % 2 else {"a": found}
    return found


def _bytes(random: Random, raw: bytes) -> bytes:
    place = random.randrange(len(raw) + 1)
    match random.randrange(6):
        case 0:
            return raw[:place]
        case 1:
            return raw[:place] + random.randbytes(random.randint(1, 8)) + raw[place:]
        case 2:
            return raw + raw
        case 3:
            return b"[" * DEPTH_MAX + raw
        case 4:
            return raw.replace(b'"', b"'", 2)
        case _:
            return raw[:-1] + b"," + raw[1:]
