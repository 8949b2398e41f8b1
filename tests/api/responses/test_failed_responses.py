"""Responses that fail: a stream says so in its events, a whole answer by its status."""

from __future__ import annotations

from typing import Any, cast

import openai
import pytest

from api.server.errors import ApiError
from core.generation import Output
from core.models import GenerationFailed, Overloaded, RateLimited
from tests.api.conftest import Api
from tests.api.responses.test_responses import stream_events
from tests.api.scripted import CONTEXT_MAX, ids


async def test_a_stream_that_breaks_ends_with_a_failure(api: Api) -> None:
    """An error before the first token has a status of its own."""
    api.backend.script = [Output(tokens=ids("so")), GenerationFailed("the worker is gone")]
    last = (await stream_events(api))[-1]
    assert last.type == "response.failed"
    assert last.response.error
    assert "gone" in last.response.error.message
    assert last.response.error.code == "server_error"
    await api.counted("tiny", "error")
    api.backend.script = [GenerationFailed("the worker is gone")]
    with pytest.raises(openai.InternalServerError):
        await stream_events(api)


async def test_a_stream_whose_prompt_does_not_fit_fails_in_the_stream(api: Api) -> None:
    """Codex shortens its conversation only then; a whole answer has a status of its own."""
    created, failed = cast(list[Any], await stream_events(api, input="word " * 1000))
    assert (created.type, created.sequence_number) == ("response.created", 0)
    assert (created.response.status, created.response.error) == ("in_progress", None)
    assert (failed.type, failed.sequence_number) == ("response.failed", 1)
    assert failed.response.id == created.response.id
    assert failed.response.status == "failed"
    assert failed.response.error
    assert failed.response.error.code == "context_length_exceeded"
    assert f"maximum context length is {CONTEXT_MAX} tokens" in failed.response.error.message
    await api.counted("", "rejected")
    with pytest.raises(openai.BadRequestError) as caught:
        await api.client.responses.create(model="tiny", input="word " * 1000)
    assert caught.value.code == "context_length_exceeded"
    assert not api.backend.requests


async def test_another_refusal_of_a_stream_has_a_status(api: Api) -> None:
    """A client must not take it for a response."""
    with pytest.raises(openai.BadRequestError):
        await stream_events(api, temperature=3)
    with pytest.raises(openai.NotFoundError):
        await api.client.responses.create(model="none", input="hi", stream=True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(400, "long", code="context_length_exceeded"), "context_length_exceeded"),
        (RateLimited("try again in 1 s"), "rate_limit_exceeded"),
        (Overloaded("full"), "server_error"),
    ],
)
async def test_a_failure_has_a_code_that_clients_know(api: Api, error: Exception, code: str) -> None:
    """In the middle of a stream."""
    api.backend.script = [Output(tokens=ids("so")), error]
    last = (await stream_events(api))[-1]
    assert last.type == "response.failed"
    assert last.response.error
    assert last.response.error.code == code
