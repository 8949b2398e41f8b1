"""Caches by brute force beside a PrefixIndex that is told of their changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st

from core.block_spans import SPAN_BLOCKS, Blocks, Piece, packed, single
from core.ids import WorkerId
from core.prompt import Prompt, hashes_from_bytes, hashes_to_bytes, tokens_to_bytes
from core.settings import TIERS
from projections.index.prefix_index import PrefixIndex

SIZE = 2
LENGTH = 40
BRANCHES = (0, 1, 3, 8, 17, 39)
"""Document i shares its first BRANCHES[i] blocks with document 0."""
SLOTS = 5
"""Places for workers; a restart puts a new one into a place."""


def tokens_of(document: int) -> list[int]:
    own = [0] * BRANCHES[document] + [document + 1] * (LENGTH - BRANCHES[document])
    return [token for block in own for token in (block, 7)]


DOCUMENTS = [tokens_of(document) for document in range(len(BRANCHES))]
HASHES = [hashes_from_bytes(Prompt(tokens_to_bytes(tokens), SIZE, 0).hashes()) for tokens in DOCUMENTS]
PLACES = {
    block: (depth % SPAN_BLOCKS, chain[depth - depth % SPAN_BLOCKS])
    for chain in HASHES
    for depth, block in enumerate(chain)
}
"""Where each block lies in its span, and the head of that."""
PARENTS = {block: parent for chain in HASHES for parent, block in zip([0, *chain], chain, strict=False)}


def told(blocks: list[int]) -> Blocks:
    """These blocks as a mirror tells of them: what follows on each other, within spans, is a piece."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and PLACES[block][0] and PARENTS[block] == runs[-1][-1]:
            runs[-1].append(block)
        else:
            runs.append([block])
    heads = ((*PLACES[run[0]], run) for run in runs)
    return packed(Piece(head.to_bytes(8, "little"), place, hashes_to_bytes(run)) for place, head, run in heads)


def prompt_of(document: int, tokens: int = LENGTH * SIZE) -> Prompt:
    return Prompt(tokens_to_bytes(DOCUMENTS[document][:tokens]), SIZE, 0)


class Change(NamedTuple):
    """What happens to the blocks [first, last) of a document in one place; a `clear` and a `restart` take all."""

    kind: str
    slot: int
    document: int
    first: int
    last: int
    tier: int


class Cache:
    """What one worker's engine holds, each block on its nearest tier."""

    def __init__(self) -> None:
        self.best: dict[int, int] = {}

    def change(self, change: Change) -> None:
        for block in HASHES[change.document][change.first : change.last]:
            if change.kind == "store":
                self.best[block] = min(change.tier, self.best.get(block, change.tier))
            else:
                self.best.pop(block, None)

    def closed(self) -> dict[int, int]:
        """What a mirror says: per block that a request can reach, the farthest tier among it and all before it."""
        found: dict[int, int] = {}
        for block, parent in PARENTS.items():  # parents come first
            if block in self.best and (not parent or parent in found):
                found[block] = max(self.best[block], found.get(parent, 0))
        return found

    def raw(self) -> dict[int, int]:
        """Everything, holes and all, as no mirror would say it."""
        return dict(self.best)


Said = Callable[[Cache], dict[int, int]]
"""What the index is told of a cache: block to tier."""


class Model:
    """The index, and what it should say."""

    def __init__(self, said: Said = Cache.closed) -> None:
        self.index = PrefixIndex()
        self.workers = [WorkerId(f"{slot:016x}") for slot in range(SLOTS)]
        self.caches: dict[WorkerId, Cache] = {worker: Cache() for worker in self.workers}
        self.gone: list[WorkerId] = []
        self._said = said

    def apply(self, change: Change) -> None:
        worker = self.workers[change.slot]
        if change.kind in {"clear", "restart"}:
            self.caches[worker] = Cache()
            self.index.drop(worker)
            if change.kind == "restart":
                self.gone.append(worker)
                del self.caches[worker]
                self.workers[change.slot] = heir = WorkerId(f"{len(self.gone):08x}{change.slot:08x}")
                self.caches[heir] = Cache()
            return
        cache = self.caches[worker]
        before = self._said(cache)
        cache.change(change)
        self._tell(worker, before, self._said(cache))

    def _tell(self, worker: WorkerId, before: dict[int, int], after: dict[int, int]) -> None:
        """The worker in the last place is of an older version, which does not say where blocks lie."""
        blocks = single if int(worker[-1], 16) == SLOTS - 1 else told
        for level, tier in enumerate(TIERS):
            self.index.store(worker, tier, blocks([b for b in after if after[b] == level != before.get(b)]))
            self.index.remove(worker, tier, blocks([b for b in before if before[b] == level != after.get(b)]))

    def held(self, worker: WorkerId, level: int) -> set[int]:
        """The worker's blocks on exactly that tier."""
        said = self._said(self.caches[worker]) if worker in self.caches else {}
        return {block for block, tier in said.items() if tier == level}

    def walked(self, worker: WorkerId, level: int, document: int, tokens: int) -> int:
        """How many first blocks of the prompt it holds on that tier or nearer ones, one after the other."""
        said = self._said(self.caches[worker])
        chain = HASHES[document][: max(0, tokens - 1) // SIZE]
        return next((i for i, block in enumerate(chain) if said.get(block, len(TIERS)) > level), len(chain))

    def overlaps(self, document: int, tokens: int) -> dict[WorkerId, tuple[int, ...]]:
        """What a walk over all blocks finds, per worker that holds any."""
        found = {
            worker: tuple(self.walked(worker, level, document, tokens) for level in range(len(TIERS)))
            for worker in self.caches
        }
        return {worker: depths for worker, depths in found.items() if any(depths)}

    def check_lookup(self, document: int, tokens: int) -> None:
        """The index finds what a walk finds."""
        assert self.index.overlaps(prompt_of(document, tokens)) == self.overlaps(document, tokens)

    def check_sets(self) -> None:
        """Blocks, counts and digests of each worker, those that are gone too, are what they should be."""
        anew = PrefixIndex()
        for worker in [*self.gone, *self.workers]:
            for level, tier in reversed(list(enumerate(TIERS))):
                expected = self.held(worker, level)
                assert self.index.held(worker, tier) == expected
                assert self.index.blocks(worker, tier) == len(expected)
                anew.store(worker, tier, single(sorted(expected)))
            assert self.index.digest(worker) == anew.digest(worker)
        assert self.index.contents() == anew.contents()


documents = st.integers(0, len(DOCUMENTS) - 1)
places = st.integers(0, LENGTH)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    kind = draw(st.sampled_from(("store", "store", "store", "store", "remove", "remove", "remove", "clear", "restart")))
    tail = draw(st.booleans())
    first, last = sorted((draw(places), LENGTH if tail else draw(places)))
    if kind == "store" and draw(st.booleans()):
        first = 0
    tier = draw(st.sampled_from((0, 0, 0, 1, 2, 3)))
    return Change(kind, draw(st.integers(0, SLOTS - 1)), draw(documents), first, last, tier)
