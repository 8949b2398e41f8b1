"""Clients of agents' talks over HTTP: so many turns at once, or so many a second; answers whole or streamed.

A talk's turns come one after the other, each with the answer of the one before, over one connection. All clients stand
in one process and cost every front end the same.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import accumulate
from typing import Any, NamedTuple

from bench.agents_load import Talk, TalksLoad

OK = 200
ANSWER_S = 300.0
"""A turn that takes longer has failed."""
HEAD_BYTES_MAX = 2**22
"""Longest line or head of an answer."""
IN_FLIGHT_MAX = 64
"""Turns that are due and not answered. A front end that has more of them does not carry the rate: arrivals end."""
ARRIVALS_S = 240.0
"""Longest time in which turns arrive at a rate."""
TEXT = re.compile(rb'"content": ?"[^"]')
"""A part of a stream has it once it has text: the first part may have the role alone."""
EVENT = b"data: "
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TalkAnswer(NamedTuple):
    """One turn as its client saw it. Times count from when the turn was due."""

    turn: int
    seconds: float
    first_s: float
    """Until the first text; of an answer that comes whole, all of it."""
    status: int
    """0 if the connection broke off, or the answer took longer than ANSWER_S."""
    prompt_tokens: int
    cached_tokens: int


class TalksRun(NamedTuple):
    """All answers of a load."""

    answers: list[TalkAnswer]
    in_flight: int
    """Most turns that were due and not answered."""
    carried: bool = True
    """False: arrivals ended early at IN_FLIGHT_MAX turns in flight."""


class TalkClient:
    """One talk with its connection."""

    def __init__(self, port: int, talk: Talk, *, reconnects: bool = False) -> None:
        """With `reconnects`, each turn has a connection of its own."""
        self._port, self._talk, self._reconnects = port, talk, reconnects
        self._turn = asyncio.Lock()
        self._connection: _Connection | None = None

    async def ask(self, turn: int, due_s: float | None = None) -> TalkAnswer:
        """The next turn, once the one before is answered; without `due_s`, it is due once its connection is there."""
        async with self._turn:
            try:
                async with asyncio.timeout(ANSWER_S):
                    reader, writer = await self._connected()
                    body = self._talk.body()
                    due_s = time.perf_counter() if due_s is None else due_s
                    status, answer, first_s = await self._post(reader, writer, body)
            except (OSError, EOFError, TimeoutError):
                status, answer, first_s = 0, {}, 0.0
            end_s = time.perf_counter()
            usage = answer.get("usage") or {}
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            if status == OK:
                self._talk.on_answer(answer["text"])
            if self._reconnects or status != OK:
                self.close()
        due_s = end_s if due_s is None else due_s
        first_s = (first_s or end_s) - due_s
        return TalkAnswer(turn, end_s - due_s, first_s, status, usage.get("prompt_tokens", 0), cached)

    def close(self) -> None:
        """The connection is closed; the next turn opens another."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _connected(self) -> _Connection:
        if self._connection is None:
            self._connection = await asyncio.open_connection("127.0.0.1", self._port, limit=HEAD_BYTES_MAX)
        return self._connection

    async def _post(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
    ) -> tuple[int, dict[str, Any], float]:
        """Status, `text` and `usage` of the answer, and the time of a stream's first text."""
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        _acknowledge(writer)
        head_lines = (await reader.readuntil(b"\r\n\r\n")).lower()
        status, first_s, received = int(head_lines.split(b" ", 2)[1]), 0.0, bytearray()
        async with aclosing(_parts(reader, writer, head_lines)) as parts:
            async for part in parts:
                if not first_s and TEXT.search(part):
                    first_s = time.perf_counter()
                received += part
        if status != OK:
            return status, {}, 0.0
        if b"text/event-stream" in head_lines:
            return status, _streamed(bytes(received)), first_s
        answer = json.loads(received)
        return status, {"text": answer["choices"][0]["message"]["content"] or "", "usage": answer.get("usage")}, 0.0


async def _parts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> AsyncGenerator[bytes]:
    """The body as it comes, out of its chunks if it has any."""
    if b"content-length:" in head:
        yield await reader.readexactly(int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]))
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        _acknowledge(writer)
        yield (await reader.readexactly(size + 2))[:size]
    await reader.readexactly(2)


def _acknowledge(writer: asyncio.StreamWriter) -> None:
    """The next bytes are acknowledged at once: Dynamo's front end holds small packets back until then (Nagle), which
    would be 40 ms of the first token."""
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _streamed(body: bytes) -> dict[str, Any]:
    """Text and usage of a stream of events."""
    text, usage = "", None
    for line in body.split(b"\n"):
        if line.startswith(EVENT + b"{"):
            event = json.loads(line.removeprefix(EVENT))
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            usage = event.get("usage") or usage
    return {"text": text, "usage": usage}


def clients(port: int, model: str, load: TalksLoad, seed: str, *, reconnects: bool, streams: bool) -> list[TalkClient]:
    """One for each talk of the load."""
    talks = (Talk(model, load, f"{seed}/{number}", streams=streams) for number in range(load.talks))
    return [TalkClient(port, talk, reconnects=reconnects) for talk in talks]


async def talk_all(
    port: int, model: str, load: TalksLoad, seed: str, *, reconnects: bool = False, streams: bool = False
) -> TalksRun:
    """All talks have had all their turns, `load.at_once` at a time; a talk ends early with a failure."""
    places = asyncio.Semaphore(load.at_once)
    talks = (
        _talk(client, load.turns, places)
        for client in clients(port, model, load, seed, reconnects=reconnects, streams=streams)
    )
    answers = [answer for answers in await asyncio.gather(*talks) for answer in answers]
    return TalksRun(answers, min(load.at_once, load.talks))


async def _talk(client: TalkClient, turns: int, places: asyncio.Semaphore) -> list[TalkAnswer]:
    answers = list[TalkAnswer]()
    for turn in range(turns):
        async with places:
            answers.append(await client.ask(turn))
        if answers[-1].status != OK:
            break
    client.close()
    return answers


async def talk_at_rate(
    port: int, model: str, load: TalksLoad, seed: str, rate: float, *, streams: bool = False
) -> TalksRun:
    """Turns arrived at `rate` a second on average, the talks in turn, whether answers had come or not. A turn whose
    talk still waits for an answer waits, too, and counts from its arrival."""
    talks = clients(port, model, load, seed, reconnects=False, streams=streams)
    due, most, carried = set[asyncio.Task[TalkAnswer]](), 0, True
    asked, start_s = list[asyncio.Task[TalkAnswer]](), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, after_s in enumerate(arrivals(load, rate, seed)):
            await asyncio.sleep(start_s + after_s - time.perf_counter())
            if len(due) == IN_FLIGHT_MAX:
                carried = False
                break
            turn, talk = divmod(number, load.talks)
            task = group.create_task(talks[talk].ask(turn, start_s + after_s))
            due.add(task)
            task.add_done_callback(due.discard)
            asked.append(task)
            most = max(most, len(due))
    for client in talks:
        client.close()
    return TalksRun([task.result() for task in asked], most, carried)


def arrivals(load: TalksLoad, rate: float, seed: str) -> list[float]:
    """Seconds from the start, of a Poisson process: those of all turns that come before ARRIVALS_S."""
    dice = random.Random(f"{seed}/arrivals")
    times = accumulate(dice.expovariate(rate) for _ in range(load.requests))
    return [at_s for at_s in times if at_s < ARRIVALS_S]
