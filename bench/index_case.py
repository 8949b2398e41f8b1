"""One case on our PrefixIndex: figures as JSON.

A store or removal is counted from the bytes of its message on, decoding and checks included, as the peer's is from the
JSON of its event. Each lookup takes a prompt that was never hashed. It goes
from token bytes, or from a list of ids where the figure says so, to depths per worker.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

from bench.index_work import BLOCK_SIZE, SMALL_EVENTS, Placed, Work, asked, batches, median_us, rss_bytes, slices
from core.block_spans import Blocks, single, stretch
from core.codec import CHAIN_START, decode_message, encode_event, encode_message
from core.events import BlocksEvent, BlocksRemoved, BlocksStored
from core.ids import SourceId, WorkerId
from core.prompt import Prompt, chain_hashes, hashes_to_bytes, tokens_to_bytes
from projections.index.prefix_index import PrefixIndex

TIER = "device"
SEED = 7
GROUPS = 8
"""Workers that hold the same long prompt, each to another depth."""


Kind = type[BlocksStored | BlocksRemoved]
WorkerMessage = tuple[int, bytes]
"""The number of a worker, and a message of it with one event, as the log has it."""


class Bench:
    """One index with the clock beside it."""

    def __init__(self, work: Work) -> None:
        self.index = PrefixIndex()
        self.cpu_s = 0.0
        """CPU spent in stores and removals."""
        self.workers = [WorkerId(f"{number:016x}") for number in range(work.case.workers)]

    def store(self, events: list[WorkerMessage]) -> float:
        """Seconds of so many stores."""
        return self._timed(self.index.store, events)

    def remove(self, events: list[WorkerMessage]) -> float:
        """The same of removals."""
        return self._timed(self.index.remove, events)

    def _timed(self, change: Callable[[WorkerId, str, Blocks], None], events: list[WorkerMessage]) -> float:
        started, cpu = time.perf_counter(), time.process_time()
        for worker, payload in events:
            for event in decode_message(payload).events:
                assert isinstance(event, BlocksEvent)
                change(self.workers[worker], event.tier, event.blocks)
        self.cpu_s += time.process_time() - cpu
        return time.perf_counter() - started

    def lookup(self, tokens: bytes) -> None:
        self.index.overlaps(Prompt(tokens, BLOCK_SIZE, SEED))

    def lookup_list(self, tokens: list[int]) -> None:
        self.lookup(tokens_to_bytes(tokens))

    def drop(self, worker: WorkerId) -> tuple[float, float]:
        """Microseconds of the drop, and of the longest change of one block while it is swept."""
        steps = [_lap(lambda: self.index.drop(worker))]
        while self.index.sweeping:
            steps.append(_lap(lambda: self.index.store(self.workers[0], TIER, single([1]))))
        return steps[0] * 1e6, max(steps[1:]) * 1e6


def _lap(work: Callable[[], object]) -> float:
    """CPU seconds: the longest of many would else be a moment in which another process ran."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def _message(worker: int, kind: Kind, blocks: Blocks) -> WorkerMessage:
    event = kind(hashes=blocks.hashes, pieces=blocks.pieces, heads=blocks.heads)
    return worker, encode_message(SourceId(f"{worker:016x}"), 1, CHAIN_START, 1, [encode_event(event)])


def _events(some: list[Placed], shared: list[int], kind: Kind = BlocksStored) -> list[WorkerMessage]:
    """As a worker's mirror tells of these chains, which begin behind the shared blocks."""
    found = list[WorkerMessage]()
    for worker, each in some:
        chain = hashes_to_bytes([*shared, *each])
        first = len(shared)
        for _, part in batches(each):
            found.append(_message(worker, kind, stretch(chain, first, first + len(part))))
            first += len(part)
    return found


def _one_by_one(blocks: list[int]) -> list[WorkerMessage]:
    """As decode steps tell of talks that grow, a block each."""
    chain = hashes_to_bytes(blocks)
    return [_message(0, BlocksStored, stretch(chain, at, at + 1)) for at in range(len(blocks))]


def _removals(own: list[Placed], shared: list[int]) -> list[WorkerMessage]:
    """The same chains as they go, the tails first."""
    return _events(own, shared, BlocksRemoved)[::-1]


def _lookups(it: Bench, work: Work) -> dict[str, float]:
    found = {}
    for kind, prompts in (("miss", work.misses), ("medium", work.mediums), ("long", work.longs)):
        raw = [prompt.tobytes() + bytes(4) for prompt in prompts]
        found[f"{kind}_us"] = median_us(it.lookup, raw, work.case.repeat)
        lists = [[*prompt.tolist(), 0] for prompt in prompts]
        found[f"{kind}_list_us"] = median_us(it.lookup_list, lists, work.case.repeat)
    return found


def _groups_us(it: Bench, work: Work, hashes: list[int]) -> float:
    """A long prompt that eight workers hold to eight different depths, after its blocks were removed."""
    others = [WorkerId(f"{number:016x}") for number in range(1000, 1000 + GROUPS)]
    column = hashes_to_bytes(hashes)
    for number, worker in enumerate(others):
        it.index.store(worker, TIER, stretch(column, 0, (number + 1) * (len(hashes) - 5) // GROUPS))
    found = median_us(it.lookup, [work.longs[0].tobytes()], work.case.repeat)
    for worker in others:
        it.index.drop(worker)
    return found


def _kept(it: Bench) -> dict[str, float]:
    """CPU seconds to dump, to load and to audit everything, and of the longest slice."""
    it.index.dump()  # memory that is asked for the first time costs more
    dump = it.index.dump()
    anew = PrefixIndex()

    def load() -> None:
        for tier, held in dump.items():
            for holding in held:
                anew.load(tier, holding)

    audit = it.index.audit()
    found: list[list[WorkerId] | None] = [None]
    slices_s = []
    while found[-1] is None:
        slices_s.append(_lap(lambda: found.append(next(audit))))
    return {
        "dump_s": _lap(it.index.dump),
        "load_s": _lap(load),
        "audit_s": sum(slices_s),
        "audit_slice_us": max(slices_s) * 1e6,
    }


def main() -> None:
    work = Work(asked())
    case, it, found = work.case, Bench(work), dict[str, Any]()
    *hashed, shared = (chain_hashes(each.tobytes(), 0, BLOCK_SIZE, SEED) for each in [*work.known, work.shared])
    own = work.placed(hashed)
    common = stretch(hashes_to_bytes(shared), 0, len(shared))
    it.store([_message(worker, BlocksStored, common) for worker in range(case.workers)])
    gc.collect()
    gc.freeze()
    before, seconds, entries, it.cpu_s = rss_bytes(), 0.0, 0, 0.0
    for some in slices(chain(own, work.fillers())):
        events = _events(some, shared)
        seconds += it.store(events)
        entries += sum(len(each) for _, each in some)
        del events
    gc.collect()
    found["bytes_per_entry"] = (rss_bytes() - before) / entries
    found["store_blocks_s"], found["store_cpu_ns"] = entries / seconds, it.cpu_s / entries * 1e9
    found |= _lookups(it, work)
    found["small_events_s"] = SMALL_EVENTS / it.store(_one_by_one(work.fresh(SMALL_EVENTS)))
    found |= _kept(it)
    events = _removals(own, shared)
    count, it.cpu_s = sum(len(each) for _, each in own), 0.0
    found["remove_blocks_s"] = count / it.remove(events)
    found["remove_cpu_ns"] = it.cpu_s / count * 1e9
    found["groups_us"] = _groups_us(it, work, hashed[0])
    found["drop_us"], found["sweep_step_us"] = it.drop(it.workers[-1])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
