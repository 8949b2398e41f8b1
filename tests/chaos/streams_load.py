"""Clients that read streams token by token: what each was told, and how long it waited in between."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from tests.chaos.disagg_engines import FIRST_TOKEN, LAST_TOKEN, Judge, Verdict
from tests.chaos.streams_reading import Reading, Told, request_of

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


class Ended(NamedTuple):
    """One stream that is over, and whose it was."""

    request: str
    number: int
    """Of its prompt."""
    more: dict[str, Any]
    """What it asked for beside a greedy answer."""
    told: Told


@dataclass
class StreamTally:
    """What became of all streams."""

    whole: int = 0
    ties: set[str] = field(default_factory=set)
    """Requests whose text differs from a token on that had a rival as good."""
    wrong: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    """The longest one of each plain stream …"""
    pauses_again_s: list[float] = field(default_factory=list)
    """… and of each that is made again from its start when it moves: that takes as long as it took."""
    firsts_s: list[float] = field(default_factory=list)
    pause_of: dict[str, float] = field(default_factory=dict)
    """The longest one of each plain stream, by its request."""
    last_s: float = 0.0
    """When the last stream ended, by the clock of `time.monotonic`."""


class StreamLoad:
    """Streams against one API. `stateful` of each hundred carry more than their tokens.

    Texts are judged when all streams of a phase are over: a judge takes as long as an engine, and streams that wait
    for it are not in flight.
    """

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
        self._ended: list[Ended] = []
        """Not judged yet."""
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
        """All streams that were begun are over, and judged."""
        self._ending.set()
        await asyncio.gather(*self._tasks)
        await self._judge_all()

    async def once(self, clients: int) -> None:
        """So many streams at a time, each once; then they are judged."""
        await asyncio.gather(*(self._ask() for _ in range(clients)))
        await self._judge_all()

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
        told, tally = await self._told(self._body(number, **more), request), self.tally
        tally.last_s = time.monotonic()
        tally.firsts_s.append(told.first_s)
        if more:
            tally.pauses_again_s.append(told.pause_s)
        else:
            tally.pauses_s.append(told.pause_s)
            tally.pause_of[request] = told.pause_s
        self._ended.append(Ended(request, number, more, told))

    async def _judge_all(self) -> None:
        """Whole texts first: what is right of them is right of those that broke off."""
        ended, self._ended = sorted(self._ended, key=lambda one: not one.told.whole), []
        verdicts: dict[tuple[int, bool, str], Verdict] = {}
        for one in ended:
            told, tally, about = one.told, self.tally, f"{one.request} {one.more or ''}"
            key = one.number, told.whole, told.text
            verdict = verdicts[key] = verdicts.get(key) or await self._verdict(*key)
            if verdict.tie:
                tally.ties.add(one.request)
            if not verdict.right:
                tally.wrong.append(f"{about}: {told.text!r}, not {verdict.expected!r}")
            if told.broken:
                tally.broken.append(f"{about}: {told.broken}")
            elif told.error:
                tally.errors.append(told.error)
            else:
                tally.whole += 1

    async def _verdict(self, number: int, whole: bool, text: str) -> Verdict:
        right = self._right.get(number)
        if right is not None and (text == right or (not whole and right.startswith(text))):
            return Verdict(right=True, expected=right)
        verdict = await self._judge.judge(self._prompts[number], self._max_tokens, text, whole=whole)
        if verdict.right and whole and not verdict.tie:
            self._right[number] = text
        return verdict

    async def _told(self, body: dict[str, Any], request: str) -> Told:
        reading = Reading()
        try:
            reader, writer = await asyncio.open_connection(*self._where, limit=LINE_BYTES_MAX)
        except OSError as error:
            return Told("", "", f"no connection: {error!r}", 0.0, 0.0)
        try:
            writer.write(request_of(body, request))
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
            writer.write(request_of(self._body(number), request))
            await writer.drain()
            for _ in range(events):
                await reader.readuntil(b"\n\n")
            if events < 0:
                await asyncio.sleep(wait_s)
        except EOFError:
            pass  # it was short, or refused
        finally:
            writer.transport.abort()
