"""Talks of coding agents: a common system prompt, a task, and tools' output turn after turn.

Each turn sends the whole talk again, as these programs do, with the answer of the turn before and a new tool's output.
Outputs are lines of Python's own library in random order, numbered as a pager numbers them. A talk's text depends on
its seed alone. The client serializes each message once, so that it costs little beside what is measured.
"""

from __future__ import annotations

import json
import random
import sysconfig
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
STREAMED = b'"stream":true,"stream_options":{"include_usage":true},'


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


class Talk:
    """The messages of one talk, serialized as they were sent."""

    def __init__(self, model: str, load: TalksLoad, seed: str, *, streams: bool = False) -> None:
        self._dice, self._load = random.Random(seed), load
        self._head = b'{"model":%b,"max_tokens":%d,"temperature":0,%b"messages":[' % (
            json.dumps(model).encode(),
            ANSWER_TOKENS,
            STREAMED if streams else b"",
        )
        self._messages = [
            message("system", lines(random.Random("system"), SYSTEM_TOKENS)),
            message("user", lines(self._dice, load.first_tokens)),
        ]

    def body(self) -> bytes:
        """The request of the next turn."""
        return self._head + b",".join(self._messages) + b"]}"

    def on_answer(self, text: str) -> None:
        """The answer is part of later turns, and the next turn has its news."""
        news = message("tool", lines(self._dice, self._load.news_tokens), tool_call_id="call")
        self._messages += [message("assistant", text), news]


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
