"""Excerpt state: a state cut to one prompt. A decision on that prompt comes out of it as out of the whole state.

1. Every member, load report, local fact, request in flight, job and chain position stays as it is.
2. The index, and what replicas take workers to hold, keep the blocks of the prompt. Every worker's blocks are closed
   under prefixes, and so is the part of them that lies in the prompt.
3. A request in flight keeps the hashes that its prompt shares with this one and the hash behind them, since a lookup
   needs no more to find how many blocks they share; one with another first block keeps none.
4. Parts of restatements that have not come to their end are gone: no decision reads them.
"""

from __future__ import annotations

from msgspec.structs import replace

from core.ids import WorkerId
from core.prompt import HASH_BYTES, hashes_from_bytes, hashes_to_bytes
from core.subjects import JOBS
from projections.folds.approximate_index import ApproximateIndex, WorkerBlocks
from projections.folds.in_flight import InFlight
from projections.folds.kv_fold import KvFold
from projections.folds.state import State
from projections.index.index_dump import HolderGroup


def cut_to_prompt(state: State, hashes: bytes) -> State:
    """A state of its own with all that a decision on a prompt with these block hashes reads. It shares parts with
    `state`, so neither may be folded on before it is encoded. O(all blocks), some 0.1 us each."""
    cut, prompt = State(state.chain_key), frozenset(hashes_from_bytes(hashes))
    cut.corrupt = state.corrupt
    _cut_index(state, cut, prompt)
    for stream, kv in sorted(state.kv.items()):
        fold = cut.kv[stream] = KvFold(cut.index)
        for _, member in sorted(kv.members.items()):
            fold.restore(replace(member, restated=[], identity=0, digest=0))
    for worker, load in sorted(state.loads.parts.items()):
        cut.loads.restore(WorkerId(worker), load.chain, state.loads.reports.get(worker))
    _cut_routing(state, cut, hashes, prompt)
    if JOBS in state.cursor:
        for _, job in sorted(state.jobs.parts.items()):
            cut.jobs.restore(replace(job))
        cut.jobs.answered.update(state.jobs.answered)
        cut.jobs.dead_letters = state.jobs.dead_letters
    for stream, position in state.cursor.items():
        whole, part = state.projection(stream), cut.projection(stream)
        part.unknown_events = whole.unknown_events
        part.ended.update(whole.ended)
        point = state.point(stream, position.seq)
        cut.resume(stream, position, b"" if point is None else point.head)
    return cut


def _cut_index(state: State, cut: State, prompt: frozenset[int]) -> None:
    for tier, groups in state.index.dump().items():
        for group in groups:
            kept = hashes_to_bytes(sorted(prompt.intersection(hashes_from_bytes(group.hashes))))
            if kept:
                cut.index.load(tier, HolderGroup(group.workers, kept))


def _cut_routing(state: State, cut: State, hashes: bytes, prompt: frozenset[int]) -> None:
    for replica, part in sorted(state.routing.replicas.items()):
        flying = {key: cut_entry(entry, hashes) for key, entry in part.in_flight.items()}
        believed = state.routing.believed.get(replica)
        kept = [] if believed is None else [_cut_blocks(each, prompt) for each in believed.kept()]
        restored = ApproximateIndex.of([each for each in kept if each is not None])
        cut.routing.restore(replace(part, in_flight=flying, identity=0, contents=0, digest=0), restored)


def cut_entry(entry: InFlight, hashes: bytes) -> InFlight:
    """The request in flight with the hashes by which its prompt is compared with one that has these block hashes."""
    if entry.first_hash != hashes[:HASH_BYTES] or not hashes:
        return replace(entry, hashes=b"", base_blocks=0, base_hashes=b"")
    own, others = hashes_from_bytes(entry.hashes), hashes_from_bytes(hashes)[entry.base_blocks :]
    shared = next((at for at, (one, other) in enumerate(zip(own, others, strict=False)) if one != other), len(others))
    return replace(entry, hashes=entry.hashes[: (shared + 1) * HASH_BYTES])


def _cut_blocks(held: WorkerBlocks, prompt: frozenset[int]) -> WorkerBlocks | None:
    """The worker's blocks of the prompt, in their order; None if there is none."""
    both = zip(hashes_from_bytes(held.hashes), hashes_from_bytes(held.used_ms), strict=True)
    rows = [(block, used_ms) for block, used_ms in both if block in prompt]
    if not rows:
        return None
    blocks, times = zip(*rows, strict=True)
    return WorkerBlocks(held.worker, hashes_to_bytes(blocks), hashes_to_bytes(times))
