"""What passes between the page and the process behind it, when that process breaks off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import Message

from api.debug.page_proxy import FOLDER, SOCKET, PageProxy

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
SCOPE = {
    "type": "http", "method": "GET", "path": "/debug/api/status", "raw_path": b"/debug/api/status",
    "query_string": b"", "headers": [],
}  # fmt: skip
Broken = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def behind(data: Path, answer: Broken) -> AsyncIterator[None]:
    """A process that answers every question so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answer(writer)

    (data / FOLDER).mkdir()
    async with await asyncio.start_unix_server(serve, str(data / FOLDER / SOCKET)):
        yield


async def asked(data: Path) -> list[Message]:
    """What the server of the front end is given to send."""
    sent = list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    await PageProxy((), data)(dict(SCOPE), receive, send)
    return sent


async def test_half_a_question_is_not_passed_on(tmp_path: Path) -> None:
    """The client hung up in the middle of the body: the process is not asked, and nothing is answered."""
    asked_behind = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        asked_behind.set()
        writer.close()

    arriving: list[Message] = [
        {"type": "http.request", "body": b'{"a":', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent = list[Message]()

    async def receive() -> Message:
        return arriving.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    async with behind(tmp_path, answer):
        await PageProxy((), tmp_path)(SCOPE | {"method": "POST"}, receive, send)
    assert not sent
    assert not asked_behind.is_set()


async def ended(writer: asyncio.StreamWriter) -> None:
    """It ends."""
    writer.close()


async def reset(writer: asyncio.StreamWriter) -> None:
    """It is killed."""
    writer.transport.abort()


@pytest.mark.parametrize("ends", [ended, reset])
async def test_an_answer_that_breaks_off_is_not_begun_twice(tmp_path: Path, ends: Broken) -> None:
    """What had come is passed on, and no second head: the server cuts the connection, as the answer is not over."""

    async def begin(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b'{"a":')
        await writer.drain()
        await asyncio.sleep(0.05)
        await ends(writer)

    async with behind(tmp_path, begin):
        sent = await asked(tmp_path)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert (sent[0]["status"], sent[1]["body"], sent[1]["more_body"]) == (200, b'{"a":', True)


@pytest.mark.parametrize("ends", [ended, reset])
async def test_an_answer_that_did_not_begin_is_refused(tmp_path: Path, ends: Broken) -> None:
    """503 and a sentence."""
    async with behind(tmp_path, ends):
        sent = await asked(tmp_path)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 503
    assert "ended before it answered" in json.loads(sent[1]["body"])["error"]
