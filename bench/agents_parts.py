"""The parts of what a talk's turn costs at the front end, each alone in a loop, for `bench.agents`.

Turns of all talks come in rounds, as they do live; only the last rounds are timed. In a loop everything lies in the
processor's caches, so the parts add up to less than the whole; HTTP, the way back and the log's writer are not told
apart here.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from actors.prompt_cache.digest_store import DigestStore
from actors.prompt_cache.hash_columns import HashColumns
from actors.prompt_cache.part_digests import NamedParts
from actors.transport.worker_connection import WorkerConnection
from actors.worker.model_files import tokenizer_files
from api.openai.types.request_types import ChatRequest
from api.tokenizer.chat_template import render
from api.tokenizer.model_tokenizer import ModelTokenizer
from bench.agents_load import ANSWER_TOKENS, TalksLoad, bodies
from bench.figures import Figure
from bench.frontdoor_parts import view
from core.codec import encode_event
from core.generation import NO_HINT, GenerateRequest, Output, Sampling
from core.ids import RequestId
from core.prompt import Prompt
from core.settings import RoutingSettings
from projections.policy.decide import decide, record
from projections.policy.view import RouteRequest

T = TypeVar("T")
R = TypeVar("R")
MODEL = "bench"
BLOCK_SIZE = 16
HASH_SEED = 7
SETTINGS = RoutingSettings()
CONTEXT_MAX = 1_000_000
SPECIAL = r"<\|\w+\|>"
"""The tiny model's special tokens, between which segments are kept by their digests."""
ROUNDS = 2
"""The last turns of each talk are timed."""
ANSWER = " and so on" * (ANSWER_TOKENS // 2)
MILLI = 1e3


class _Parts:
    """CPU per request of each part."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._spent_s: dict[str, float] = {}
        self._requests = 0

    def each(self, what: str, items: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """The results of `work` on the items, timed as one part."""
        started_s = time.process_time()
        results = [work(item) for item in items]
        self._spent_s[what] = self._spent_s.get(what, 0.0) + time.process_time() - started_s
        return results

    def count(self, requests: int) -> None:
        """So many requests more passed every part."""
        self._requests += requests

    def figures(self) -> Iterable[Figure]:
        """Milliseconds of CPU per request."""
        for what, spent_s in self._spent_s.items():
            note = "alone, in a loop" + ("; a part of tokenize" if what == "digest" else "")
            yield Figure(f"{self._label}: of it {what}", spent_s / self._requests * MILLI, "ms", note=note)


def parts(label: str, folder: Path, load: TalksLoad, seed: str) -> Iterable[Figure]:
    """Milliseconds of CPU per request, of the last turns of each talk."""
    store = DigestStore()
    tokenizer, columns = ModelTokenizer(MODEL, tokenizer_files(str(folder)), store), HashColumns(store, HASH_SEED)
    template, scope = tokenizer.chat_template, store.scope(b"parts")
    assert template is not None
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(_connected())
    decoder, fleet, timed = msgspec.json.Decoder(ChatRequest), view(), _Parts(label)
    for turn, asked in enumerate(zip(*bodies(MODEL, load, seed, ANSWER), strict=True)):
        at = timed if turn >= load.turns - ROUNDS else _Parts(label)
        requests = at.each("read", asked, decoder.decode)
        texts = at.each("render", requests, lambda request: render(request, template))
        tokens = at.each("tokenize", texts, lambda text: tokenizer.encode(text, CONTEXT_MAX, add_special_tokens=False))
        named = at.each("hash", tokens, lambda each: columns.prompt_and_parts(each, BLOCK_SIZE))
        prompts = [prompt for prompt, _ in named]
        at.each("send", [*zip(tokens, named, strict=True)], partial(_sent, connection))
        if at is not timed:
            continue
        segments = [re.split(SPECIAL, text) for text in texts]
        at.each("digest", segments, lambda each: [scope.digest(segment.encode()) for segment in each])
        routes = [RouteRequest(RequestId("req-0"), 0, MODEL, prompt) for prompt in prompts]
        decisions = at.each("decide", routes, lambda route: decide(fleet, route, SETTINGS, 1, 1))
        pairs = list(zip(decisions, routes, strict=True))
        at.each("record", pairs, lambda pair: encode_event(record(pair[0], pair[1], SETTINGS, 1)))
        at.count(len(asked))
    loop.close()
    yield from timed.figures()


class _Nowhere(asyncio.Transport):
    """Takes all bytes, and sends none."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


async def _connected() -> WorkerConnection:
    """A connection to a worker that keeps prompts."""
    found = WorkerConnection()
    found.connection_made(_Nowhere())
    found.keeps_prompts = True
    return found


class _Deaf:
    """Reads no answer."""

    def put(self, output: Output) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass


def _sent(connection: WorkerConnection, asked: tuple[bytes, tuple[Prompt, NamedParts | None]]) -> None:
    tokens, (_, named) = asked
    request = GenerateRequest(id=RequestId("req-0"), tokens=tokens, sampling=Sampling(max_tokens=ANSWER_TOKENS))
    number = connection.open(_Deaf(), MODEL, request, NO_HINT, named)
    connection.cancel(number)
    connection.loop.call_soon(connection.loop.stop)
    connection.loop.run_forever()  # one turn: the rest is written
