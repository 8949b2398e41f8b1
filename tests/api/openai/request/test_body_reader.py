"""Bodies that come in several pieces are read as those that come in one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from api.server.json_limits import CONTAINERS_MAX
from tests.api.conftest import Api

PATH = "/v1/chat/completions"


async def pieces(body: bytes, count: int) -> AsyncIterator[bytes]:
    """The body in so many pieces, each of which is read by itself."""
    size = -(-len(body) // count)
    for start in range(0, len(body), size):
        yield body[start : start + size]
        await asyncio.sleep(0.01)


async def status_and_message(api: Api, body: bytes, count: int) -> tuple[int, str]:
    """The status of the answer, and its error's text."""
    answer = await api.http.post(PATH, content=pieces(body, count))
    return answer.status_code, answer.json().get("error", {}).get("message", "")


@pytest.mark.parametrize("padding", [0, 3 * CONTAINERS_MAX])
async def test_a_prompt_in_pieces_is_the_same_prompt(api: Api, padding: int) -> None:
    """Also where the body is so long that its brackets are counted, and that a thread tokenizes it."""
    asked = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "a [b] c"}]}
    body = json.dumps({**asked, "unknown": "x" * padding}).encode()
    for count in (1, 3):
        assert await status_and_message(api, body, count) == (200, "")
    first, second = api.backend.requests
    assert first.tokens == second.tokens


async def test_blanks_in_pieces_are_an_empty_body(api: Api) -> None:
    """As blanks in one piece are."""
    for count in (1, 3):
        status, message = await status_and_message(api, b" \r\n\t  ", count)
        assert (status, message) == (400, "the request body is empty: send a JSON object")


async def test_too_many_lists_in_pieces_are_refused(api: Api) -> None:
    """Before anything is decoded."""
    body = b'{"messages":[' + b"[]," * CONTAINERS_MAX + b"[]]}"
    status, message = await status_and_message(api, body, 3)
    assert status == 413
    assert message.startswith("the request holds more than")
