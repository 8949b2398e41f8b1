"""One case on Dynamo's RadixTree: a program for an environment that has `ai-dynamo-runtime`; figures as JSON.

Its events are JSON, the only form that the binding takes; parsing them is part of a store, as decoding is of ours.
Its calls return before they are done, so each measurement ends with a lookup, which waits for all before it.
"""

from __future__ import annotations

import gc
import importlib
import json
import time
from itertools import chain
from typing import Any

from bench.index_work import (
    BLOCK_SIZE,
    SMALL_EVENTS,
    Work,
    asked,
    batches,
    median_us,
    rss_bytes,
    slices,
)

dynamo: Any = importlib.import_module("dynamo.llm")


def stored(parent: int | None, hashes: list[int]) -> bytes:
    blocks = [{"block_hash": each, "tokens_hash": each} for each in hashes]
    return json.dumps({"event_id": 1, "data": {"stored": {"parent_hash": parent, "blocks": blocks}}}).encode()


def removed(hashes: list[int]) -> bytes:
    return json.dumps({"event_id": 1, "data": {"removed": {"block_hashes": hashes}}}).encode()


class Tree:
    """One tree with the clock beside it."""

    def __init__(self) -> None:
        self.tree = dynamo.RadixTree()
        self.cpu_s = 0.0
        """CPU spent in `seconds`, by all threads."""

    def seconds(self, events: list[tuple[int, bytes]]) -> float:
        started, cpu = time.perf_counter(), time.process_time()
        for worker, event in events:
            self.tree.apply_event(worker, event)
        self.tree.find_matches([1])
        self.cpu_s += time.process_time() - cpu
        return time.perf_counter() - started

    def lookup(self, tokens: list[int]) -> None:
        self.tree.find_matches(dynamo.compute_block_hash_for_seq(tokens, BLOCK_SIZE))


def main() -> None:
    case = asked()
    work, it, found = Work(case), Tree(), {}
    *hashed, shared = (
        dynamo.compute_block_hash_for_seq(each.tolist(), BLOCK_SIZE) for each in [*work.known, work.shared]
    )
    own = work.placed(hashed)
    for worker in range(case.workers):
        it.seconds([(worker, stored(None, shared))])
    gc.collect()
    gc.freeze()
    before, seconds, entries, it.cpu_s = rss_bytes(), 0.0, 0, 0.0
    for some in slices(chain(own, work.fillers())):
        events = [(w, stored(parent or shared[-1], part)) for w, each in some for parent, part in batches(each)]
        seconds += it.seconds(events)
        entries += sum(len(each) for _, each in some)
        del events
    gc.collect()
    found["bytes_per_entry"] = (rss_bytes() - before) / entries
    found["store_blocks_s"], found["store_cpu_ns"] = entries / seconds, it.cpu_s / entries * 1e9
    for kind, prompts in (("miss", work.misses), ("medium", work.mediums), ("long", work.longs)):
        lists = [[*prompt.tolist(), 0] for prompt in prompts]
        found[f"{kind}_us"] = median_us(it.lookup, lists, case.repeat)
    small = [(0, stored(None, [block])) for block in work.fresh(SMALL_EVENTS)]
    found["small_events_s"] = len(small) / it.seconds(small)
    events = [(worker, removed(part[::-1])) for worker, each in own for _, part in [*batches(each)][::-1]]
    count, it.cpu_s = sum(len(each) for _, each in own), 0.0
    found["remove_blocks_s"] = count / it.seconds(events)
    found["remove_cpu_ns"] = it.cpu_s / count * 1e9
    print(json.dumps(found))


if __name__ == "__main__":
    main()
