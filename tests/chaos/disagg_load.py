"""Clients that ask a disaggregated deployment all the time, and compare every text with the aggregated one."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from tests.chaos.client import Answer, ConnectionBroke, HttpConnection
from tests.chaos.disagg_engines import FIRST_TOKEN, LAST_TOKEN, Judge

LENGTHS = (10, 30, 64, 100, 200, 400, 700, 1000, 1500, 3000)
STARTS = 6
"""So many beginnings are shared by many prompts."""
START_TOKENS = (0, 0, 32, 200, 600)
OUTPUT_TOKENS = (1, 4, 8, 16, 32)
STREAMED_SHARE = 0.5
AFTER_REFUSAL_S = 0.1
SHOWN_MAX = 10


class Said(NamedTuple):
    """An answer, taken apart."""

    text: str
    error: str
    """The API's own sentence, if it refused or broke off."""
    broken: str = ""
    """What is neither a whole answer nor a clear error."""


@dataclass
class Tally:
    """What became of the requests that ended while one fault was tried."""

    answered: int = 0
    refused: int = 0
    ties: int = 0
    wrong: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    refusals: set[str] = field(default_factory=set)
    slowest_s: float = 0.0


class DisaggLoad:
    """`clients` at once, each with a pause of `pause_s` on average, from `start` to `stop`; any number of times."""

    def __init__(self, url: str, seed: int, judge: Judge, clients: int, pause_s: float) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self.label = ""
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self._where = host, int(port)
        self._seed = seed
        self._judge = judge
        self._clients = clients
        self._pause_s = pause_s
        self._random = Random(f"{seed}/disagg")
        self._starts = [self._tokens(max(START_TOKENS)) for _ in range(STARTS)]
        self._numbers = itertools.count()
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def answered(self) -> int:
        """All answers so far."""
        return sum(tally.answered for tally in self.tallies.values())

    def start(self) -> None:
        """Clients ask from now on."""
        self._stopping.clear()
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self._clients)]

    async def stop(self) -> None:
        """No request is under way."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(count)]

    def _prompt(self) -> list[int]:
        length = self._random.choice(LENGTHS)
        start = self._random.choice(self._starts)[: min(self._random.choice(START_TOKENS), length - 1)]
        return start + self._tokens(length - len(start))

    async def _client(self) -> None:
        connection = HttpConnection(*self._where)
        try:
            while not self._stopping.is_set():
                await asyncio.sleep(self._random.expovariate(1 / self._pause_s))
                await self._ask(connection)
        finally:
            await connection.close()

    async def _ask(self, connection: HttpConnection) -> None:
        prompt, max_tokens = self._prompt(), self._random.choice(OUTPUT_TOKENS)
        streamed = self._random.random() < STREAMED_SHARE
        request = f"disagg-{self._seed}-{next(self._numbers)}"
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        sent_s = asyncio.get_running_loop().time()
        said = await _said(connection, request, {**body, "stream": streamed})
        took_s = asyncio.get_running_loop().time() - sent_s
        verdict = await self._judge.judge(prompt, max_tokens, said.text, whole=not (said.error or said.broken))
        tally = self.tallies[self.label]
        tally.slowest_s = max(tally.slowest_s, took_s)
        tally.ties += verdict.tie
        about = f"{request}, {len(prompt)} tokens, {'streamed, ' if streamed else ''}{took_s:.1f} s"
        if not verdict.right:
            tally.wrong.append(f"{about}: {said.text!r}, not {verdict.expected!r}")
        if said.broken:
            tally.broken.append(f"{about}: {said.broken}")
        elif said.error:
            tally.refused += 1
            tally.refusals.add(said.error)
            await asyncio.sleep(AFTER_REFUSAL_S)
        else:
            tally.answered += 1


async def _said(connection: HttpConnection, request: str, body: dict[str, Any]) -> Said:
    """What came of it, in every case."""
    try:
        answer = await connection.post("/v1/completions", body, request)
    except ConnectionBroke as error:
        return Said("", "", f"the connection broke: {error}")
    except TimeoutError:
        return Said("", "", "no answer in time")
    try:
        return _streamed(answer.body) if answer.status == 200 and body["stream"] else _whole(answer)
    except (ValueError, LookupError, TypeError) as error:
        return Said("", "", f"{error!r}: {answer.body[-300:]!r}")


def _whole(answer: Answer) -> Said:
    found = json.loads(answer.body)
    if answer.status != 200:
        return Said("", str(found["error"]["message"]))
    return Said(found["choices"][0]["text"], "")


def _streamed(content: bytes) -> Said:
    """The text so far and an error, or the whole text with the stream's proper end."""
    text, finished = "", False
    events = [event.removeprefix(b"data: ") for event in content.split(b"\n\n") if event.startswith(b"data: ")]
    for event in events:
        if event == b"[DONE]":
            break
        found = json.loads(event)
        if "error" in found:
            return Said(text, str(found["error"]["message"]))
        for choice in found["choices"]:
            text += choice["text"]
            finished = finished or choice["finish_reason"] is not None
    if not finished or events[-1] != b"[DONE]":
        return Said(text, "", "the stream has no proper end")
    return Said(text, "")
