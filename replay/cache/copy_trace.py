"""CopyTrace: the copies of one prompt's blocks, and all that was stored beside them, in the order of the log."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from core.ids import WorkerId
from replay.cache.block_owners import BlockOwners
from replay.cache.copy_fold import REMOVED, CacheScope, Copies, WorkerCaches
from replay.cache.freed_room import FreedRoom
from replay.recording.request_history import RequestHistory

STORED = "stored"


class CopyChange(NamedTuple):
    """One copy of a block of the prompt that was stored, or went."""

    order: int
    """Of the change among all changes."""
    stream: int
    seq: int
    """The message of the kv stream."""
    time_ms: int
    """When the log stored that."""
    worker: WorkerId
    how: str
    """`STORED`, or the way in which it went."""
    owner: int
    """The decision whose request used the block there last; NO_OWNER if none is known."""


class CopyTrace:
    """A `CopyObserver`. Owners are the numbers of decisions. 32 bytes per store on workers that held some of the
    prompt, and some 150 bytes per copy of a block of the prompt."""

    def __init__(
        self, caches: WorkerCaches, requests: RequestHistory, scope: CacheScope, prompt: Sequence[int]
    ) -> None:
        """The caches are those that the copies come to and go from; `prompt` has the block hashes."""
        self.changes: list[list[CopyChange]] = [[] for _ in prompt]
        """Of each block of the prompt."""
        self.takers: dict[tuple[int, int], int] = {}
        """By block and order of its removal: the owner of the block that took its room."""
        self.order = 0
        """Of the last change."""
        self._caches = caches
        self._scope = scope
        self._places = {block: place for place, block in enumerate(prompt)}
        self._owners = BlockOwners(requests)
        self._room: FreedRoom[tuple[int, int] | None] = FreedRoom()
        self._stores: dict[WorkerId, array[int]] = {}
        """By worker: order, time, owner and number of blocks of each store, one behind the other."""
        self._at = (0, 0, 0)

    def __repr__(self) -> str:
        return f"<CopyTrace of {len(self._places)} blocks, {self.order} changes>"

    @property
    def forgotten(self) -> int:
        """Blocks whose owner was forgotten; 0 if the answers are exact."""
        return self._owners.forgotten

    def use(self, worker: WorkerId, number: int, hashes: Sequence[int]) -> None:
        """The decision of this number sent this prompt to the worker."""
        self._owners.use(worker, number, hashes)
        if hashes and hashes[0] in self._places:  # what is stored until its first copy is there counts, too
            self._stores.setdefault(worker, array("q"))

    def enter(self, stream: int, seq: int, time_ms: int) -> None:
        """Changes from now on stand there."""
        self._at = stream, seq, time_ms

    def on_joined(self, worker: WorkerId, scope: CacheScope) -> None:
        """An empty cache has no copies."""

    def on_stored(self, copies: Copies) -> None:
        """Copies of the prompt's blocks are noted, and so is what took the room of earlier ones."""
        self.order += 1
        owners = self._owners.store(copies)
        for removal, owner in zip(self._room.fill(copies), owners, strict=False):
            if removal is not None:
                self.takers[removal] = owner
        found = self._found(copies)
        if found or copies.worker in self._stores:
            stores = self._stores.setdefault(copies.worker, array("q"))
            for owner, blocks in groupby(owners):
                stores.extend((self.order, self._at[2], owner, sum(1 for _ in blocks)))
        self._note(copies, found, owners, STORED)

    def on_gone(self, copies: Copies, how: str) -> None:
        """Ends of copies of the prompt's blocks are noted."""
        self.order += 1
        kept = self._caches.held(copies.worker, copies.blocks)
        gone = copies._replace(blocks=[block for block in copies.blocks if block not in kept]) if kept else copies
        owners, found = self._owners.take(gone, how, self._at[2]), self._found(gone)
        self._note(gone, found, owners, how)
        if how != REMOVED:
            self._room.end(copies.worker)
            return
        labels: list[tuple[int, int] | None] = [None] * len(copies.blocks)
        if found:
            places = self._places
            labels = [
                (places[block], self.order) if block in places and block not in kept else None
                for block in copies.blocks
            ]
        self._room.free(copies, labels)

    def stored_between(self, worker: WorkerId, after_ms: int, order: int) -> Counter[int]:
        """The number of blocks that were stored on the worker later than that time and before that change, by owner.
        O(stores there)."""
        stores, counts = self._stores.get(worker, array("q")), Counter[int]()
        for at in range(0, len(stores), 4):
            if stores[at] >= order:
                break
            if stores[at + 1] > after_ms:
                counts[stores[at + 2]] += stores[at + 3]
        return counts

    def _found(self, copies: Copies) -> bool:
        return copies.scope == self._scope and not self._places.keys().isdisjoint(copies.blocks)

    def _note(self, copies: Copies, found: bool, owners: Sequence[int], how: str) -> None:
        if not found:
            return
        for block, owner in zip(copies.blocks, owners, strict=True):
            place = self._places.get(block)
            if place is not None:
                self.changes[place].append(CopyChange(self.order, *self._at, copies.worker, how, owner))
