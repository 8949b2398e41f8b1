"""/v1/responses as OpenAI's client reads it, over a backend that follows a script."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel

from api.responses.responses_types import ResponsesRequest
from core.generation import Output, TokenLogprobs
from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.scripted import CONTEXT_MAX, END, ids, spoken, tokenizer
from tests.api.speaking import speak

PATH = "/v1/responses"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
CALL_AGAIN = CALL.replace("Rome", "Oslo")
DEEP: Any = json.loads('{"a":' * 65 + "1" + "}" * 65)
VAST = {"type": "object", "properties": {"wei": {"type": "integer", "maximum": 10**21}}}


def sent(api: Api) -> str:
    """The last prompt as text."""
    return tokenizer().decode(tokens_from_bytes(api.backend.requests[-1].tokens), skip_special_tokens=False)


async def stream_events(api: Api, **fields: Any) -> list[ResponseStreamEvent]:
    """All events of a streamed response."""
    stream = await api.client.responses.create(model="tiny", stream=True, **{"input": "hi", **fields})
    return [event async for event in stream]


async def test_a_text_whole(api: Api) -> None:
    """The response says what it was computed with."""
    api.backend.script = spoken("so ", "be it")
    answer = await api.client.responses.create(
        model="tiny", input="why?", instructions="be brief", temperature=0.5, max_output_tokens=9, metadata={"a": "b"},
        user="me", reasoning={"effort": "low"}, prompt_cache_key="k",
    )  # fmt: skip
    assert (answer.output_text, answer.status, answer.error) == ("so be it", "completed", None)
    assert (answer.temperature, answer.max_output_tokens, answer.metadata) == (0.5, 9, {"a": "b"})
    assert (answer.instructions, answer.user, answer.tools, answer.tool_choice) == ("be brief", "me", [], "auto")
    prompt = "<|start|><|system|>be brief<|end|><|user|>why?<|end|><|assistant|>"
    assert sent(api) == prompt
    assert answer.usage
    assert answer.usage.input_tokens == len(ids(prompt))
    assert answer.usage.input_tokens_details.cached_tokens == 7
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    sampling = api.backend.requests[0].sampling
    assert (sampling.temperature, sampling.max_tokens) == (0.5, 9)
    await api.counted("tiny", "stop")


async def test_the_events_of_a_text(api: Api) -> None:
    """In OpenAI's order, numbered from 0 without a gap; the items are the same in all of them."""
    api.backend.script = spoken("so ", "be it")
    events = await stream_events(api)
    assert [event.type for event in events] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.delta", "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "so be it"
    assert len({getattr(event, "item_id", last.response.output[0].id) for event in events}) == 1
    assert last.response.id == getattr(events[0], "response").id  # noqa: B009 - the first event's type is known by its name


async def test_reasoning_text_and_calls_are_items_one_after_another(api: Api) -> None:
    """The same whole and streamed, and each call can be told from the others."""
    speak(api.backend)
    api.backend.script = spoken("think", "ing</think>", "I ask", CALL, CALL_AGAIN)
    whole = await api.client.responses.create(model="tiny", input="hi", tools=[WEATHER])
    events = await stream_events(api, tools=[WEATHER])
    last = events[-1]
    assert last.type == "response.completed"
    for response in (whole, last.response):
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
        calls = [item for item in response.output if item.type == "function_call"]
        assert [(call.name, json.loads(call.arguments)) for call in calls] == [
            ("weather", {"city": "Rome"}),
            ("weather", {"city": "Oslo"}),
        ]
        assert len({call.call_id for call in calls}) == 2
        assert response.output_text == "I ask"
        reasoning = response.output[0]
        assert reasoning.type == "reasoning"
        assert reasoning.content
        assert reasoning.content[0].text == "thinking"
    assert last.response.usage
    assert last.response.usage.output_tokens_details.reasoning_tokens > 0
    kinds = {event.type for event in events}
    assert {"response.reasoning_text.delta", "response.reasoning_text.done"} <= kinds
    deltas = [it.delta for it in events if it.type == "response.function_call_arguments.delta" and it.output_index == 2]
    assert json.loads("".join(deltas)) == {"city": "Rome"}
    assert [it.output_index for it in events if it.type == "response.output_item.done"] == [0, 1, 2, 3]
    assert "<tool weather>" in sent(api)


async def test_the_clients_own_stream_puts_it_together(api: Api) -> None:
    """The library keeps a snapshot and checks it against the end; it parses what was formatted."""

    class Point(BaseModel):
        x: int

    api.backend.script = spoken('{"x"', ": 5}")
    async with api.client.responses.stream(model="tiny", input="hi", text_format=Point) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert snapshots == ['{"x"', '{"x": 5}']
    assert final.output_parsed == Point(x=5)
    guided = api.backend.requests[0].sampling.guided
    assert guided
    assert guided.json_schema
    assert json.loads(guided.json_schema)["properties"]["x"]


async def test_logprobs_come_with_their_text(api: Api) -> None:
    """With each delta, and together at the end; nobody is told of any unless it was asked for."""
    told_of = [TokenLogprobs(token, -0.5, ((token, -0.5), (5, -2.0))) for token in (*ids("so"), *ids(" it"), END)]
    api.backend.script = [
        *(Output(tokens=(it.token,), logprobs=(it,)) for it in told_of[:-1]),
        Output(tokens=(END,), logprobs=(told_of[-1],), finish="stop"),
    ]
    include: Any = ["message.output_text.logprobs"]
    events = await stream_events(api, top_logprobs=1, include=include)
    pieces = [entry.token for it in events if it.type == "response.output_text.delta" for entry in it.logprobs]
    last = events[-1]
    assert last.type == "response.completed"
    message = last.response.output[0]
    assert message.type == "message"
    assert message.content[0].type == "output_text"
    logprobs = message.content[0].logprobs
    assert logprobs
    assert "".join(pieces) == "".join(entry.token for entry in logprobs) == "so it"
    assert {(entry.logprob, len(entry.top_logprobs)) for entry in logprobs} == {(-0.5, 1)}
    assert api.backend.requests[0].sampling.logprobs == 1


async def test_a_turn_goes_on_with_its_own_items(api: Api) -> None:
    """What came is sent back: thoughts, text and calls are one message of the assistant again."""
    speak(api.backend)
    api.backend.script = spoken("hm</think>", "I ask", CALL)
    first = await api.client.responses.create(model="tiny", input="hi", tools=[WEATHER])
    call = first.output[-1]
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    given: Any = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    given += [item.model_dump(exclude_none=True) for item in first.output] + [result]
    api.backend.script = spoken("</think>", "sunny")
    second = await api.client.responses.create(model="tiny", input=given, tools=[WEATHER])
    assert second.output_text == "sunny"
    asked = sent(api)
    assert f"<|assistant|>I ask<call {call.call_id} weather" in asked
    assert f"sunny<of {call.call_id}>" in asked
    assert asked.count("<|assistant|>") == 2


async def test_the_model_is_cut_short(api: Api) -> None:
    """`incomplete` says why, whole and streamed."""
    api.backend.script = spoken("so", finish="length")
    whole = await api.client.responses.create(model="tiny", input="hi")
    last = (await stream_events(api))[-1]
    assert last.type == "response.incomplete"
    for response in (whole, last.response):
        assert (response.status, response.output[0].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]
        assert response.incomplete_details
        assert response.incomplete_details.reason == "max_output_tokens"


async def test_a_call_that_is_cut_short_is_incomplete(api: Api) -> None:
    """By its own status, in whatever order it comes; the response had room for more."""
    speak(api.backend)
    api.backend.script = spoken("hm</think>", CALL_AGAIN.replace("}", ""), CALL)
    whole = await api.client.responses.create(model="tiny", input="hi", tools=[WEATHER], extra_body={"stop": ["Ro"]})
    events = await stream_events(api, tools=[WEATHER], extra_body={"stop": ["Ro"]})
    last = events[-1]
    assert last.type == "response.completed"
    for response in (whole, last.response):
        calls = [item for item in response.output if item.type == "function_call"]
        assert [call.status for call in calls] == ["incomplete", "incomplete"]
        assert calls[-1].arguments == '{"city": "'
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [getattr(item, "status", None) for item in done[1:]] == ["incomplete", "incomplete"]


@pytest.mark.parametrize(
    ("fields", "echoed"),
    [
        ({"tools": [{**WEATHER, "parameters": VAST}]}, "tools"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": VAST}}}, "text"),
    ],
)
async def test_a_schema_is_echoed_as_it_was_sent(api: Api, fields: dict[str, Any], echoed: str) -> None:
    """Its numbers may have more than 64 bits; whole and streamed."""
    speak(api.backend)
    api.backend.script = spoken("hm</think>", "so")
    whole = await api.http.post(PATH, json={"model": "tiny", "input": "hi", **fields})
    assert str(10**21) in json.dumps(whole.json()[echoed])
    last = (await stream_events(api, extra_body=fields))[-1]
    assert last.type == "response.completed"
    assert str(10**21) in json.dumps(last.to_dict()["response"][echoed])  # type: ignore[index]


async def test_an_empty_answer_is_an_empty_message(api: Api) -> None:
    """Readers take the first message for granted."""
    api.backend.script = spoken()
    whole = await api.client.responses.create(model="tiny", input="hi")
    assert [item.type for item in whole.output] == ["message"]
    assert (await stream_events(api))[-1].type == "response.completed"


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"background": True}, "background", "nothing is stored here"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole input"),
        ({"conversation": {"id": "c"}}, "conversation", "nothing is stored"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "input[0]", "send `store: false`, and the items"),
        ({"input": []}, "input", "must not be empty"),
        ({"input": [], "instructions": ""}, "input", "must not be empty"),
        ({"input": [{"role": "king", "content": "hi"}]}, "input", "must be one of"),
        ({"input": [{"role": "user"}]}, "input[0].content", "is required"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]", "'input_image'"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[0].name", "is required"),
        ({"input": "word " * 1000}, "input", f"maximum context length is {CONTEXT_MAX} tokens"),
        ({"temperature": 3}, "temperature", "between 0 and 2"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "is required"),
        ({"tools": [{"type": "function", "name": "not a name"}]}, "tools[0].name", "1 to 64"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", "'mcp'"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name", "is required"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "must be"),
        ({"truncation": "some"}, "truncation", "auto, disabled"),
        ({"metadata": {"a": 1}}, "metadata", "a string"),
        ({"text": {"verbosity": "huge"}}, "text.verbosity", "low, medium, high"),
        ({"service_tier": "best"}, "service_tier", "flex"),
        ({"tools": [{**WEATHER, "parameters": DEEP}]}, "tools[0].parameters", "deeper than 64"),
        ({"text": {"format": {"type": "text", "schema": DEEP}}}, "text.format.schema", "deeper than 64"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": DEEP}}},
            "text.format.schema",
            "deeper than 64",
        ),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "at most 16"),
    ],
)
async def test_a_bad_parameter_is_named(api: Api, fields: dict[str, Any], param: str, text: str) -> None:
    """By the name that it has in this body."""
    answer = await api.http.post(PATH, json={"model": "tiny", "input": "hi", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert text in error["message"]
    assert error["message"].startswith(param.split("[", maxsplit=1)[0])
    assert not api.backend.requests
    await api.counted("", "rejected")


@pytest.mark.parametrize("tier", ["auto", "default", "flex", "priority", "scale", None])
async def test_what_changes_nothing_is_taken(api: Api, tier: str | None) -> None:
    """As clients send it without being asked; the answer says what was done."""
    answer = await api.http.post(
        PATH,
        json={
            "model": "tiny", "input": "hi", "store": True, "background": False, "truncation": "auto", "tools": [],
            "include": ["reasoning.encrypted_content", "file_search_call.results"], "service_tier": tier,
            "text": {"format": {"type": "text"}, "verbosity": "high"}, "max_tool_calls": 3,
            "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": None, "summary": "auto"},
            "prompt_cache_key": "k", "safety_identifier": "s", "client_metadata": {"a": "b"},
            "stream_options": {"include_obfuscation": False}, "prompt_cache_retention": "24h",
        },
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert (shown["store"], shown["truncation"], shown["service_tier"]) == (False, "disabled", "default")
    assert (shown["max_tool_calls"], shown["text"]["verbosity"], shown["prompt_cache_key"]) == (3, "high", "k")


async def test_null_is_as_nothing(api: Api) -> None:
    """Of every field but the two that a request is made of."""
    fields = dict.fromkeys(set(ResponsesRequest.__struct_fields__) - {"model", "input"})
    answer = await api.http.post(PATH, json={"model": "tiny", "input": "hi", **fields})
    assert answer.status_code == 200, answer.text


async def test_instructions_alone_are_a_prompt(api: Api) -> None:
    """With an empty list as the input, as vLLM's server takes it."""
    answer = await api.http.post(PATH, json={"model": "tiny", "input": [], "instructions": "count"})
    assert answer.status_code == 200, answer.text
    assert sent(api) == "<|start|><|system|>count<|end|><|assistant|>"


async def test_hanging_up_cancels(api: Api) -> None:
    """In the middle of a stream."""
    api.backend.script = [*spoken("so")[:-1], asyncio.Event()]
    with pytest.raises(httpx.ReadTimeout):
        await api.http.post(
            PATH, json={"model": "tiny", "input": "hi", "stream": True}, timeout=httpx.Timeout(5, read=0.1)
        )
    await api.backend.until_closed()
    assert api.backend.ended == [None]
    await api.counted("tiny", "abort")
