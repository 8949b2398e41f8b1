"""Load on a deployment of two workers: prompts whose cold texts are known, asked again by several clients."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import openai

from core.events import RequestPrefilled, RequestRouted
from core.ids import new_id
from tests.e2e.deployment import Running, contrail
from tests.tiers.case_result import CaseResult, counted

SIZE = 32
ANSWER_TOKENS = 8
VERIFY_S = 300.0
BACK_S = 400.0
"""Bound on the return of a worker that was killed."""


class Answered(NamedTuple):
    """One streamed answer."""

    text: str
    cached: int
    first_ms: float


async def ask(running: Running, tokens: Sequence[int], salt: str | None = None) -> Answered:
    """The greedy answer."""
    more: dict[str, Any] = {"ignore_eos": True} | ({"cache_salt": salt} if salt else {})
    began, first_ms, text, cached = time.monotonic(), 0.0, "", 0
    stream = await running.openai.completions.create(
        model="tiny",
        prompt=list(tokens),
        max_tokens=ANSWER_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=more,
    )
    async for chunk in stream:
        if chunk.choices:
            first_ms = first_ms or (time.monotonic() - began) * 1000
            text += chunk.choices[0].text
        if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
            cached = chunk.usage.prompt_tokens_details.cached_tokens or 0
    return Answered(text, cached, first_ms)


class Load:
    """Clients that ask known prompts again and again, until it ends."""

    def __init__(self, running: Running, cold: dict[tuple[int, ...], str], seed: int) -> None:
        self._running, self._cold, self._fresh = running, cold, random.Random(seed)
        self.case = CaseResult("load")
        """Answers count for this one, which may be changed."""

    @asynccontextmanager
    async def by(self, clients: int) -> AsyncIterator[None]:
        """So many clients ask while the block runs."""
        asking = [asyncio.create_task(self._ask()) for _ in range(clients)]
        try:
            yield
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self) -> None:
        prompts = list(self._cold)
        while True:
            tokens, case = self._fresh.choice(prompts), self.case
            try:
                found = await ask(self._running, tokens)
            except openai.APIError as error:
                case.expect(condition=False, sentence=f"no answer: {error}")
                await asyncio.sleep(1)
                continue
            case.add(is_right=found.text == self._cold[tokens], waited_ms=found.first_ms)
            case.found["caches"] += found.cached // SIZE


def kill(running: Running, name: str) -> str:
    """The worker of that name is killed with -9. Returns its id."""
    part = running.part(name)
    os.kill(part["pid"], signal.SIGKILL)
    return str(part["id"])


async def wait_until(condition: Callable[[], object], what: str, timeout_s: float = BACK_S) -> None:
    """The condition holds, also if parts do not answer meanwhile; AssertionError if it does not in time."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        with suppress(OSError, LookupError, ValueError):
            if await asyncio.to_thread(condition):
                return
        await asyncio.sleep(0.2)
    raise AssertionError(f"waited {timeout_s:g} s in vain for {what}")


async def verified(running: Running, name: str) -> CaseResult:
    """Each decision of the run is made again. The notes have what was predicted beside what was found."""
    case = CaseResult(name)
    command = "replay", "verify", "--data", str(running.data), "--json"
    said = await asyncio.to_thread(contrail, *command, timeout_s=VERIFY_S)
    found = json.loads(said.stdout)
    case.rounds, case.right = found["decisions"], found["decisions"] - found["different"]
    case.expect(found["holds"] and not said.returncode, f"it does not hold: {said.stdout[:500]}")
    case.notes.append(f"{found['verified']} of {found['decisions']} decisions made again, {found['different']} differ")
    events = await running.events("routing")
    last = {event.request: event for event in events if isinstance(event, RequestRouted)}
    real = {event.request: event for event in events if isinstance(event, RequestPrefilled)}
    compared: Counter[str] = Counter()
    for request, event in real.items():
        predicted, cached = last[request].predicted_cached_tokens, event.cached_tokens
        compared["met" if predicted == cached else "less than found" if predicted < cached else "more than found"] += 1
    case.notes.append(f"predictions: {counted(compared)}")
    return case


def prompts(number: int, blocks: int, seed: int) -> list[tuple[int, ...]]:
    """New prompts of so many whole blocks and five tokens."""
    fresh = random.Random(f"{seed} {new_id()}")
    return [tuple(fresh.randrange(10, 2000) for _ in range(blocks * SIZE + 5)) for _ in range(number)]


def deployment_file(folder: Path, group: dict[str, Any], routing: dict[str, Any]) -> Path:
    """A file for `contrail up` with one group of workers."""
    file = folder / "deployment.yaml"
    file.write_text(json.dumps({"version": 1, "workers": [group], "routing": routing}))
    return file
