"""Mirrors of several engines and one index: what the pieces of their events say is what the index then knows."""

from __future__ import annotations

from random import Random

import pytest

from actors.engines.engine import CacheChange, CacheRemoved, CacheStored
from actors.kv_cache.cache_events import merge_events
from actors.kv_cache.cache_mirror import CacheMirror
from core.block_spans import SPAN_BLOCKS, unpacked
from core.events import BlocksRemoved, BlocksStored, Event
from core.ids import WorkerId
from core.prompt import Prompt, hashes_from_bytes, tokens_to_bytes
from core.settings import TIERS
from projections.index.block_table import BlockTable
from projections.index.prefix_index import PrefixIndex

SIZE = 2
SEED = 7
LENGTH = 53
STEPS = 150
FORKS = (0, 5, 15, 16, 17, 31, 40, 52)
"""Document i + 1 shares so many blocks with document 0."""
DOCUMENTS = [list(range(LENGTH)), *([*range(fork), *range(1000 * fork, 1000 * fork + LENGTH - fork)] for fork in FORKS)]
NAMES = [[hash(tuple(document[: depth + 1])) for depth in range(LENGTH)] for document in DOCUMENTS]
"""The engine's names of the blocks: of each with all before it."""


def prompt_of(document: int) -> Prompt:
    return Prompt(tokens_to_bytes([t for block in DOCUMENTS[document] for t in (block, 9)] + [0]), SIZE, SEED)


CHAINS = [hashes_from_bytes(prompt_of(document).hashes()) for document in range(len(DOCUMENTS))]
DEPTHS = {block: depth for chain in CHAINS for depth, block in enumerate(chain)}
HEADS = {block: chain[depth - depth % SPAN_BLOCKS] for chain in CHAINS for depth, block in enumerate(chain)}


class Worker:
    """An engine that stores and evicts at random, and its mirror."""

    def __init__(self, number: int) -> None:
        self.id = WorkerId(f"{number:016x}")
        self.mirror = CacheMirror(SIZE, SEED)
        self._copies: dict[tuple[int, str], int] = {}

    def step(self, dice: Random) -> list[Event]:
        document, tier = dice.randrange(len(DOCUMENTS)), dice.choice(["device", "device", "device", "host"])
        if dice.random() < 0.5:
            return self.mirror.apply(self._store(document, tier, dice))
        return [event for _ in range(dice.randrange(1, 30)) for event in self._evict(tier, dice)]

    def _store(self, document: int, tier: str, dice: Random) -> CacheChange:
        names, first = NAMES[document], dice.choice([0, dice.randrange(LENGTH)])
        while first and (names[first - 1], tier) not in self._copies:
            first -= 1
        last = dice.randrange(first, LENGTH) + 1
        for name in names[first:last]:
            self._copies[name, tier] = self._copies.get((name, tier), 0) + 1
        tokens = tuple(token for block in DOCUMENTS[document][first:last] for token in (block, 9))
        parent = names[first - 1] if first else None
        return CacheStored(tuple(names[first:last]), parent, tokens, SIZE, tier, None, None, indexable=True)

    def _evict(self, tier: str, dice: Random) -> list[Event]:
        """The deepest of some, as engines do it; now and then any."""
        held = [name for name, its in self._copies if its == tier]
        if not held:
            return []
        some = dice.sample(held, min(len(held), dice.choice([1, 8])))
        name = max(some, key=lambda name: max(each.index(name) for each in NAMES if name in each))
        self._copies[name, tier] -= 1
        if not self._copies[name, tier]:
            del self._copies[name, tier]
        return self.mirror.apply(CacheRemoved((name,), tier))


def fold(index: PrefixIndex, worker: WorkerId, events: list[Event]) -> None:
    for event in events:
        assert isinstance(event, BlocksStored | BlocksRemoved)
        assert event.pieces
        for piece in unpacked(event.blocks):
            blocks = hashes_from_bytes(piece.hashes)
            assert [DEPTHS[block] % SPAN_BLOCKS for block in blocks] == list(range(piece.place, piece.end))
            assert {HEADS[block] for block in blocks} == {int.from_bytes(piece.head, "little")}
        change = index.store if isinstance(event, BlocksStored) else index.remove
        change(worker, event.tier, event.blocks)


def assert_known(index: PrefixIndex, workers: list[Worker]) -> None:
    """Every set is that of the mirror, and so is every lookup."""
    for worker in workers:
        for tier in TIERS:
            assert index.held(worker.id, tier) == set(worker.mirror.held(tier))
            assert index.blocks(worker.id, tier) == len(index.held(worker.id, tier))
    for document in range(len(DOCUMENTS)):
        prompt = prompt_of(document)
        found = index.overlaps(prompt)
        for worker in workers:
            device, host = found.get(worker.id, (0, 0))[:2]
            assert (device, host) == (worker.mirror.overlap(prompt), worker.mirror.loadable(prompt))


def runs(table: BlockTable) -> int:
    return sum(isinstance(entry, tuple) for shard in table.shards for entry in shard.values())


@pytest.mark.parametrize("seed", range(12))
def test_an_index_knows_what_mirrors_tell(seed: int) -> None:
    """Event by event or merged, in any order between workers; a worker's restatement says the same."""
    dice, index = Random(seed), PrefixIndex()
    workers = [Worker(number) for number in range(4)]
    most = 0
    for _ in range(STEPS):
        worker = dice.choice(workers)
        events = worker.step(dice)
        fold(index, worker.id, merge_events(events) if dice.random() < 0.5 else events)
        assert_known(index, workers[:1] if dice.random() < 0.9 else workers)
        most = max(most, runs(index._tables["device"]) if "device" in index._tables else 0)
    assert most > 3, "blocks stand together"
    said = {worker.id: index.digest(worker.id) for worker in workers}
    for worker in workers:
        index.drop(worker.id)
        for part in worker.mirror.restate(part_bytes_max=dice.choice([24, 256, 4096])):
            assert len(part.hashes) <= 4096
            index.store(worker.id, part.tier, part.blocks)
    assert_known(index, workers)
    assert {worker.id: index.digest(worker.id) for worker in workers} == said
    assert list(index.audit())[-1] == []


def test_a_chain_that_grows_and_shrinks_block_by_block_is_runs_all_along() -> None:
    """As decode steps and evictions tell it; the head of a span is one from its second block on."""
    mirror, index, worker = CacheMirror(SIZE, SEED), PrefixIndex(), WorkerId("0" * 16)
    for depth in range(LENGTH):
        tokens = (DOCUMENTS[0][depth], 9)
        parent = NAMES[0][depth - 1] if depth else None
        stored = CacheStored((NAMES[0][depth],), parent, tokens, SIZE, "device", None, None, indexable=True)
        fold(index, worker, mirror.apply(stored))
        table = index._tables["device"]
        assert (sum(map(len, table.shards)), runs(table)) == (depth // SPAN_BLOCKS + 1, (depth + 15) // SPAN_BLOCKS)
    for depth in reversed(range(LENGTH)):
        fold(index, worker, mirror.apply(CacheRemoved((NAMES[0][depth],), "device")))
        assert (sum(map(len, table.shards)), runs(table)) == (-(-depth // SPAN_BLOCKS), (depth + 14) // SPAN_BLOCKS)
