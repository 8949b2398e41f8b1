"""Cache events are merged where they follow each other, and cut so that each fits into a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from core.block_spans import SPAN_BLOCKS, Blocks, Piece, packed, unpacked
from core.events import BlocksEvent, BlocksRemoved, BlocksStored, Event

HASH_BYTES = 8
EVENT_HASHES_MAX = 8192
"""Hashes in one event: 64 KiB, and as much again for heads at the very most, so that it fits into a message."""


def merge_events(events: Iterable[Event]) -> list[Event]:
    """The same changes in fewer events: neighbours of one tier become one where the second follows the first."""
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


def split_pieces(pieces: Iterable[Piece], hashes_max: int) -> Iterator[Blocks]:
    """The pieces in order, in groups of at most that many hashes; a piece that is too long is cut."""
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
    """Adjacent pieces of one span become one; `way` is 1 if they run towards the span's end, -1 towards its start."""
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
