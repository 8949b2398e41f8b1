"""Talks of coding agents over HTTP: a common system prompt, a task, and tools' output turn after turn.

Each turn sends the whole talk again, as these programs do, with the answer of the turn before and a new tool's output.
Outputs are lines of Python's own library in random order, numbered as a pager numbers them. A talk's text depends on
its seed alone. The client serializes each message once, so that it costs little beside what is measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import sysconfig
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from actors.engines.tiny_model import TEXT_FILE_BYTES_MAX

SOURCE_FILES = 40
"""Files of Python's library that lines are drawn from."""
LINE_TOKENS = 14
"""Of a numbered line, about, by the tiny model's tokenizer."""
ANSWER_TOKENS = 16
SYSTEM_TOKENS = 8000
"""Instructions and descriptions of tools, common to all talks."""
OK = 200
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TalksLoad(NamedTuple):
    """Numbers of talks and turns, and lengths in tokens."""

    talks: int
    turns: int
    at_once: int
    """Requests in progress; a talk whose next turn is ready waits for its place."""
    first_tokens: int
    """A talk's first turn beside the system prompt: its task, with the files that come with it."""
    news_tokens: int
    """New tokens of each later turn."""

    @property
    def requests(self) -> int:
        """Turns of all talks."""
        return self.talks * self.turns


class TalkAnswer(NamedTuple):
    """One turn as its client saw it."""

    turn: int
    seconds: float
    status: int
    prompt_tokens: int
    cached_tokens: int


class Talk:
    """The messages of one talk, serialized as they were sent."""

    def __init__(self, model: str, load: TalksLoad, seed: str) -> None:
        self._dice, self._load = random.Random(seed), load
        self._head = b'{"model":%b,"max_tokens":%d,"temperature":0,"messages":[' % (
            json.dumps(model).encode(),
            ANSWER_TOKENS,
        )
        self._messages = [message("system", lines(random.Random("system"), SYSTEM_TOKENS))]

    def body(self) -> bytes:
        """The request of the next turn, with its news."""
        if len(self._messages) == 1:
            self._messages.append(message("user", lines(self._dice, self._load.first_tokens)))
        else:
            self._messages.append(message("tool", lines(self._dice, self._load.news_tokens), tool_call_id="call"))
        return self._head + b",".join(self._messages) + b"]}"

    def on_answer(self, text: str) -> None:
        """The answer is part of later turns."""
        self._messages.append(message("assistant", text))


def message(role: str, content: str, **more: str) -> bytes:
    """A message as JSON."""
    return json.dumps({"role": role, "content": content, **more}).encode()


def lines(dice: random.Random, tokens: int) -> str:
    """Numbered lines of some `tokens` tokens."""
    return "".join(
        f"{number:6d}\t{line}" for number, line in enumerate(dice.choices(_source_lines(), k=tokens // LINE_TOKENS))
    )


@cache
def _source_lines() -> list[str]:
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:SOURCE_FILES]
    texts = (path.read_text(encoding="utf-8", errors="replace")[:TEXT_FILE_BYTES_MAX] for path in paths)
    return [line for text in texts for line in text.splitlines(keepends=True) if line.strip()]


def bodies(model: str, load: TalksLoad, seed: str, answer: str) -> Iterator[list[bytes]]:
    """The requests of each talk in order, all answered with the same text."""
    for number in range(load.talks):
        talk, found = Talk(model, load, f"{seed}/{number}"), []
        for _ in range(load.turns):
            found.append(talk.body())
            talk.on_answer(answer)
        yield found


async def talk_all(port: int, model: str, load: TalksLoad, seed: str, *, reconnects: bool = False) -> list[TalkAnswer]:
    """All talks have had all their turns, each over one connection, or over a new one for each turn; a talk ends early
    with a failure."""
    places = asyncio.Semaphore(load.at_once)
    talks = (
        _talk(port, Talk(model, load, f"{seed}/{number}"), load.turns, places, reconnects=reconnects)
        for number in range(load.talks)
    )
    return [answer for answers in await asyncio.gather(*talks) for answer in answers]


async def _talk(port: int, talk: Talk, turns: int, places: asyncio.Semaphore, *, reconnects: bool) -> list[TalkAnswer]:
    answers = list[TalkAnswer]()
    connection: _Connection | None = None
    try:
        for turn in range(turns):
            async with places:
                if connection is None:
                    connection = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
                body, started_s = talk.body(), time.perf_counter()
                status, answer = await _post(*connection, port, body)
                taken_s = time.perf_counter() - started_s
            usage = answer.get("usage", {})
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            answers.append(TalkAnswer(turn, taken_s, status, usage.get("prompt_tokens", 0), cached))
            if status != OK:
                break
            talk.on_answer(answer["choices"][0]["message"]["content"] or "")
            if reconnects:
                connection[1].close()
                connection = None
    finally:
        if connection is not None:
            connection[1].close()
    return answers


async def _post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, body: bytes) -> tuple[int, dict]:  # type: ignore[type-arg]
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answered = await reader.readuntil(b"\r\n\r\n")
    status = int(answered.split(b" ", 2)[1])
    length = int(answered.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
    return status, json.loads(await reader.readexactly(length))
