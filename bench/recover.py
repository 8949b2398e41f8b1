"""recover: how long a replica's fold takes to start: from the log alone, from a snapshot, from a snapshot and a tail.

Over a real nats-server on this machine. CPU seconds are those of this process; the broker has its own. While it folds,
a task that always wants its turn measures for how long others waited.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import uvloop

from bench.figures import Figure, main
from bench.fold_log import CHAIN_KEY, NAMESPACE, broker, written
from core.snapshot_manifest import Manifest
from projections.folds.snapshot import decode, encode
from projections.folds.state import State
from projections.runner.rebuild import RebuildResult, rebuild, take_snapshot
from streams.jetstream.jetstream_log import JetStreamLog
from streams.snapshot_store import SnapshotStore

BLOCKS, BLOCKS_QUICK, BLOCKS_HUGE = 1_000_000, 100_000, 10_000_000
TAIL_SHARE = 10
"""One block in so many came after the snapshot."""
WORKERS = 8
EVENTS_PER_MESSAGE = 16
REPEAT = 3
MS_PER_S = 1000


class Start(NamedTuple):
    """One start of a fold."""

    cpu_s: float
    wall_s: float
    waited_s: float
    """The longest that another task had to wait for its turn, in CPU time."""
    rebuilt: RebuildResult | None


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """All figures."""
    blocks = BLOCKS_QUICK if options.quick else BLOCKS_HUGE if options.huge else BLOCKS
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        yield from loop.run(_measured(blocks))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those that only this measurement has."""
    parser.add_argument("--huge", action="store_true", help="ten million blocks")


async def _measured(blocks: int) -> list[Figure]:
    async with broker() as log:
        store = SnapshotStore(log, NAMESPACE, CHAIN_KEY)
        await written(log, blocks, WORKERS, EVENTS_PER_MESSAGE)
        found = _figures(f"{blocks:,} blocks, from the log alone", await _starts(log, None, None))
        started_s = time.perf_counter()
        manifest = await take_snapshot(log, store, CHAIN_KEY, "bench", 1, 0)
        found.append(Figure("taking a snapshot, folding the log for it included", time.perf_counter() - started_s, "s"))
        found.append(Figure("size of the snapshot", manifest.size_bytes / 1e6, "MB"))
        found += _figures(f"{blocks:,} blocks, from a snapshot", await _starts(log, store, manifest))
        await written(log, blocks // TAIL_SHARE, WORKERS, EVENTS_PER_MESSAGE, first=WORKERS)
        starts = await _starts(log, store, manifest)
        found += _figures(f"{blocks:,} blocks, from a snapshot, and a tail of a tenth", starts)
        assert starts[-1].rebuilt is not None
        return found + _codec(starts[-1].rebuilt.state)


async def _starts(log: JetStreamLog, store: SnapshotStore | None, manifest: Manifest | None) -> list[Start]:
    """Several, of which only the last keeps its state."""
    starts: list[Start] = []
    for _ in range(REPEAT):
        if starts:
            starts[-1] = starts[-1]._replace(rebuilt=None)
        gc.collect()
        start = await _start(log, store)
        assert start.rebuilt is not None
        assert start.rebuilt.manifest == manifest
        starts.append(start)
    return starts


async def _start(log: JetStreamLog, store: SnapshotStore | None) -> Start:
    waits: list[float] = []
    waiter = asyncio.create_task(_wait(waits))
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    rebuilt = await rebuild(log, CHAIN_KEY, store)
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    waiter.cancel()
    await asyncio.wait([waiter])
    return Start(cpu_s, wall_s, max(waits), rebuilt)


async def _wait(waits: list[float]) -> None:
    """Counts this thread's own time: other processes on a busy machine are not the fold's fault."""
    while True:
        before_s = time.thread_time()
        await asyncio.sleep(0)
        waits.append(time.thread_time() - before_s)


def _figures(what: str, starts: list[Start]) -> list[Figure]:
    return [
        Figure(f"{what}: time", median(start.wall_s for start in starts), "s"),
        Figure(f"{what}: CPU", median(start.cpu_s for start in starts), "s"),
        Figure(f"{what}: longest wait of others", MS_PER_S * max(start.waited_s for start in starts), "ms"),
    ]


def _codec(state: State) -> list[Figure]:
    """The bytes alone: no broker, no checksum."""
    before_s = time.process_time()
    content = b"".join(encode(state))
    between_s = time.process_time()
    again = decode(CHAIN_KEY, content)
    after_s = time.process_time()
    assert again.digest == state.digest
    return [
        Figure("the snapshot's bytes made: CPU", between_s - before_s, "s"),
        Figure("the snapshot's bytes read into a state: CPU", after_s - between_s, "s"),
    ]


if __name__ == "__main__":
    main("recover", measure, add_options)
