"""What OpenAI's own client does beyond a plain call: the stream helper, parsed and raw answers, errors, retries."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ContentDoneEvent
from pydantic import BaseModel

from core.generation import GenerateRequest
from core.models import GenerationFailed, Overloaded, RateLimited
from tests.api.conftest import Api
from tests.api.scripted import Step, card, files, spoken

USER: Any = [{"role": "user", "content": "?"}]
CALL = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Rome"}}\n</tool_call>'


class Person(BaseModel):
    """An answer's form."""

    name: str
    age: int


class Weather(BaseModel):
    """A tool's arguments."""

    city: str


@pytest.fixture(autouse=True)
def _parsers(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model names its parser."""
    named = json.dumps({"tool_call_parser": "hermes"}).encode()
    model = dataclasses.replace(card("tiny"), files=files() | {"contrail.json": named})
    monkeypatch.setattr(api.backend, "models", lambda: [model])


def scripts(api: Api, *each: list[Step]) -> None:
    """One script for each request, in this order."""
    left = list(each)

    def following(request: GenerateRequest) -> list[Step]:
        return left.pop(0)

    api.backend._script = following  # type: ignore[method-assign]


async def test_the_stream_helper(api: Api) -> None:
    """Its events, and at the end the whole completion with its usage."""
    api.backend.script = spoken("so ", "be it")
    options: Any = {"model": "tiny", "messages": USER, "stream_options": {"include_usage": True}}
    async with api.client.chat.completions.stream(**options) as stream:
        events = [event async for event in stream]
        whole = await stream.get_final_completion()
    assert [event.delta for event in events if event.type == "content.delta" and event.delta] == ["so ", "be it"]
    assert [event.content for event in events if isinstance(event, ContentDoneEvent)] == ["so be it"]
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("so be it", "stop")
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 7


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_as_an_object(api: Api, *, stream: bool) -> None:
    """A pydantic model is the schema that the engine is held to, and the answer is one of it."""
    api.backend.script = spoken('{"name": "Ann",', ' "age": 7}')
    asked: Any = {"model": "tiny", "messages": USER, "response_format": Person}
    if stream:
        async with api.client.chat.completions.stream(**asked) as events:
            answer = await events.get_final_completion()
    else:
        answer = await api.client.chat.completions.parse(**asked)
    assert answer.choices[0].message.parsed == Person(name="Ann", age=7)
    guided = api.backend.requests[0].sampling.guided
    assert guided is not None
    assert guided.json_schema is not None
    assert json.loads(guided.json_schema)["required"] == ["name", "age"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_as_an_object(api: Api, *, stream: bool) -> None:
    """The tool's arguments are parsed by the model that described them, and what it says is sent back."""
    tool = openai.pydantic_function_tool(Weather)
    scripts(api, spoken(*CALL), spoken("Rain."))
    asked: Any = {"model": "tiny", "messages": USER, "tools": [tool]}
    if stream:
        async with api.client.chat.completions.stream(**asked) as events:
            done = [event.name async for event in events if event.type == "tool_calls.function.arguments.done"]
            answer = await events.get_final_completion()
        assert done == ["Weather"]
    else:
        answer = await api.client.chat.completions.parse(**asked)
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Weather(city="Rome")
    told = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    asked["messages"] = [*USER, answer.choices[0].message.to_dict(), told]
    again = await api.client.chat.completions.parse(**asked)
    assert again.choices[0].message.content == "Rain."


async def test_an_object_that_was_cut_off(api: Api) -> None:
    """The client's own error for it, because the answer says that its length was why."""
    api.backend.script = spoken('{"name": "A', finish="length")
    with pytest.raises(openai.LengthFinishReasonError):
        await api.client.chat.completions.parse(model="tiny", messages=USER, response_format=Person)


async def test_raw_answers(api: Api) -> None:
    """Headers beside the parsed answer; a client's own request id comes back, and is the one that it shows."""
    raw = await api.client.chat.completions.with_raw_response.create(
        model="tiny", messages=USER, extra_headers={"x-request-id": "mine-1"}
    )
    answer = raw.parse()
    assert raw.headers["x-request-id"] == raw.request_id == answer._request_id == "mine-1"
    assert answer.id == "chatcmpl-mine-1"
    streamed = api.client.completions.with_streaming_response.create(model="tiny", prompt="a", stream=True)
    async with streamed as lines:
        assert lines.headers["content-type"].startswith("text/event-stream")
        assert [line async for line in lines.iter_lines() if line][-1] == "data: [DONE]"


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (GenerationFailed("the worker was lost"), openai.InternalServerError, "generation_failed"),
        (Overloaded("all are busy", 1), openai.InternalServerError, "overloaded"),
        (RateLimited("too many of them yours", 1), openai.RateLimitError, "rate_limit_exceeded"),
    ],
)
async def test_failures_are_its_own_errors(
    api: Api, error: Exception, kind: type[openai.APIStatusError], code: str
) -> None:
    """Each with what the server says: message, code, and the id of the request."""
    api.backend.script = [error]
    with pytest.raises(kind, match=str(error)) as caught:
        await api.client.completions.create(model="tiny", prompt="a")
    assert (caught.value.code, bool(caught.value.request_id)) == (code, True)


async def test_mistakes_are_its_own_errors(api: Api) -> None:
    """They name the parameter, on every route."""
    with pytest.raises(openai.NotFoundError) as missing:
        await api.client.chat.completions.create(model="none", messages=USER)
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.BadRequestError) as wrong:
        await api.client.completions.create(model="tiny", prompt="a", temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unsaid:
        await api.client.embeddings.create(model="tiny", input=[])
    assert unsaid.value.param == "input"


async def test_a_failure_within_a_stream(api: Api) -> None:
    """What came before it is there; then the client raises what the stream says."""
    api.backend.script = [*spoken("so ")[:-1], GenerationFailed("the worker was lost")]
    said = ""
    with pytest.raises(openai.APIError, match="the worker was lost"):
        async for chunk in await api.client.chat.completions.create(model="tiny", messages=USER, stream=True):
            said += chunk.choices[0].delta.content or ""
    assert said == "so "


async def test_it_gives_up_in_time(api: Api) -> None:
    """Its timeout hangs up, and that ends the generation."""
    api.backend.script = [asyncio.Event()]
    with pytest.raises(openai.APITimeoutError):
        await api.client.completions.create(model="tiny", prompt="a", timeout=0.2)
    await api.backend.until_closed()


@pytest.mark.parametrize("error", [RateLimited("too many", 7), Overloaded("all are busy", 7)])
async def test_it_waits_as_long_as_it_is_told(api: Api, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry-After is what it sleeps, and then it has its answer."""
    slept: list[float] = []

    async def noted(seconds: float) -> None:
        slept.append(seconds)

    client = api.client.with_options(max_retries=2)
    monkeypatch.setattr("openai._base_client.anyio", SimpleNamespace(sleep=noted))
    scripts(api, [error], [error], spoken("so be it"))
    answer = await client.chat.completions.create(model="tiny", messages=USER)
    assert answer.choices[0].message.content == "so be it"
    assert slept == [7, 7]
