"""fold: what a replica pays to take the log in: decoding, the chain, the index, the digest, all counted.

From memory (sealed messages in a list: the fold alone) and from a real nats-server (with the reader). CPU seconds are
those of this process; the broker has its own. "A fleet of N workers": one replica follows the messages of
`bench.fold_fleet`, workers that come and go among them, from memory.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from statistics import median

import uvloop

from bench.figures import MICRO, Figure, main, median_s
from bench.fold_fleet import FleetLog
from bench.fold_log import BLOCKS_PER_EVENT, CHAIN_KEY, KV, broker, messages, written
from core.block_spans import Blocks
from core.codec import decode_message
from core.events import BlocksStored
from core.ids import Epoch, StreamSeq, WorkerId
from projections.folds.state import DigestPoints, State
from projections.index.prefix_index import PrefixIndex
from projections.runner.rebuild import fold_on

BLOCKS, BLOCKS_QUICK = 1_000_000, 100_000
SMALL = 64_000
"""Blocks of an index that fits the core's caches: the fold's own cost shows."""
WORKERS = 8
EVENTS_PER_MESSAGE = (1, 4)
"""One, as from a quiet worker; four, as a batch under load."""
REPEAT = 5
MILLI = 1e3
FLEETS, FLEETS_QUICK = (8, 64, 256, 1000, 4000), (8, 64)
SECONDS = 5
"""Of each fleet's time."""


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """All figures."""
    blocks = BLOCKS_QUICK if options.quick else BLOCKS
    yield from _from_memory(blocks)
    yield _one_event()
    yield _point()
    for workers in FLEETS_QUICK if options.quick else FLEETS:
        yield _fleet(workers)
    for events in EVENTS_PER_MESSAGE:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            yield from loop.run(_from_broker(blocks, events))


def _from_memory(blocks: int) -> Iterator[Figure]:
    for events in EVENTS_PER_MESSAGE:
        sealed = list(messages(blocks, WORKERS, events))
        spent_s = median_s(partial(_fold, sealed), REPEAT, time.process_time)
        yield from _figures(f"memory, {events} events a message", spent_s, blocks)


def _figures(what: str, spent_s: float, blocks: int) -> Iterator[Figure]:
    yield Figure(f"{what}: CPU for {blocks:,} blocks", spent_s, "s")
    yield Figure(f"{what}: blocks", blocks / spent_s, "blocks/s", lower_is_better=False)
    yield Figure(f"{what}: events", blocks / BLOCKS_PER_EVENT / spent_s, "events/s", lower_is_better=False)
    yield Figure(f"{what}: one event of {BLOCKS_PER_EVENT} blocks", MICRO * spent_s * BLOCKS_PER_EVENT / blocks, "us")


def _fold(sealed: list[tuple[str, bytes]]) -> State:
    state = State(CHAIN_KEY)
    state.open(KV, Epoch(1))
    for seq, (subject, payload) in enumerate(sealed, 1):
        state.apply(KV, StreamSeq(seq), subject, payload)
    return state


def _one_event() -> Figure:
    sealed = list(messages(SMALL, WORKERS, 1))
    spent_s = median_s(lambda: _fold(sealed), 9, time.process_time) - _index_s(sealed)
    return Figure("one event of 64 blocks, without the index", MICRO * spent_s / len(sealed), "us")


def _index_s(sealed: list[tuple[str, bytes]]) -> float:
    """The index's part of that."""
    stored: list[tuple[WorkerId, Blocks]] = []
    for _, payload in sealed:
        message = decode_message(payload)
        events = [event for event in message.events if isinstance(event, BlocksStored)]
        stored += [(WorkerId(message.source), event.blocks) for event in events]

    def store() -> None:
        index = PrefixIndex()
        for worker, blocks in stored:
            index.store(worker, "device", blocks)

    return median_s(store, 9, time.process_time)


def _point() -> Figure:
    points, head, projection = DigestPoints(), bytes(16), State(CHAIN_KEY).loads
    epoch, count = Epoch(1), 100_000

    def note() -> None:
        for seq in range(count):
            points.note((epoch, StreamSeq(seq), projection.digest, head, not projection.incomplete))

    return Figure("one point", MICRO * median_s(note, 9, time.process_time) / count, "us")


def _fleet(workers: int) -> Figure:
    log, spent_s, messages_s = FleetLog(workers), [], 0
    for _ in range(SECONDS):
        messages = log.second()
        messages_s = len(messages)
        began_s = time.process_time()
        log.fold(messages)
        spent_s.append(time.process_time() - began_s)
    note = f"{messages_s:,} messages a second"
    return Figure(f"a fleet of {workers:,} workers", median(spent_s) * MILLI, "ms/s", note=note)


async def _from_broker(blocks: int, events: int) -> list[Figure]:
    async with broker() as log:
        count = await written(log, blocks, WORKERS, events)
        spent, passed = [], []
        for _ in range(REPEAT):
            cpu_s, wall_s = await _timed(lambda: fold_on(log, State(CHAIN_KEY)))
            spent.append(cpu_s)
            passed.append(wall_s)
        what = f"nats-server, {events} events a message"
        found = list(_figures(what, sorted(spent)[REPEAT // 2], blocks))
        found.append(Figure(f"{what}: time for {count:,} messages", sorted(passed)[REPEAT // 2], "s"))
        return found


async def _timed(work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """CPU and time that it took."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    await work()
    return time.process_time() - cpu_s, time.perf_counter() - wall_s


if __name__ == "__main__":
    main("fold", measure)
