"""What is asked for beyond the context: cut to what is left, or refused so that programs shorten the conversation."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import httpx
import pytest

from api.anthropic.messages_encoder import COUNTED_MAX
from api.openai.request.sampling import output_tokens_max
from api.openai.types.request_types import ChatRequest, CompletionRequest
from api.server.errors import ContextExceeded
from core.models import ModelCard
from tests.api.conftest import Api
from tests.api.scripted import CONTEXT_MAX, card, ids

LEAST = CONTEXT_MAX // 16
CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    f"/v1/{name}" for name in ("chat/completions", "completions", "responses", "messages")
)
LIMITS = {CHAT: "max_completion_tokens", COMPLETIONS: "max_tokens", RESPONSES: "max_output_tokens"} | {
    MESSAGES: "max_tokens"
}
WORD = "request"
TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")


def body(path: str, tokens: int, asked: int | None) -> dict[str, Any]:
    """With a prompt of so many tokens."""
    around = 1 if path == COMPLETIONS else len(ids("<|start|><|user|><|end|><|assistant|>"))
    text = f" {WORD}" * ((tokens - around) // len(ids(f" {WORD}")))
    text += "!" * (tokens - around - len(ids(text)))
    assert len(ids(text)) == tokens - around
    said = {COMPLETIONS: {"prompt": text}, RESPONSES: {"input": text}}.get(
        path, {"messages": [{"role": "user", "content": text}]}
    )
    return {"model": "tiny", **said, **({} if asked is None else {LIMITS[path]: asked})}


async def ask(api: Api, path: str, tokens: int, asked: int | None) -> httpx.Response:
    return await api.http.post(path, json=body(path, tokens, asked))


@pytest.mark.parametrize("path", LIMITS)
@pytest.mark.parametrize(
    ("tokens", "asked", "made"),
    [
        (40, 30, 30),
        (40, CONTEXT_MAX - 40, CONTEXT_MAX - 40),
        (40, 32_000, CONTEXT_MAX - 40),
        (CONTEXT_MAX - LEAST, 32_000, LEAST),
        (CONTEXT_MAX - 3, 3, 3),
    ],
)
async def test_what_is_asked_for_is_cut_to_what_is_left(
    api: Api, path: str, tokens: int, asked: int, made: int
) -> None:
    """Agents ask for 32 000 tokens, whatever the model's context."""
    answer = await ask(api, path, tokens, asked)
    assert answer.status_code == 200, answer.text
    (request,) = api.backend.requests
    assert (len(request.tokens) // 4, request.sampling.max_tokens) == (tokens, made)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, COMPLETIONS])
async def test_what_is_not_asked_for_takes_any_room(api: Api, path: str) -> None:
    """A single token is enough."""
    assert (await ask(api, path, CONTEXT_MAX - 1, None)).status_code == 200
    assert api.backend.requests[0].sampling.max_tokens == 1
    assert (await ask(api, path, CONTEXT_MAX, None)).status_code == 400


@pytest.mark.parametrize(("path", "param"), [(CHAT, "messages"), (COMPLETIONS, "prompt"), (RESPONSES, "input")])
@pytest.mark.parametrize("tokens", [CONTEXT_MAX - LEAST + 1, CONTEXT_MAX - 1, CONTEXT_MAX, CONTEXT_MAX + 1, 3000])
async def test_too_little_room_is_refused(api: Api, path: str, param: str, tokens: int) -> None:
    """With a code and with words by which programs know that they must shorten the conversation."""
    answer = await ask(api, path, tokens, 32_000)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert error["message"].startswith(f"{param}: This model's maximum context length is {CONTEXT_MAX} tokens. ")
    assert f"at most {CONTEXT_MAX - LEAST}" in error["message"]
    assert (f"ask for at most {CONTEXT_MAX - tokens}" in error["message"]) == (tokens < CONTEXT_MAX)
    assert not api.backend.requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [CONTEXT_MAX - LEAST + 1, CONTEXT_MAX, CONTEXT_MAX + 1, 1000])
async def test_messages_are_refused_in_anthropics_words(api: Api, tokens: int, stream: bool) -> None:
    """Programs read both numbers, and compact their history: the first one is always larger."""
    answer = await api.http.post(MESSAGES, json={**body(MESSAGES, tokens, 32_000), "stream": stream})
    most = CONTEXT_MAX if tokens > CONTEXT_MAX else CONTEXT_MAX - LEAST
    said = answer.json()
    assert answer.status_code == 400
    assert said["error"]["type"] == "invalid_request_error"
    counted, told = TOO_LONG.fullmatch(said["error"]["message"]).groups()  # type: ignore[union-attr]
    assert int(told) == most < int(counted) <= tokens
    assert tokens > 2 * CONTEXT_MAX or int(counted) == tokens, "far beyond the context it is not counted to its end"
    assert not api.backend.requests


async def test_what_is_too_long_is_counted(api: Api) -> None:
    """Far beyond the context: a program asks how much too long its history is, and beyond a bound it is told."""
    long = {"model": "tiny", "messages": [{"role": "user", "content": "! ?" * 150_000}]}
    answer = await api.http.post(f"{MESSAGES}/count_tokens", json=long)
    assert answer.json() == {"input_tokens": 450_004}
    long["messages"] = [{"role": "user", "content": "! ? " * (COUNTED_MAX // 2)}]
    answer = await api.http.post(f"{MESSAGES}/count_tokens", json=long)
    (told,) = TOO_LONG.fullmatch(answer.json()["error"]["message"]).groups()[1:]  # type: ignore[union-attr]
    assert (answer.status_code, int(told)) == (400, COUNTED_MAX)


@pytest.mark.parametrize(
    ("context_max", "asked", "least"),
    [(8, 5, 1), (8192, 32_000, 512), (8192, 100, 100), (16_384, 32_000, 1024), (131_072, 32_000, 1024)],
)
def test_the_least_room(context_max: int, asked: int, least: int) -> None:
    """The smallest of 1 024 tokens, a sixteenth of the context, and what was asked for."""
    known: ModelCard = replace(card("tiny"), context_max=context_max)
    chat = ChatRequest(model="tiny", messages=[], max_tokens=asked)
    assert output_tokens_max(chat, known, context_max - least) == least
    with pytest.raises(ContextExceeded) as refused:
        output_tokens_max(chat, known, context_max - least + 1)
    error = refused.value
    assert (error.tokens, error.tokens_max, error.context_max) == (
        context_max - least + 1, context_max - least, context_max
    )  # fmt: skip


def test_an_echo_alone_needs_one_token() -> None:
    """None is asked for; the engine makes one."""
    completion = CompletionRequest(model="tiny", prompt="", max_tokens=0, echo=True)
    assert output_tokens_max(completion, card("tiny"), CONTEXT_MAX - 1) == 1


async def test_equal_requests_have_each_its_own_room(api: Api) -> None:
    """What they say beside their prompts is worked out once, and what is left depends on the prompt."""
    for tokens in (40, 60, 40, 150):
        assert (await ask(api, CHAT, tokens, 32_000)).status_code == 200
    assert [request.sampling.max_tokens for request in api.backend.requests] == [160, 140, 160, 50]


@pytest.mark.parametrize(("asked", "kept"), [(CONTEXT_MAX - 1, 1), (32_000, CONTEXT_MAX - LEAST)])
async def test_a_truncated_prompt_leaves_room(api: Api, asked: int, kept: int) -> None:
    """All that is asked for; the least room, if that is more than the whole context."""
    fields = {**body(COMPLETIONS, 3000, asked), "truncate_prompt_tokens": -1}
    answer = await api.http.post(COMPLETIONS, json=fields)
    assert answer.status_code == 200, answer.text
    (request,) = api.backend.requests
    assert (len(request.tokens) // 4, request.sampling.max_tokens) == (kept, CONTEXT_MAX - kept)
