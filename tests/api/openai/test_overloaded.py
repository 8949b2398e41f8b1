"""What a client sees when there is no place for its request: the status, OpenAI's shape, and when to try again."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from core.models import DeadlineExceeded, NoWorkers, Overloaded, RateLimited
from tests.api.conftest import Api
from tests.api.scripted import spoken

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "retry_after"),
    [
        (RateLimited("too many of them yours", 7), 429, "rate_limit_error", "rate_limit_exceeded", "7"),
        (Overloaded("all are busy", 3), 503, "server_error", "overloaded", "3"),
        (DeadlineExceeded("no place within 1 s"), 504, "server_error", "deadline_exceeded", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_refusal_has_its_own_answer(
    api: Api, error: Exception, status: int, kind: str, code: str, retry_after: str | None, *, stream: bool
) -> None:
    """A status of its own even where a stream was asked for: nothing of it has left yet."""
    api.backend.script = [error]
    answer = await api.http.post("/v1/chat/completions", json={**CHAT, "stream": stream})
    assert (answer.status_code, answer.headers.get("retry-after")) == (status, retry_after)
    assert answer.json() == {"error": {"message": str(error), "type": kind, "param": None, "code": code}}


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry_after", "outcome"),
    [
        (RateLimited("too many of them yours", 7), 429, "rate_limit_error", "7", "rejected"),
        (Overloaded("all are busy", 3), 529, "overloaded_error", "3", "unavailable"),
        (NoWorkers("none is there", 3), 529, "overloaded_error", "3", "unavailable"),
        (DeadlineExceeded("no place within 1 s"), 504, "timeout_error", None, "deadline"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_messages_are_refused_with_anthropics_status(
    api: Api, error: Exception, status: int, kind: str, retry_after: str | None, outcome: str, *, stream: bool
) -> None:
    """529 is what its programs take for overload."""
    api.backend.script = [error]
    answer = await api.http.post("/v1/messages", json={**CHAT, "stream": stream})
    assert (answer.status_code, answer.headers.get("retry-after")) == (status, retry_after)
    assert answer.json()["error"] == {"type": kind, "message": str(error)}
    await api.counted("tiny", outcome)


async def test_a_stream_of_messages_ends_with_an_event(api: Api) -> None:
    """Of the same type, when the workers are gone in its midst."""
    api.backend.script = [*spoken("so")[:-1], NoWorkers("none is there")]
    answer = await api.http.post("/v1/messages", json={**CHAT, "stream": True})
    name, _, data = answer.text.strip().split("\n\n")[-1].partition("\n")
    assert (answer.status_code, name) == (200, "event: error")
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "overloaded_error"
    await api.counted("tiny", "unavailable")


async def test_the_client_library_knows_it(api: Api) -> None:
    """429 is its rate limit, which it waits for by itself if it is let."""
    api.backend.script = [RateLimited("too many of them yours", 7)]
    with pytest.raises(openai.RateLimitError) as limited:
        await api.client.chat.completions.create(**CHAT)
    assert limited.value.code == "rate_limit_exceeded"
