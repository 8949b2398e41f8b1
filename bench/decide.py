"""decide: CPU of one decision, by the number of workers and the policy.

A fleet of one model is folded from sealed messages. Each worker has a load report, requests in flight of another
replica, and a prefix of each of eight prompts: the prefixes have 128 depths, spread over the workers. Each decision
takes a prompt of 2 000 tokens that was never hashed. Its record counts at once, and a few requests later the log gives
it back; the first token, the end and a load report of its worker follow. So loads change between decisions, as they do
in a fleet. Only the decision is timed, and the events of a request beside it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

from api.process.lifecycle import tune_garbage_collection
from bench.figures import MICRO, Figure, main
from core.block_spans import stretch
from core.codec import CHAIN_START, Message, decode_message, digest, encode_event, encode_message
from core.events import (
    BlocksStored,
    Event,
    LoadReported,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
    WorkerJoined,
)
from core.ids import Epoch, ReplicaId, RequestId, SourceId, StreamName, StreamSeq, WorkerId
from core.prompt import Prompt, tokens_to_bytes
from core.settings import POLICIES, RoutingSettings
from core.subjects import LOAD, ROUTING, kv_stream
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy.decide import Decision, decide_newest, record
from projections.policy.view import RouteRequest, View

MODEL = "m"
CHAIN_KEY = bytes(32)
KV = kv_stream(0)
WORKERS = (8, 64, 256, 1000, 4000)
PROMPT_TOKENS, BLOCK_SIZE, SEED = 2000, 16, 7
PROMPTS = 8
"""Prompts of which workers hold prefixes, and which requests bring."""
DEPTHS = 128
"""Depths of the prefixes; the deepest are whole prompts."""
IN_FLIGHT = 2
"""Requests in flight on each worker; every second one is prefilled."""
LAG = 8
"""Decisions that the log has not given back."""
DECISIONS_MIN, DECISIONS_MAX, WORKERS_DECIDED = 60, 1000, 200_000
"""Decisions of one row: as many as make so many workers looked at, within these bounds."""
REPLICA, OTHER = ReplicaId("ee" * 8), ReplicaId("dd" * 8)
NOW_MS = 1_790_000_000_000


class Cost(NamedTuple):
    """Median microseconds."""

    decision: float
    events: float
    """Of all events of one request: recorded, read back, first token, end, load report."""


class Fleet:
    """One replica's view of so many workers, which decides request after request."""

    def __init__(self, workers: int, policy: str) -> None:
        self.settings = RoutingSettings(policy=policy)
        self.workers = [WorkerId(f"{(number + 1) * 0x9E3779B97F4A7C15 % 2**64:016x}") for number in range(workers)]
        self._dice = random.Random(workers)
        self._state, self._pending = State(CHAIN_KEY), PendingEvents()
        self._sources: dict[tuple[StreamName, str], tuple[int, bytes]] = {}
        self._ahead: deque[RequestRouted] = deque()
        self._flying: deque[RequestRouted] = deque()
        self._number = 0
        tokens = [tokens_to_bytes([self._dice.randrange(50_000) for _ in range(PROMPT_TOKENS)]) for _ in range(PROMPTS)]
        self._tokens = tokens
        for stream in (KV, LOAD, ROUTING):
            self._state.open(stream, Epoch(1))
        for number, worker in enumerate(self.workers):
            self._begin(number, worker, [self._prompt(at) for at in range(PROMPTS)])
        for _ in range(LAG):
            self.step(lambda _: None)

    def step(self, timed: Callable[[float], object]) -> float:
        """One request is decided on, and the events of an earlier one are folded; returns the seconds of these."""
        self._number += 1
        prompt = self._prompt(self._number % PROMPTS)
        request = RouteRequest(RequestId(f"req-{self._number:012d}"), 0, MODEL, prompt)
        began = time.thread_time()
        decision = self._decide(request)
        timed(time.thread_time() - began)
        event = record(decision, request, self.settings, 1)
        began = time.thread_time()
        self._pending.emit(event, self._state.routing.replicas.get(REPLICA))
        emitted = time.thread_time() - began
        self._ahead.append(event)
        return emitted + (self._log_catches_up() if len(self._ahead) > LAG else 0.0)

    def _decide(self, request: RouteRequest) -> Decision:
        view = View(self._state, REPLICA, self._pending, {})
        return decide_newest(view, request, self.settings, NOW_MS + self._number, self._dice.getrandbits(64))

    def _log_catches_up(self) -> float:
        event = self._ahead.popleft()
        self._flying.append(event)
        messages = [self._message(ROUTING, REPLICA, event), self._message(LOAD, event.worker, self._load())]
        first = RequestPrefilled(request=event.request, attempt=0, cached_tokens=0, ttft_ms=35)
        messages.append(self._message(ROUTING, REPLICA, first))
        if len(self._flying) > LAG:
            messages.append(self._message(ROUTING, REPLICA, _end(self._flying.popleft())))
        began = time.thread_time()
        for stream, owner, message, head in messages:
            self._state.fold(stream, StreamSeq(self._state.cursor[stream].seq + 1), owner, message, head)
            for each in message.events:
                self._pending.read_back(each)  # type: ignore[arg-type]  # of types that we know
        return time.thread_time() - began

    def _begin(self, number: int, worker: WorkerId, prompts: list[Prompt]) -> None:
        """It joins, with its cache, its load and its requests."""
        joined = WorkerJoined(
            name=f"w-{number}", model=MODEL, role="decode", engine="bench", block_size=BLOCK_SIZE,
            capacity_blocks=16_384, context_max=1 << 17, address="127.0.0.1:1",
        )  # fmt: skip
        stores: list[Event] = []
        for at, prompt in enumerate(prompts):
            depth = min((number * 37 + at * 17) % DEPTHS, prompt.blocks)
            if depth:
                stores.append(BlocksStored(**stretch(prompt.hashes(), 0, depth)._asdict()))
        self._fold(KV, worker, joined, *stores)
        self._fold(LOAD, worker, self._load())
        for at in range(IN_FLIGHT):
            name = f"other-{number}-{at}"
            tokens = [self._dice.randrange(50_000) for _ in range(self._dice.randrange(100, 900))]
            prompt = Prompt(tokens_to_bytes(tokens), BLOCK_SIZE, SEED)
            routed = RequestRouted(
                request=name, attempt=0, model=MODEL, prompt_tokens=prompt.tokens, block_size=BLOCK_SIZE,
                hashes=prompt.hashes(), policy="kv", settings_revision=1, decide_version=1, seed=0, now_ms=NOW_MS,
                cursor={}, worker=worker, candidates=b"", columns={}, candidates_total=len(self.workers), excluded={},
                blocks=self._dice.randrange(20, 200), prefill_tokens=prompt.tokens, predicted_cached_tokens=0,
                digest="0" * 16,
            )  # fmt: skip
            first = RequestPrefilled(request=name, attempt=0, cached_tokens=0, ttft_ms=35)
            self._fold(ROUTING, OTHER, routed, *([first] if at % 2 else []))

    def _prompt(self, number: int) -> Prompt:
        return Prompt(self._tokens[number], BLOCK_SIZE, SEED)

    def _load(self) -> LoadReported:
        running, waiting = self._dice.randrange(1, 32), self._dice.randrange(8)
        return LoadReported(running=running, waiting=waiting, blocks_used=9_000, blocks_total=16_384)

    def _fold(self, stream: StreamName, source: str, *events: Event) -> None:
        _, owner, message, head = self._message(stream, source, *events)
        self._state.fold(stream, StreamSeq(self._state.cursor[stream].seq + 1), owner, message, head)

    def _message(self, stream: StreamName, source: str, *events: Event) -> tuple[StreamName, str, Message, bytes]:
        n, prev = self._sources.get((stream, source), (0, CHAIN_START))
        payload = encode_message(SourceId(source), n, prev, 1, [encode_event(event) for event in events])
        head = digest(payload, CHAIN_KEY)
        self._sources[stream, source] = n + 1, head
        return stream, source, decode_message(payload), head


def _end(event: RequestRouted) -> RequestFinished:
    return RequestFinished(
        request=event.request, attempt=0, outcome="stop", prompt_tokens=PROMPT_TOKENS, output_tokens=200,
        cached_tokens=0, ttft_ms=35, duration_ms=2100,
    )  # fmt: skip


def cost(workers: int, policy: str, *, quick: bool) -> Cost:
    """Of one row."""
    fleet = Fleet(workers, policy)
    decisions = max(DECISIONS_MIN, min(DECISIONS_MAX, WORKERS_DECIDED // workers)) // (10 if quick else 1)
    decided: list[float] = []
    events = [fleet.step(decided.append) for _ in range(decisions)]
    return Cost(median(decided) * MICRO, median(events) * MICRO)


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """All figures, in order."""
    tune_garbage_collection()  # as front ends do
    for policy in options.policies or POLICIES:
        for workers in options.workers or WORKERS:
            found = cost(workers, policy, quick=options.quick)
            note = f"and {found.events:.0f} us for the events of a request"
            yield Figure(f"decide, {workers} workers, {policy}", found.decision, "us", note=note)


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, nargs="+", help=f"instead of {WORKERS}")
    parser.add_argument("--policies", choices=POLICIES, nargs="+", help="instead of all")


if __name__ == "__main__":
    main("decide", measure, extend)
