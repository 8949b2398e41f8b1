"""The API as clients see it, over a backend that follows a script."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import openai
import pytest
from msgspec.structs import replace
from openai.types.chat import ChatCompletionMessageParam

from core.generation import Output
from core.models import GenerationFailed
from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.scripted import CONTEXT_MAX, END, ids, spoken, tokenizer

CHAT = "/v1/chat/completions"
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "why this worker?"}]
PROMPT = "<|start|><|user|>why this worker?<|end|><|assistant|>"


async def chat_text(api: Api, **options: Any) -> tuple[str, str | None, int]:
    """A streamed chat: its text, how it ended, and in how many chunks with text it came."""
    stream = await api.client.chat.completions.create(model="tiny", messages=ASKED, stream=True, **options)
    texts, finish = [], None
    async for chunk in stream:
        for choice in chunk.choices:
            texts += [choice.delta.content] if choice.delta.content else []
            finish = choice.finish_reason or finish
    return "".join(texts), finish, len(texts)


async def test_models_say_what_they_are(api: Api) -> None:
    """All models are listed by name; a simulated one says so."""
    assert [model.id for model in (await api.client.models.list()).data] == ["org/other", "tiny"]
    model = (await api.http.get("/v1/models/org/other")).json()
    assert model["engine"] == "simulated"
    assert (model["object"], model["owned_by"], model["context_max"]) == ("model", "contrail", CONTEXT_MAX)


async def test_a_chat_that_is_not_streamed(api: Api) -> None:
    """Text, end and usage are the generation's; the model's end tokens stop it and are not said."""
    api.backend.script = spoken("because ", "of its cache")
    answer = await api.client.chat.completions.create(model="tiny", messages=ASKED, seed=5, temperature=0)
    assert answer.choices[0].message.content == "because of its cache"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(ids(PROMPT))
    assert answer.usage.completion_tokens == len(ids("because ")) + len(ids("of its cache")) + 1
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 7
    (request,) = api.backend.requests
    assert tokenizer().decode(tokens_from_bytes(request.tokens), skip_special_tokens=False) == PROMPT
    assert (request.sampling.seed, request.sampling.temperature) == (5, 0)
    assert request.sampling.stop_token_ids == (0, END)
    assert request.sampling.max_tokens == CONTEXT_MAX - len(ids(PROMPT))


@pytest.mark.parametrize("late", [None, 7])
async def test_an_engine_that_says_late_or_never_how_much_was_cached(api: Api, late: int | None) -> None:
    """A count that comes with the last tokens is the answer's; without one there is none, and not 0."""
    *outputs, last = spoken("because ")
    assert isinstance(last, Output)
    api.backend.script = [*outputs[1:], replace(last, cached_tokens=late)]
    body = {"model": "tiny", "messages": ASKED}
    usage = (await api.http.post(CHAT, json=body)).json()["usage"]
    assert usage["prompt_tokens_details"] == ({} if late is None else {"cached_tokens": late})
    assert usage["prompt_tokens"] == len(ids(PROMPT))


async def test_a_streamed_chat_with_usage(api: Api) -> None:
    """Chunks add up to the text; the last one has no choice but the usage, the ones before have none."""
    api.backend.script = spoken("one", " two", " three", finish="length")
    stream = await api.client.chat.completions.create(
        model="tiny", messages=ASKED, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].delta.content for chunk in chunks[:-1]] == ["", "one", " two", " three", None]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1
    assert not chunks[-1].choices
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_completions_take_text_and_tokens(api: Api) -> None:
    """A text gets the tokenizer's special tokens, ids are taken as they are; 16 tokens unless said otherwise."""
    for prompt in ("a log", [0, *ids("a log")], [[0, *ids("a log")]], ["a log"]):
        answer = await api.client.completions.create(model="tiny", prompt=prompt)
        assert answer.choices[0].text == "hello"
        assert tokens_from_bytes(api.backend.requests[-1].tokens) == [0, *ids("a log")]
    assert api.backend.requests[-1].sampling.max_tokens == 16
    stream = await api.client.completions.create(model="tiny", prompt="a log", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "hello"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_across_chunks_ends_the_generation(api: Api, stream: bool) -> None:
    """Nothing of the stop string is seen, and the worker is told to stop though it would go on."""
    api.backend.script = [
        *(Output(tokens=ids(piece)) for piece in ("so be", " it ST", "O", "P", "more")),
        asyncio.Event(),
    ]
    if stream:
        text, finish, _ = await chat_text(api, stop=["STOP", "never"])
    else:
        answer = await api.client.chat.completions.create(model="tiny", messages=ASKED, stop="STOP")
        text, finish = answer.choices[0].message.content or "", answer.choices[0].finish_reason
    assert (text, finish) == ("so be it ", "stop")
    await api.backend.until_closed()
    assert api.backend.ended == ["stop"]


async def test_a_character_split_over_tokens_arrives_whole(api: Api) -> None:
    """No chunk ever has half a character; what is never completed is shown as U+FFFD at the end."""
    clown = ids("🤡")
    api.backend.script = [*(Output(tokens=(token,)) for token in (*clown, clown[0])), Output(finish="length")]
    assert await chat_text(api) == ("🤡\ufffd", "length", 2)


async def test_tokens_that_arrive_together_leave_together(api: Api) -> None:
    """One output is one chunk, however many tokens it has."""
    api.backend.script = [Output(tokens=ids("a choice rests on")), Output(tokens=(END,), finish="stop")]
    assert await chat_text(api) == ("a choice rests on", "stop", 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_stops_the_worker(api: Api, stream: bool) -> None:
    """The generation is closed though its engine is silent, and counted as the client's doing."""
    api.backend.script = [Output(tokens=ids("a")), asyncio.Event()]
    body = json.dumps({"model": "tiny", "messages": ASKED, "stream": stream}).encode()
    _, encoder = await asyncio.open_connection(*api.server.address)
    encoder.write(b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
    await api.backend.until_asked()
    encoder.close()
    await api.backend.until_closed()
    await api.counted("tiny", "abort")


async def test_a_failure_in_the_middle_is_said_in_the_stream(api: Api) -> None:
    """The text so far stands, then comes the error; the stream does not pretend to be done."""
    api.backend.script = [Output(tokens=ids("half")), GenerationFailed("the worker broke off")]
    answer = await api.http.post(CHAT, json={"model": "tiny", "messages": ASKED, "stream": True})
    *_, text, error = answer.text.strip().split("\n\n")
    assert json.loads(text.removeprefix("data: "))["choices"][0]["delta"]["content"] == "half"
    assert json.loads(error.removeprefix("data: "))["error"]["message"] == "the worker broke off"
    with pytest.raises(openai.APIError, match="broke off"):
        await chat_text(api)
    api.backend.script = [Output(tokens=ids("half"))]
    assert "ended before" in (await api.http.post(CHAT, json={"model": "tiny", "messages": ASKED})).text
    await api.counted("tiny", "error", 3)


async def test_what_headers_say_reaches_the_worker(api: Api) -> None:
    """The request id is the client's if it is sane; trace, tenant, priority and deadline are passed on."""
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    headers = {
        "x-request-id": "my.id-1",
        "traceparent": trace,
        "x-contrail-tenant": "team",
        "x-contrail-priority": "-3",
        "x-session-id": "chat/7",
    }
    answer = await api.http.post(
        CHAT,
        json={"model": "tiny", "messages": ASKED, "cache_salt": "s"},
        headers={**headers, "x-contrail-deadline-ms": "1500"},
    )
    (request,) = api.backend.requests
    assert answer.headers["x-request-id"] == request.id == "my.id-1"
    assert answer.json()["id"] == "chatcmpl-my.id-1"
    assert (request.traceparent, request.tenant, request.priority) == (trace, "team", -3)
    assert (request.deadline_ms, request.cache_salt) == (1500, "s")
    assert request.session == "chat/7"
    answer = await api.http.get("/v1/models", headers={"x-request-id": "no good {}"})
    assert answer.headers["x-request-id"].startswith("req-")


async def test_a_client_that_asks_for_http2_is_served_as_it_is(api: Api) -> None:
    """As Java's client does with every POST: the body is not lost, on one connection twice."""
    upgrade = {"connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAAA"}
    for _ in range(2):
        answer = await api.http.post("/v1/completions", json={"model": "tiny", "prompt": "hi"}, headers=upgrade)
        assert answer.json()["choices"][0]["text"] == "hello"


async def test_long_prompts_do_not_hold_up_others(api: Api) -> None:
    """A prompt too large for the loop is tokenized beside it; how long it is at least is said."""
    text = "a" * 150 + " " * 4000
    answer = await api.http.post("/v1/completions", json={"model": "tiny", "prompt": text})
    assert answer.status_code == 400
    said = re.search(r"at least (\d+)", answer.json()["error"]["message"])
    assert said
    assert CONTEXT_MAX < int(said[1]) <= len(ids(text)) + 1


async def test_health_is_the_backends_readiness(api: Api) -> None:
    """503 says what is waited for."""
    assert (await api.http.get("/health")).status_code == 200
    api.backend.waiting = {"tiny": "no worker yet"}
    answer = await api.http.get("/health")
    assert (answer.status_code, answer.json()["waiting_for"]) == (503, {"tiny": "no worker yet"})
