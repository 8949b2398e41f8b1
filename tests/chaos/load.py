"""Load: conversations that share prefixes, from a bounded number of clients, and what became of each request."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from tests.chaos.client import Answer, ConnectionBroke, HttpConnection

OK, HUNG_UP = "ok", "hung up"
BROKE, REFUSED, CUT_SHORT, TIMED_OUT = "connection broke", "refused", "cut short", "timed out"
FAILURES = (BROKE, REFUSED, CUT_SHORT, TIMED_OUT)
PREFIXES = 6
"""So many system prompts are shared by all conversations."""
TURNS_MAX = 5
RETRIES_MAX = 2
"""The front end that a retry finds may be the next to be killed."""
RETRY_AFTER_S = 0.2
"""For a moment a process that is being killed still takes connections, and breaks them; clients mostly wait longer."""
HANG_UP_SHARE = 0.03
STREAMED_SHARE = 0.6
OUTPUT_TOKENS = (4, 8, 16, 32, 64, 150, 400)
"""At 5 ms per token, the longest answers are under way for two seconds."""
WORDS = ("river", "bridge", "stone", "arch", "span", "steel", "cable", "tower", "deck", "pier", "wind", "weld", "north")


class Attempt(NamedTuple):
    """One request as one front end got it."""

    request: str
    outcome: str
    detail: str
    sent_s: float
    took_s: float


class Load:
    """`clients` at once, `per_s` requests per second together, until stopped."""

    def __init__(
        self,
        host: str,
        port: int,
        seed: int,
        clients: int = 32,
        per_s: float = 20.0,
        output_tokens: Sequence[int] = OUTPUT_TOKENS,
    ) -> None:
        self.attempts: list[Attempt] = []
        self.unmended: list[Attempt] = []
        """Requests that failed in the end: without a broken connection, or again at each retry."""
        self.broke_again = 0
        """Retries whose connection broke too."""
        self._host, self._port = host, port
        self._pause_s = clients / per_s
        self._prefixes = [" ".join(_words(Random(f"{seed}/{n}"), 60)) for n in range(PREFIXES)]
        self._output_tokens = output_tokens
        self._stopping = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._client(f"c{seed}-{n}", Random(f"{seed}/client/{n}"))) for n in range(clients)
        ]

    @property
    def counts(self) -> Counter[str]:
        """How many attempts ended how."""
        return Counter(attempt.outcome for attempt in self.attempts)

    def answered(self) -> list[str]:
        """Ids of the requests whose answer came whole."""
        return [attempt.request for attempt in self.attempts if attempt.outcome == OK]

    async def stop(self) -> None:
        """No request is under way any more."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def _client(self, name: str, random: Random) -> None:
        conversation = 0
        while not self._stopping.is_set():
            conversation += 1
            connection = HttpConnection(self._host, self._port)
            try:
                for turn, body in enumerate(self._conversation(random)):
                    await self._rest(random.expovariate(1 / self._pause_s))
                    if self._stopping.is_set():
                        break
                    await self._ask(connection, f"{name}-{conversation}-{turn}", body, random.random() < HANG_UP_SHARE)
            finally:
                await connection.close()

    async def _rest(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _conversation(self, random: Random) -> Iterator[dict[str, Any]]:
        """Each turn is the one before with more behind it."""
        text = random.choice(self._prefixes)
        for _ in range(random.randint(1, TURNS_MAX)):
            text += " " + " ".join(_words(random, random.randint(10, 60)))
            body = {"model": "tiny", "prompt": text, "max_tokens": random.choice(self._output_tokens), "temperature": 0}
            if random.random() < STREAMED_SHARE:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            yield body

    async def _ask(self, connection: HttpConnection, request: str, body: dict[str, Any], hang_up: bool) -> None:
        """A client of good manners: it tries again where its connection broke, and only there."""
        attempt = await self._try(connection, request, body, hang_up)
        for _ in range(RETRIES_MAX):
            if attempt.outcome != BROKE:
                break
            await asyncio.sleep(RETRY_AFTER_S)
            request += "-again"
            attempt = await self._try(connection, request, body, hang_up)
            self.broke_again += attempt.outcome == BROKE
        if attempt.outcome in FAILURES:
            self.unmended.append(attempt)

    async def _try(self, connection: HttpConnection, request: str, body: dict[str, Any], hang_up: bool) -> Attempt:
        sent_s = asyncio.get_running_loop().time()
        try:
            answer = await connection.post("/v1/completions", body, request, hang_up=hang_up)
            outcome, detail = (HUNG_UP, "") if hang_up and answer.status == 200 else judged(answer, body)
        except ConnectionBroke as error:
            outcome, detail = BROKE, str(error)
        except TimeoutError:
            outcome, detail = TIMED_OUT, ""
        attempt = Attempt(request, outcome, detail, sent_s, asyncio.get_running_loop().time() - sent_s)
        self.attempts.append(attempt)
        return attempt


def judged(answer: Answer, body: dict[str, Any]) -> tuple[str, str]:
    """Whether the answer is whole: status, all tokens asked for, the end mark of a stream; else what is wrong."""
    if answer.status != 200:
        return REFUSED, f"{answer.status} {answer.body[:300].decode(errors='replace')}"
    try:
        usage = _usage_of_stream(answer.body) if body.get("stream") else json.loads(answer.body)["usage"]
    except (ValueError, LookupError):
        return CUT_SHORT, answer.body[-300:].decode(errors="replace")
    if usage["completion_tokens"] != body["max_tokens"]:
        return CUT_SHORT, f"{usage['completion_tokens']} of {body['max_tokens']} tokens"
    return OK, ""


def _usage_of_stream(content: bytes) -> dict[str, Any]:
    """The usage in the last chunk; LookupError or ValueError if the stream has no proper end."""
    events = [line.removeprefix(b"data: ") for line in content.split(b"\n\n") if line]
    if events[-1] != b"[DONE]":
        raise LookupError("no end mark")
    usage: dict[str, Any] = json.loads(events[-2])["usage"]
    return usage


def _words(random: Random, count: int) -> list[str]:
    return [random.choice(WORDS) + str(random.randint(0, 9)) for _ in range(count)]
