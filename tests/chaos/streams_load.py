"""Clients that read streams token by token: what each was told, and how long it waited in between."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from tests.chaos.disagg_engines import FIRST_TOKEN, LAST_TOKEN, Judge

PROMPTS = 40
"""So many different prompts: the right text of each is made once."""
PROMPT_TOKENS = (20, 64, 150, 400)
HANG_UP_EVENTS = 6
"""A client that hangs up has read up to so many events; some read none, and some do not wait for an answer at all."""
HANG_UP_WAITS_S = (0.0, 0.01, 0.05, 0.3)
HANG_UP_CLIENTS = 50
"""So many hang up at once."""
STATEFUL = ({"presence_penalty": 0.5}, {"seed": 7, "temperature": 0.7}, {"frequency_penalty": 0.3, "temperature": 1.0})
"""Answers that carry more than their tokens: a simulated engine says to these what it says to greedy ones."""
LINE_BYTES_MAX = 1 << 20


class Told(NamedTuple):
    """One stream, to its end."""

    text: str
    error: str
    """The API's own sentence, if it refused or broke off."""
    broken: str
    """What is neither a whole answer nor a clear error."""
    first_s: float
    """Until the first event."""
    pause_s: float
    """The longest time between two events."""


@dataclass
class StreamTally:
    """What became of all streams."""

    whole: int = 0
    ties: int = 0
    wrong: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    """The longest one of each plain stream …"""
    pauses_again_s: list[float] = field(default_factory=list)
    """… and of each that is made again from its start when it moves: that takes as long as it took."""
    firsts_s: list[float] = field(default_factory=list)


class StreamLoad:
    """Streams against one API. `stateful` of each hundred carry more than their tokens."""

    def __init__(self, url: str, judge: Judge, max_tokens: int, seed: int, *, stateful: int) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self.tally = StreamTally()
        self._where = host, int(port)
        self._judge = judge
        self._max_tokens = max_tokens
        self._stateful = stateful
        self._random = Random(f"{seed}/streams load")
        self._prompts = [self._prompt() for _ in range(PROMPTS)]
        self._right: dict[int, str] = {}
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()

    @property
    def under_way(self) -> int:
        """Clients that are at it."""
        return sum(not task.done() for task in self._tasks)

    def start(self, clients: int) -> None:
        """So many streams are in flight from now on, one after the other each, until `finish`."""
        self._ending.clear()
        self._tasks = [asyncio.create_task(self._client()) for _ in range(clients)]

    async def finish(self) -> None:
        """All streams that were begun are over."""
        self._ending.set()
        await asyncio.gather(*self._tasks)

    async def once(self, clients: int) -> None:
        """So many streams at a time, each once."""
        await asyncio.gather(*(self._ask() for _ in range(clients)))

    async def hang_ups(self, count: int) -> None:
        """So many requests whose clients went away, at any moment."""
        for first in range(0, count, HANG_UP_CLIENTS):
            await asyncio.gather(*(self._hang_up() for _ in range(min(HANG_UP_CLIENTS, count - first))))

    def _prompt(self) -> list[int]:
        length = self._random.choice(PROMPT_TOKENS)
        return [self._random.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(length)]

    def _body(self, number: int, **more: Any) -> dict[str, Any]:
        body = {"model": "tiny", "prompt": self._prompts[number], "max_tokens": self._max_tokens, "temperature": 0}
        return {**body, "ignore_eos": True, "stream": True, **more}

    async def _client(self) -> None:
        while not self._ending.is_set():
            await self._ask()

    async def _ask(self) -> None:
        number, request = self._random.randrange(PROMPTS), f"stream-{next(self._numbers)}"
        more = self._random.choice(STATEFUL) if self._random.randrange(100) < self._stateful else {}
        told = await self._told(self._body(number, **more), request)
        (self.tally.pauses_again_s if more else self.tally.pauses_s).append(told.pause_s)
        await self._judged(number, told, f"{request} {more or ''}")

    async def _judged(self, number: int, told: Told, about: str) -> None:
        tally, whole = self.tally, not (told.error or told.broken)
        tally.firsts_s.append(told.first_s)
        if not whole or self._right.get(number) != told.text:
            verdict = await self._judge.judge(self._prompts[number], self._max_tokens, told.text, whole=whole)
            if verdict.right and whole and not verdict.tie:
                self._right[number] = told.text
            tally.ties += verdict.tie
            if not verdict.right:
                tally.wrong.append(f"{about}: {told.text!r}, not {verdict.expected!r}")
        if told.broken:
            tally.broken.append(f"{about}: {told.broken}")
        elif told.error:
            tally.errors.append(told.error)
        else:
            tally.whole += 1

    async def _told(self, body: dict[str, Any], request: str) -> Told:
        reading = _Reading()
        try:
            reader, writer = await asyncio.open_connection(*self._where, limit=LINE_BYTES_MAX)
        except OSError as error:
            return Told("", "", f"no connection: {error!r}", 0.0, 0.0)
        try:
            writer.write(_request(body, request))
            await reading.all_of(reader)
        except (OSError, EOFError, ValueError) as error:
            reading.broken = f"the connection broke: {error!r}"
        finally:
            writer.transport.abort()
        return reading.told()

    async def _hang_up(self) -> None:
        number, request = self._random.randrange(PROMPTS), f"gone-{next(self._numbers)}"
        events, wait_s = self._random.randrange(-1, HANG_UP_EVENTS), self._random.choice(HANG_UP_WAITS_S)
        reader, writer = await asyncio.open_connection(*self._where, limit=LINE_BYTES_MAX)
        try:
            writer.write(_request(self._body(number), request))
            await writer.drain()
            for _ in range(events):
                await reader.readuntil(b"\n\n")
            if events < 0:
                await asyncio.sleep(wait_s)
        except EOFError:
            pass  # it was short, or refused
        finally:
            writer.transport.abort()


class _Reading:
    """One answer as it comes."""

    def __init__(self) -> None:
        self._time_s = asyncio.get_running_loop().time
        self._began_s = self._last_s = self._time_s()
        self._first_s = self._pause_s = 0.0
        self._text = ""
        self._error = ""
        self._finished = self._done = False
        self.broken = ""

    async def all_of(self, reader: asyncio.StreamReader) -> None:
        """To its end. EOFError or ValueError if it has no proper one."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        if not head.startswith("http/1.1 200"):
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            self._error = str(json.loads(await reader.readexactly(length))["error"]["message"])
            return
        while size := int(await reader.readline() or b"no size", 16):
            events = await reader.readexactly(size + 2)
            now_s = self._time_s()
            if self._first_s:
                self._pause_s = max(self._pause_s, now_s - self._last_s)
            self._first_s, self._last_s = self._first_s or now_s - self._began_s, now_s
            for event in events.split(b"\n\n"):
                self._take(event.strip().removeprefix(b"data: "))

    def _take(self, event: bytes) -> None:
        if event == b"[DONE]":
            self._done = True
        elif event:
            found = json.loads(event)
            if "error" in found:
                self._error = str(found["error"]["message"])
            for choice in found.get("choices", ()):
                self._text += choice["text"]
                self._finished = self._finished or choice["finish_reason"] is not None

    def told(self) -> Told:
        whole = self._finished and self._done
        broken = self.broken or ("" if whole or self._error else "the stream has no proper end")
        return Told(self._text, self._error, broken, self._first_s, self._pause_s)


def _request(body: dict[str, Any], request: str) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"x-request-id: {request}\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
