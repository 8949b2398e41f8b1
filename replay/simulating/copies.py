"""Copies: what a simulated engine's cache holds, by the names of its blocks, and what the log must hear of a change.

A real worker's mirror (`actors.kv_cache.cache_mirror`) makes hashes of token ids; here the engine's names are the
hashes already. Its blocks are closed under prefixes by themselves: of one sequence the last block is let go first.
"""

from __future__ import annotations

from typing import assert_never

from actors.engines.engine import CacheChange, CacheEmptied, CacheGap, CacheRemoved, CacheStored
from actors.kv_cache.cache_events import EVENT_HASHES_MAX
from core.events import BlocksRemoved, BlocksStored, CacheCleared, Event
from core.prompt import hashes_to_bytes


class Copies:
    """Counts the copies of each block; only the first and the last are told."""

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Copies of {len(self._copies)} blocks>"

    def __len__(self) -> int:
        return len(self._copies)

    def overlap(self, hashes: list[int]) -> int:
        """How many of a prompt's blocks are here, from its first one on."""
        copies = self._copies
        return next((depth for depth, name in enumerate(hashes) if name not in copies), len(hashes))

    def apply(self, changes: list[CacheChange]) -> list[Event]:
        """What readers must hear of these changes, in their order; removals that follow each other are one event.
        Some 0.2 us per block."""
        found: list[Event] = []
        gone: list[int] = []
        for change in changes:
            if isinstance(change, CacheRemoved):
                gone += self._removed(change)
                continue
            _tell_gone(gone, found)
            match change:
                case CacheStored():
                    found += self._stored(change)
                case CacheEmptied() | CacheGap():
                    self._copies.clear()
                    found.append(CacheCleared(reason="the engine emptied it"))
                case _:
                    assert_never(change)
        _tell_gone(gone, found)
        return found

    def _stored(self, change: CacheStored) -> list[Event]:
        copies, parent, names = self._copies, change.parent, change.blocks
        found: list[Event] = []
        run: list[int] = []
        if len(names) <= EVENT_HASHES_MAX and copies.keys().isdisjoint(names) and len(set(names)) == len(names):
            copies.update(dict.fromkeys(names, 1))  # as nearly always: a quarter of the price
            _tell_stored([*names], parent, found)
            return found
        for name in names:
            count = copies.get(name, 0)
            copies[name] = count + 1
            if count or len(run) == EVENT_HASHES_MAX:
                _tell_stored(run, parent, found)
                parent, run = run[-1] if run else parent, []
            if count:
                parent = name
            else:
                run.append(name)
        _tell_stored(run, parent, found)
        return found

    def _removed(self, change: CacheRemoved) -> list[int]:
        copies, gone = self._copies, []
        for name in change.blocks:
            count = copies.pop(name)
            if count == 1:
                gone.append(name)
            else:
                copies[name] = count - 1
        return gone


def _tell_stored(run: list[int], parent: int | None, found: list[Event]) -> None:
    if run:
        found.append(BlocksStored(hashes=hashes_to_bytes(run), parent=parent))


def _tell_gone(gone: list[int], found: list[Event]) -> None:
    found += [
        BlocksRemoved(hashes=hashes_to_bytes(gone[start : start + EVENT_HASHES_MAX]))
        for start in range(0, len(gone), EVENT_HASHES_MAX)
    ]
    gone.clear()
