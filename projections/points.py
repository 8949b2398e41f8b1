"""Points: where a fold stood after each of its last messages, so that replicas can compare what they had there."""

from __future__ import annotations

from typing import NamedTuple

from core.ids import Epoch, StreamSeq

POINTS_KEPT = 4096
"""Messages of one stream; a power of two, so that a place in the ring is a mask away."""

_MASK = POINTS_KEPT - 1

Row = tuple[Epoch, StreamSeq, int, bytes, bool]
"""A point before anybody asks for it: a plain tuple costs a third of a named one, and few are ever asked for."""


class Point(NamedTuple):
    """One stream's fold right after the message at `seq`."""

    epoch: Epoch
    seq: StreamSeq
    digest: int
    """Of the stream's projection."""
    head: bytes
    """Chain digest of the message at `seq`."""
    complete: bool
    """Whether every source was known: only then may others be expected to have the same digest."""


class Points:
    """A ring of the last POINTS_KEPT points of one stream."""

    def __init__(self) -> None:
        self._ring: list[Row | None] = [None] * POINTS_KEPT

    def note(self, row: Row) -> None:
        """The fold stands there now. O(1)."""
        self._ring[row[1] & _MASK] = row

    def at(self, seq: StreamSeq) -> Point | None:
        """The point after that message; None if it is too long ago or was never folded here."""
        row = self._ring[seq & _MASK]
        return Point(*row) if row is not None and row[1] == seq else None
