"""Blocks as events of the log: few, chained, none too large for a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from actors.mirrored_block import UNREACHABLE, MirroredBlock
from core.events import BlocksRemoved, BlocksStored, CacheRestated, Event
from core.prompt import hashes_to_bytes
from core.settings import TIERS

T = TypeVar("T")

HASH_BYTES = 8
EVENT_HASHES_MAX = 8192
"""Hashes in one event: 64 KiB, so that it fits into a message."""


def events_of(moved: dict[MirroredBlock, int]) -> list[Event]:
    """What to say so that a reader sees each of these blocks at its level now; they come with their levels before.

    Stored first, in the order given (prefix order), then removed, slow tiers before fast ones: after each single
    event the blocks up to any level are closed under prefixes.
    """
    return [*_stored(moved), *_removed(moved)]


def merged(events: Iterable[Event]) -> list[Event]:
    """The same story in fewer events: neighbours of one tier are one where the second goes on behind the first."""
    runs: list[list[Event]] = []
    size = 0
    for event in events:
        added = len(event.hashes) // HASH_BYTES if isinstance(event, BlocksStored | BlocksRemoved) else 0
        if runs and size + added <= EVENT_HASHES_MAX and _goes_on(runs[-1][-1], event):
            runs[-1].append(event)
            size += added
        else:
            runs.append([event])
            size = added
    return [_joined(run) for run in runs]


def restated(hashes_by_tier: dict[str, list[int]], part_bytes_max: int) -> list[CacheRestated]:
    """The whole cache in parts of one tier each; one empty part if it is empty."""
    assert part_bytes_max >= HASH_BYTES
    size = part_bytes_max // HASH_BYTES
    found = [(tier, part) for tier, hashes in hashes_by_tier.items() for part in _parts(hashes, size)]
    found = found or [(TIERS[0], [])]
    return [
        CacheRestated(part=i, parts=len(found), hashes=hashes_to_bytes(hashes), tier=tier)
        for i, (tier, hashes) in enumerate(found)
    ]


def _stored(moved: dict[MirroredBlock, int]) -> list[BlocksStored]:
    runs: list[list[MirroredBlock]] = []
    last = None
    for block, old in moved.items():
        if block.reach in (UNREACHABLE, old):
            continue
        if last is None or block.parent is not last or block.reach != last.reach or len(runs[-1]) == EVENT_HASHES_MAX:
            runs.append([])
        runs[-1].append(block)
        last = block
    return [_stored_run(run) for run in runs]


def _stored_run(run: list[MirroredBlock]) -> BlocksStored:
    parent = run[0].parent
    assert parent is not None
    return BlocksStored(hashes=_column(run), parent=parent.hash, tier=TIERS[run[0].reach])


def _removed(moved: dict[MirroredBlock, int]) -> list[BlocksRemoved]:
    by_level: dict[int, list[MirroredBlock]] = {}
    for block, old in moved.items():
        if old not in (UNREACHABLE, block.reach):
            by_level.setdefault(old, []).append(block)
    return [
        BlocksRemoved(hashes=_column(part), tier=TIERS[level])
        for level in sorted(by_level, reverse=True)
        for part in _parts(by_level[level][::-1], EVENT_HASHES_MAX)
    ]


def _column(blocks: list[MirroredBlock]) -> bytes:
    return hashes_to_bytes([block.hash for block in blocks if block.hash is not None])


def _parts(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _goes_on(first: Event, second: Event) -> bool:
    if isinstance(first, BlocksStored) and isinstance(second, BlocksStored):
        last = int.from_bytes(first.hashes[-HASH_BYTES:], "little")
        return first.tier == second.tier and second.parent == last
    return isinstance(first, BlocksRemoved) and isinstance(second, BlocksRemoved) and first.tier == second.tier


def _joined(run: list[Event]) -> Event:
    first = run[0]
    hashes = b"".join(event.hashes for event in run if isinstance(event, BlocksStored | BlocksRemoved))
    if isinstance(first, BlocksStored):
        return BlocksStored(hashes=hashes, parent=first.parent, tier=first.tier)
    if isinstance(first, BlocksRemoved):
        return BlocksRemoved(hashes=hashes, tier=first.tier)
    return first
