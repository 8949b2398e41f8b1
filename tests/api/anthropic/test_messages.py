"""Anthropic's /v1/messages as its own client reads it, over a backend that follows a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import anthropic
import httpx
import pytest
from starlette.types import Receive, Scope, Send

from api.server.middleware import RequestIdMiddleware
from core.generation import Output
from core.models import GenerationFailed, NoWorkers
from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.scripted import ids, spoken, tokenizer
from tests.api.speaking import speak

ASKED: Any = [{"role": "user", "content": "why?"}]
PROMPT = "<|start|><|system|>be brief<|end|><|user|>why?<|end|><|assistant|>"
WEATHER: Any = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


DEEP: Any = json.loads('{"a":' * 65 + "1" + "}" * 65)
REDEFINED = [{"name": name, "input_schema": {"$defs": {"x": {"type": name}}}} for name in ("string", "number")]


@pytest.fixture
async def client(api: Api) -> AsyncIterator[Any]:
    """Anthropic's client of the same API."""
    base_url = str(api.http.base_url)
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


def sent(api: Api) -> str:
    """The last prompt as text."""
    return tokenizer().decode(tokens_from_bytes(api.backend.requests[-1].tokens), skip_special_tokens=False)


async def test_a_text_whole_and_streamed(api: Api, client: Any) -> None:
    """The same message, and the usage counts what was cached beside the rest."""
    api.backend.script = spoken("so ", "be it")
    options: Any = {"model": "tiny", "max_tokens": 9, "system": "be brief", "messages": ASKED}
    whole = await client.messages.create(**options, extra_body={"temperature": 0.5, "top_k": 3})
    async with client.messages.stream(**options) as stream:
        pieces = [piece async for piece in stream.text_stream]
        streamed = await stream.get_final_message()
    assert pieces == ["so ", "be it"]
    for message in (whole, streamed):
        assert [(block.type, block.text) for block in message.content] == [("text", "so be it")]
        assert (message.stop_reason, message.stop_sequence, message.model) == ("end_turn", None, "tiny")
        assert message.usage.input_tokens + message.usage.cache_read_input_tokens == len(ids(PROMPT))
        assert message.usage.cache_read_input_tokens == 7
        assert message.usage.output_tokens > 0
    assert sent(api) == PROMPT
    sampling = api.backend.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (9, 0.5, 3)
    await api.counted("tiny", "stop", 2)


async def test_thoughts_and_calls_are_blocks(api: Api, client: Any) -> None:
    """One after another, and a turn that is sent back is one message of the assistant again."""
    speak(api.backend)
    api.backend.script = spoken("think", "ing</think>", "I ask", CALL, CALL)
    options: Any = {"model": "tiny", "max_tokens": 50, "tools": [WEATHER], "tool_choice": {"type": "auto"}}
    whole = await client.messages.create(messages=ASKED, **options)
    async with client.messages.stream(messages=ASKED, **options) as stream:
        streamed = await stream.get_final_message()
    for message in (whole, streamed):
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert (message.content[0].thinking, message.content[1].text) == ("thinking", "I ask")
        assert (message.content[2].name, message.content[2].input) == ("weather", {"city": "Rome"})
        assert message.stop_reason == "tool_use"
    call = whole.content[2]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    turn = {"role": "assistant", "content": [block.model_dump() for block in whole.content[:3]]}
    user = {"role": "user", "content": [result, {"type": "text", "text": "well?"}]}
    await client.messages.create(messages=[*ASKED, turn, user], **options)
    asked = sent(api)
    assert f"<|assistant|>I ask<call {call.id} weather" in asked
    assert f"<|tool|>sunny<of {call.id}><|end|><|user|>well?<|end|>" in asked


async def test_how_it_ended_is_said(api: Api, client: Any) -> None:
    """Stop sequences, and no more room."""
    api.backend.script = spoken("so END more")
    message = await client.messages.create(model="tiny", max_tokens=9, messages=ASKED, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence, message.content[0].text) == ("stop_sequence", "END", "so ")
    api.backend.script = spoken("so", finish="length")
    message = await client.messages.create(model="tiny", max_tokens=9, messages=ASKED)
    assert message.stop_reason == "max_tokens"
    speak(api.backend)
    api.backend.script = spoken("hm</think>", CALL, finish="length")
    message = await client.messages.create(model="tiny", max_tokens=50, messages=ASKED, tools=[WEATHER])
    assert (message.stop_reason, message.content[-1].type) == ("max_tokens", "tool_use")


ROME = {"city": "Rome"}
FORCED = {"tool_choice": {"type": "tool", "name": "weather"}}


@pytest.mark.parametrize(
    ("said", "fields", "ended", "arguments"),
    [
        ('{"city": "Rome"}', FORCED, ("tool_use", None), ROME),
        (CALL, {"stop_sequences": ["</tool_call>"]}, ("tool_use", None), ROME),
        (f"{CALL}so END", {"stop_sequences": ["END"]}, ("tool_use", None), ROME),
        (CALL, {"stop_sequences": ["Ro"]}, ("stop_sequence", "Ro"), {}),
        ('{"city": "Rome"}', {**FORCED, "stop_sequences": ["Ro"]}, ("stop_sequence", "Ro"), {}),
        (CALL.partition("}")[0], {}, ("end_turn", None), {}),
        (CALL.replace('"Rome"', "NaN"), {}, ("end_turn", None), {}),
        (CALL.replace('"Rome"', "1" + "0" * 21), {}, ("tool_use", None), {"city": 10**21}),
        (CALL.replace('"Rome"', "1e400"), {}, ("tool_use", None), {"city": inf}),
        (CALL.replace("Rome", "a\nb"), {}, ("tool_use", None), {"city": "a\nb"}),
        (CALL.replace("Rome", r"\ud83d\n"), {}, ("tool_use", None), {"city": "\ufffd\n"}),
        (CALL.replace("Rome", r"\\ud83d \uD83D\ude00 \uDE00"), {}, ("tool_use", None), {"city": "\\ud83d 😀 \ufffd"}),
        (CALL.replace("Rome", "\n\\udfff"), {}, ("tool_use", None), {"city": "\n\ufffd"}),
    ],
)
async def test_whole_calls_alone_are_to_be_made(
    api: Api, said: str, fields: dict[str, Any], ended: tuple[str, str | None], arguments: dict[str, Any]
) -> None:
    """Whole and streamed, whatever else ended the answer; one whose arguments broke off is shown, and is not to be."""
    speak(api.backend)
    api.backend.script = spoken("hm</think>", said)
    body = {"model": "tiny", "max_tokens": 50, "messages": ASKED, "tools": [WEATHER], **fields}
    whole = (await api.http.post("/v1/messages", json=body)).json()
    (call,) = [block for block in whole["content"] if block["type"] == "tool_use"]
    assert (call["name"], call["input"]) == ("weather", arguments)
    assert (whole["stop_reason"], whole["stop_sequence"]) == ended
    told = await events(api, **body)
    (end,) = [event["delta"] for event in told if event["type"] == "message_delta"]
    assert (end["stop_reason"], end["stop_sequence"]) == ended


async def test_an_output_format_is_kept(api: Api, client: Any) -> None:
    """It is a JSON schema, as a chat's is."""
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    api.backend.script = spoken('{"x": 5}')
    config = {"format": {"type": "json_schema", "schema": schema}}
    await client.messages.create(model="tiny", max_tokens=9, messages=ASKED, output_config=config)
    guided = api.backend.requests[0].sampling.guided
    assert guided
    assert guided.json_schema
    assert json.loads(guided.json_schema) == schema


async def test_the_beginning_of_an_answer_is_continued(api: Api, client: Any) -> None:
    """An assistant's message at the end is open."""
    await client.messages.create(model="tiny", max_tokens=9, messages=[*ASKED, {"role": "assistant", "content": "so"}])
    assert sent(api).endswith("<|assistant|>so")


async def test_tokens_are_counted_without_a_worker(api: Api, client: Any) -> None:
    """As many as the prompt of the message would have."""
    counted = await client.messages.count_tokens(model="tiny", system="be brief", messages=ASKED)
    assert counted.input_tokens == len(ids(PROMPT))
    assert not api.backend.requests


async def events(api: Api, **fields: Any) -> list[dict[str, Any]]:
    """Of a streamed answer."""
    body = {"model": "tiny", "max_tokens": 50, "messages": ASKED, "stream": True, **fields}
    lines = (await api.http.post("/v1/messages", json=body)).text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


SAYING: list[dict[str, Any]] = [
    {},
    {"system": [{"type": "text", "text": "be brief"}], "thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"tools": [WEATHER], "tool_choice": {"type": "any"}},
    {"messages": [*ASKED, {"role": "assistant", "content": "so"}]},
]


@pytest.mark.parametrize("fields", SAYING)
async def test_usage_counts_what_is_counted_alone(api: Api, fields: dict[str, Any]) -> None:
    """In the stream's first event and in its last one: what was cached beside the rest, the sum as counted alone."""
    speak(api.backend)
    api.backend.script = spoken('[{"name": "weather", "parameters": {}}]')
    told = await events(api, **fields)
    body = {"model": "tiny", "messages": ASKED, **fields}
    counted = (await api.http.post("/v1/messages/count_tokens", json=body)).json()["input_tokens"]
    start, end = told[0], told[-2]
    assert (start["type"], end["type"]) == ("message_start", "message_delta")
    for usage in (start["message"]["usage"], end["usage"]):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (counted - 7, 7)
        assert usage["cache_creation_input_tokens"] == 0


async def test_usage_is_right_at_the_end_at_the_latest(api: Api) -> None:
    """Where the worker says only then what it had cached."""
    api.backend.script = [Output(tokens=ids("so")), Output(tokens=ids("!"), cached_tokens=7), *spoken()[-1:]]
    usage = (await events(api))[-2]["usage"]
    assert usage["cache_read_input_tokens"] == 7
    assert usage["input_tokens"] == len(ids("<|start|><|user|>why?<|end|><|assistant|>")) - 7


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_tokens": None}, "max_tokens: must be an integer"),
        ({"messages": []}, "messages: must hold at least one"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: must be user, assistant or system"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]: content of type"),
        ({"messages": [{"role": "user", "content": "word " * 1000}]}, "prompt is too long: "),
        ({"tools": [{"name": "bash", "type": "Bash: x"}]}, "tools[0].type: must be 'custom'"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name: is required"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type: must be one of"),
        ({"thinking": {"type": "deep"}}, "thinking.type: must be one of"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format: must be a json_schema"),
        ({"temperature": 2.5}, "temperature: must be between 0 and 2"),
        ({"stop_sequences": [*"abcde"]}, "stop_sequences: must hold at most 4"),
        ({"stop_sequences": [""]}, "stop_sequences: each string"),
        ({"tools": [{"name": "a b"}], "tool_choice": {"type": "any"}}, "tools[0].name: must have"),
        ({"tools": REDEFINED, "tool_choice": {"type": "any"}}, "tools[1].input_schema.$defs: another tool"),
        ({"output_config": {"format": {"type": "json_schema", "schema": DEEP}}}, "output_config.format.schema: nests"),
        ({"messages": [*ASKED, {"role": "assistant", "content": []}]}, "messages: needs text in the last message"),
    ],
)
async def test_errors_have_anthropics_shape(api: Api, fields: dict[str, Any], text: str) -> None:
    """And say which parameter is wrong."""
    answer = await api.http.post("/v1/messages", json={"model": "tiny", "max_tokens": 5, "messages": ASKED, **fields})
    body = answer.json()
    assert (answer.status_code, body["type"], set(body["error"])) == (400, "error", {"type", "message"})
    assert body["error"]["type"] == "invalid_request_error"
    assert text in body["error"]["message"]
    assert body["request_id"] == answer.headers["x-request-id"]
    assert not api.backend.requests


async def test_the_client_knows_our_failures(api: Api, client: Any) -> None:
    """By their status, and in the middle of a stream by an event."""
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(model="none", max_tokens=5, messages=ASKED)
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.count_tokens(model="none", messages=ASKED)
    api.backend.script = [NoWorkers("none")]
    with pytest.raises(anthropic.APIStatusError) as failure:
        await client.messages.create(model="tiny", max_tokens=5, messages=ASKED)
    assert failure.value.response.headers["retry-after"]
    api.backend.script = [Output(tokens=ids("so")), GenerationFailed("the worker is gone")]
    with pytest.raises(anthropic.APIStatusError, match="gone"):
        async with client.messages.stream(model="tiny", max_tokens=5, messages=ASKED) as stream:
            await stream.until_done()


def refused(answer: httpx.Response, status: int, kind: str) -> None:
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (status, "error", kind), body
    assert body["request_id"] == answer.headers["x-request-id"]


async def test_whatever_fails_has_anthropics_shape(api: Api) -> None:
    """Also what no route of ours answers: faults inside, methods and paths that there are not, and the server's end."""
    api.backend.script = [KeyError("inside")]
    options = {"model": "tiny", "max_tokens": 5, "messages": ASKED}
    refused(await api.http.post("/v1/messages", json=options), 500, "api_error")
    refused(await api.http.get("/v1/messages"), 405, "invalid_request_error")
    refused(await api.http.get("/v1/messages/count_tokens"), 405, "invalid_request_error")
    refused(await api.http.get("/v1/messages/batches"), 404, "not_found_error")
    assert set((await api.http.get("/v1/messages_of")).json()) == {"error"}
    for fault, status, kind in ((asyncio.CancelledError(), 529, "overloaded_error"), (KeyError(), 500, "api_error")):

        async def broken(_scope: Scope, _receive: Receive, _send: Send, raised: BaseException = fault) -> None:
            raise raised

        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(RequestIdMiddleware(broken)), base_url="http://here"
        ) as http:
            refused(await http.post("/v1/messages"), status, kind)
