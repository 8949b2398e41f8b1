"""Blocks that the simulated engine holds for others, for a time."""

from __future__ import annotations

from typing import NamedTuple

from actors.engines.simulated.block_pool import BlockPool, PoolBlock
from core.ids import RequestId


class _Hold(NamedTuple):
    blocks: list[PoolBlock]
    """None once they were fetched."""
    until_us: int


class BlockHolds:
    """Held blocks have a user, so that nothing is computed into them. After that anything may be."""

    def __init__(self, keep_us: int) -> None:
        self.expired = 0
        """Requests with blocks that were not fetched in time."""
        self.due_us: int | None = None
        """When the next ones end."""
        self._keep_us = keep_us
        self._holds: dict[RequestId, _Hold] = {}
        """In the order in which they end: all are held equally long."""

    def __repr__(self) -> str:
        return f"<BlockHolds {self.held} held, {self.expired} expired>"

    @property
    def held(self) -> int:
        """Requests whose blocks are held now. O(prefills of the last `keep_ms`)."""
        return sum(bool(hold.blocks) for hold in self._holds.values())

    def until_us(self, id: RequestId) -> int | None:
        """Until when these are held, or would have been if they had not been fetched before; None if they are not."""
        hold = self._holds.get(id)
        return None if hold is None else hold.until_us

    def add(self, id: RequestId, blocks: list[PoolBlock], now_us: int) -> tuple[int, ...]:
        """These blocks, which have a user for it, are held from now on; returns their ids."""
        assert id not in self._holds
        self._holds[id] = _Hold(blocks, now_us + self._keep_us)
        self._set_due()
        return tuple(block.id for block in blocks)

    def free(self, id: RequestId, pool: BlockPool, *, fetched: bool) -> None:
        """They are held no more; that they were fetched in time is remembered for as long as they would have been."""
        hold = self._holds.get(id)
        if hold is None:
            return
        pool.release(hold.blocks)
        if fetched:
            self._holds[id] = hold._replace(blocks=[])
        else:
            del self._holds[id]
            self._set_due()

    def expire(self, now_us: int, pool: BlockPool) -> None:
        """Those whose time is over are held no more."""
        while self.due_us is not None and self.due_us <= now_us:
            hold = self._holds.pop(next(iter(self._holds)))
            self._set_due()
            pool.release(hold.blocks)
            self.expired += bool(hold.blocks)

    def _set_due(self) -> None:
        self.due_us = next(iter(self._holds.values())).until_us if self._holds else None
