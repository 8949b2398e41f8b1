"""Blocks as events of the log: few, chained, none too large for a message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from msgspec.structs import replace

from actors.kv_cache.cached_block import UNREACHABLE, CachedBlock
from core.block_spans import SPAN_BLOCKS, Blocks, Piece, chain_pieces, packed, unpacked
from core.events import BlocksEvent, BlocksRemoved, BlocksStored, CacheRestated, Event
from core.prompt import hashes_to_bytes
from core.settings import TIERS

HASH_BYTES = 8
EVENT_HASHES_MAX = 8192
"""Hashes in one event: 64 KiB, and as much again for heads at the very most, so that it fits into a message."""


def events_of(moved: dict[CachedBlock, int]) -> list[Event]:
    """What to say so that a reader sees each of these blocks at its level now; they come with their levels before.

    Stored first, in the order given (prefix order), then removed, slow tiers before fast ones: after each single
    event the blocks up to any level are closed under prefixes.
    """
    return [*_stored(moved), *_removed(moved)]


def merge_events(events: Iterable[Event]) -> list[Event]:
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


def restatement_events(reported: Mapping[str, Iterable[CachedBlock]], part_bytes_max: int) -> list[CacheRestated]:
    """The whole cache, by tier, in parts of one tier each; one empty part if it is empty."""
    assert part_bytes_max >= HASH_BYTES
    size = part_bytes_max // HASH_BYTES
    found = [(tier, part) for tier, blocks in reported.items() for part in _parts(_by_span(blocks), size)]
    found = found or [(TIERS[0], Blocks(b""))]
    return [
        CacheRestated(part=i, parts=len(found), hashes=part.hashes, pieces=part.pieces, heads=part.heads, tier=tier)
        for i, (tier, part) in enumerate(found)
    ]


def _stored(moved: dict[CachedBlock, int]) -> list[BlocksStored]:
    runs: list[list[CachedBlock]] = []
    last = None
    for block, old in moved.items():
        if block.reach in (UNREACHABLE, old):
            continue
        if last is None or block.parent is not last or block.reach != last.reach or len(runs[-1]) == EVENT_HASHES_MAX:
            runs.append([])
        runs[-1].append(block)
        last = block
    return [_stored_run(run) for run in runs]


def _stored_run(run: list[CachedBlock]) -> BlocksStored:
    first = run[0]
    assert first.parent is not None
    return BlocksStored(
        hashes=_column(run),
        pieces=chain_pieces(first.place, len(run)),
        heads=_head(first) if first.place else b"",
        parent=first.parent.hash,
        tier=TIERS[first.reach],
    )


def _removed(moved: dict[CachedBlock, int]) -> list[BlocksRemoved]:
    by_level: dict[int, list[CachedBlock]] = {}
    for block, old in moved.items():
        if old not in (UNREACHABLE, block.reach):
            by_level.setdefault(old, []).append(block)
    return [
        BlocksRemoved(hashes=part.hashes, pieces=part.pieces, heads=part.heads, tier=TIERS[level])
        for level in sorted(by_level, reverse=True)
        for part in _parts([*_pieces(by_level[level])][::-1], EVENT_HASHES_MAX)
    ]


def _by_span(blocks: Iterable[CachedBlock]) -> Iterator[Piece]:
    """A piece per span, or one per block where a span forks."""
    spans: dict[int, list[CachedBlock]] = defaultdict(list)
    for block in blocks:
        spans[block.head].append(block)
    for span in spans.values():
        span.sort(key=attrgetter("place"))
        yield from _pieces(span)


def _pieces(blocks: Iterable[CachedBlock]) -> Iterator[Piece]:
    """Blocks that follow each other in the order given are one piece, within spans."""
    run: list[CachedBlock] = []
    for block in blocks:
        if run and (not block.place or block.parent is not run[-1]):
            yield Piece(_head(run[0]), run[0].place, _column(run))
            run = []
        run.append(block)
    if run:
        yield Piece(_head(run[0]), run[0].place, _column(run))


def _parts(pieces: Iterable[Piece], hashes_max: int) -> Iterator[Blocks]:
    part: list[Piece] = []
    left = hashes_max
    for piece in (short for whole in pieces for short in _cut(whole, hashes_max)):
        blocks = piece.end - piece.place
        if blocks > left:
            yield packed(part)
            part, left = [], hashes_max
        part.append(piece)
        left -= blocks
    if part:
        yield packed(part)


def _cut(piece: Piece, hashes_max: int) -> Iterator[Piece]:
    head, place, hashes = piece
    if len(hashes) <= hashes_max * HASH_BYTES:
        yield piece
        return
    for first in range(0, piece.end - place, min(hashes_max, SPAN_BLOCKS)):
        column = hashes[first * HASH_BYTES : (first + hashes_max) * HASH_BYTES]
        yield Piece(head, place + first, column)


def _column(blocks: list[CachedBlock]) -> bytes:
    return hashes_to_bytes([block.hash for block in blocks if block.hash is not None])


def _head(block: CachedBlock) -> bytes:
    return block.head.to_bytes(HASH_BYTES, "little")


def _goes_on(first: Event, second: Event) -> bool:
    if not isinstance(first, BlocksEvent) or not isinstance(second, BlocksEvent):
        return False
    if bool(first.pieces) != bool(second.pieces):
        return False
    if isinstance(first, BlocksStored) and isinstance(second, BlocksStored):
        last = int.from_bytes(first.hashes[-HASH_BYTES:], "little")
        return first.tier == second.tier and second.parent == last
    return isinstance(first, BlocksRemoved) and isinstance(second, BlocksRemoved) and first.tier == second.tier


def _joined(run: list[Event]) -> Event:
    first = run[0]
    if len(run) == 1 or not isinstance(first, BlocksEvent):
        return first
    events = [event for event in run if isinstance(event, BlocksEvent)]
    blocks = Blocks(b"".join([event.hashes for event in events]))
    if first.pieces:
        pieces = [piece for event in events for piece in unpacked(event.blocks)]
        blocks = packed(_together(pieces, 1 if isinstance(first, BlocksStored) else -1))
    return replace(first, hashes=blocks.hashes, pieces=blocks.pieces, heads=blocks.heads)


def _together(pieces: Sequence[Piece], way: int) -> list[Piece]:
    """Pieces of one span whose places follow each other, towards the end (1) or the start (-1) of it, are one."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last is not None and piece.head == last.head and way > 0 and last.end == piece.place:
            found[-1] = Piece(last.head, last.place, last.hashes + piece.hashes)
        elif last is not None and piece.head == last.head and way < 0 and piece.end == last.place:
            found[-1] = Piece(piece.head, piece.place, piece.hashes + last.hashes)
        else:
            found.append(piece)
    return found
