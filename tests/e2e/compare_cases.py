"""What both servers are asked."""

from __future__ import annotations

from typing import Any, NamedTuple

HELLO = [{"role": "user", "content": "Hello, who are you?"}]
TURNS = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": [{"type": "text", "text": "Another"}, {"type": "text", "text": "one."}]},
]
BETWEEN = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "Another one."},
    {"role": "system", "content": "Be kind."},
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
BILLED = [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "You are terse."}]
CALL = r'<tool_call>\{"name": "get_weather", "arguments": \{"city": "[a-z]{3}"\}\}</tool_call>'
"""What a model that knows tools writes; a random one is held to it."""


class Case(NamedTuple):
    """One request."""

    name: str
    path: str
    body: dict[str, Any] | None
    method: str = "POST"
    no_blanks: bool = False
    """Tokens of blanks alone are made unlikely."""


def chat(name: str, **fields: Any) -> Case:
    return Case(name, "/v1/chat/completions", {"messages": HELLO, "max_tokens": 8, "temperature": 0, **fields})


def called(name: str, **fields: Any) -> Case:
    case = chat(name, tools=[STRICT], parallel_tool_calls=False, **fields | {"max_tokens": 120})
    return case._replace(no_blanks=True)


def completion(name: str, **fields: Any) -> Case:
    return Case(name, "/v1/completions", {"prompt": "The log is", "max_tokens": 8, "temperature": 0, **fields})


def response(name: str, **fields: Any) -> Case:
    return Case(name, "/v1/responses", {"input": "Hello", "max_output_tokens": 8, "temperature": 0, **fields})


def message(name: str, **fields: Any) -> Case:
    return Case(name, "/v1/messages", {"messages": HELLO, "max_tokens": 8, "temperature": 0, **fields})


CHATS = [
    chat("chat"),
    chat("chat, turns and parts", messages=TURNS),
    chat("chat, developer", messages=[{"role": "developer", "content": "You are terse."}, *HELLO]),
    chat("chat, system in between", messages=BETWEEN),
    chat("chat, max_tokens beyond the context", max_tokens=100_000, stop=["e"]),
    chat("chat, named speaker", messages=[{**HELLO[0], "name": "Ann"}]),
    chat("chat, streamed", stream=True),
    chat("chat, streamed with usage", stream=True, stream_options={"include_usage": True}),
    chat("chat, usage all along", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    chat("chat, max_completion_tokens", max_tokens=None, max_completion_tokens=5),
    chat("chat, n greedy", n=3),
    chat("chat, n", n=3, temperature=0.8, seed=7),
    chat("chat, n streamed", n=2, temperature=0.8, seed=7, stream=True),
    chat("chat, logprobs", logprobs=True, top_logprobs=3),
    chat("chat, logprobs streamed", logprobs=True, top_logprobs=2, stream=True),
    chat("chat, logprobs without top", logprobs=True),
    chat("chat, logit_bias", logit_bias={"300": 100}),
    chat("chat, stop", stop=["e"], max_tokens=40),
    chat("chat, stop streamed", stop=["er", "e o"], max_tokens=40, stream=True),
    chat("chat, stop included", stop=["e"], max_tokens=40, include_stop_str_in_output=True),
    chat("chat, stop token", stop_token_ids=[300], logit_bias={"300": 100}),
    chat("chat, penalties", presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.1),
    chat("chat, seed", seed=7, temperature=0.8),
    chat("chat, seed and limits", seed=7, temperature=1.2, top_p=0.8, top_k=40, min_p=0.02),
    chat("chat, json object", response_format={"type": "json_object"}, max_tokens=60),
    chat(
        "chat, json schema",
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
        max_tokens=60,
    ),
    chat("chat, structured choice", structured_outputs={"choice": ["yes", "no"]}),
    chat("chat, structured regex", structured_outputs={"regex": "[a-c]{3}"}),
    chat("chat, prompt_logprobs", prompt_logprobs=1),
    chat("chat, token ids", return_token_ids=True),
    chat("chat, token ids streamed", return_token_ids=True, stream=True),
    chat("chat, user and metadata", user="me", metadata={"a": "b"}, store=False, service_tier="auto"),
    chat("chat, stored and verbose", store=True, verbosity="low"),
    chat("chat, salted", cache_salt="tenant", priority=0, request_id="mine"),
    chat("chat, unknown field", nobody_knows=1),
    chat(
        "chat, continued",
        messages=[*HELLO, {"role": "assistant", "content": "I am"}],
        add_generation_prompt=False,
        continue_final_message=True,
    ),
]
TOOLS = [
    chat("tools, unused", tools=[WEATHER]),
    chat("tools, written", tools=[WEATHER], structured_outputs={"regex": CALL}, max_tokens=120),
    chat(
        "tools, written and streamed",
        tools=[WEATHER],
        structured_outputs={"regex": CALL},
        max_tokens=120,
        stream=True,
    ),
    chat("tools, none", tools=[WEATHER], tool_choice="none"),
    called("tools, required", tool_choice="required"),
    called("tools, required and streamed", tool_choice="required", stream=True),
    called("tools, named", tool_choice=NAMED),
    called("tools, named and streamed", tool_choice=NAMED, stream=True),
    chat(
        "tools, answered",
        tools=[WEATHER],
        messages=[
            *HELLO,
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        ],
    ),
]
COMPLETIONS = [
    completion("completion"),
    completion("completion, streamed", stream=True),
    completion("completion, usage", stream=True, stream_options={"include_usage": True}),
    completion("completion, tokens", prompt=[400, 500, 600]),
    completion("completion, batch", prompt=["The log", "An event"]),
    completion("completion, token batch", prompt=[[400, 500], [600, 700, 800]]),
    completion("completion, n", n=2, temperature=0.8, seed=7),
    completion("completion, batch with n", prompt=["The log", "An event"], n=2, temperature=0.8, seed=7),
    completion("completion, logprobs", logprobs=2),
    completion("completion, logprobs streamed", logprobs=1, stream=True),
    completion("completion, echo", echo=True),
    completion("completion, echo streamed", echo=True, stream=True),
    completion("completion, echo with logprobs", echo=True, logprobs=1),
    completion("completion, echo alone", echo=True, max_tokens=0),
    completion("completion, prompt_logprobs", prompt_logprobs=1),
    completion("completion, default length", max_tokens=None),
    completion("completion, ignore_eos", ignore_eos=True, min_tokens=4),
    completion("completion, allowed tokens", allowed_token_ids=[300, 301]),
    completion("completion, bad words", bad_words=["the"]),
    completion("completion, truncated", prompt=list(range(300, 340)), truncate_prompt_tokens=4, return_token_ids=True),
    completion("completion, ids as text", logprobs=1, return_tokens_as_token_ids=True),
]
OTHERS = [
    Case("models", "/v1/models", None, "GET"),
    Case("model", "/v1/models/tiny", None, "GET"),
    Case("tokenize", "/tokenize", {"prompt": "The log is"}),
    Case("tokenize, chat", "/tokenize", {"messages": HELLO}),
    Case("detokenize", "/detokenize", {"tokens": [400, 500]}),
    response("responses"),
    response("responses, streamed", stream=True),
    message("messages"),
    message("messages, streamed", stream=True),
    message("messages, system and stop", system="You are terse.", stop_sequences=["e"], max_tokens=40),
    message("messages, system in between", messages=BETWEEN[1:], system=BILLED),
    Case("messages, counted", "/v1/messages/count_tokens", {"messages": HELLO}),
]
ERRORS = [
    chat("error: no such model", model="nobody"),
    chat("error: temperature", temperature=9),
    chat("error: type", temperature="hot"),
    chat("error: n", n=0),
    chat("error: max_tokens", max_tokens=0),
    chat("error: no messages", messages=[]),
    chat("error: messages missing", messages=None),
    chat("error: role", messages=[{"role": "nobody", "content": "x"}]),
    chat("error: image", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    chat("error: top_logprobs alone", top_logprobs=3),
    chat("error: too many top_logprobs", logprobs=True, top_logprobs=99),
    chat("error: too long", messages=[{"role": "user", "content": "so be it " * 3000}]),
    message("error: too long a message", messages=[{"role": "user", "content": "so be it " * 3000}]),
    chat("error: bad schema", response_format={"type": "json_schema"}),
    chat("error: logit_bias", logit_bias={"x": 1}),
    chat("error: tool_choice without tools", tool_choice="required"),
    chat("error: no such tool", tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "nobody"}}),
    chat("error: stream_options", stream_options={"include_usage": True}),
    completion("error: no prompt", prompt=[]),
    completion("error: token out of range", prompt=[999_999]),
    completion("error: suffix", suffix="end"),
    Case("error: no such route", "/v1/nothing", {}),
    Case("error: wrong method", "/v1/chat/completions", None, "GET"),
]
CASES = [*CHATS, *TOOLS, *COMPLETIONS, *OTHERS, *ERRORS]
