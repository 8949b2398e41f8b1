"""What a client sees when there is no place for its request: the status, OpenAI's shape, and when to try again."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from core.models import DeadlineExceeded, Overloaded, RateLimited
from tests.api.conftest import Api

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


async def test_the_client_library_knows_it(api: Api) -> None:
    """429 is its rate limit, which it waits for by itself if it is let."""
    api.backend.script = [RateLimited("too many of them yours", 7)]
    with pytest.raises(openai.RateLimitError) as limited:
        await api.client.chat.completions.create(**CHAT)
    assert limited.value.code == "rate_limit_exceeded"
