"""DisplacementTable: the tokens that groups of requests lost to each other in caches.

The owner of a block (`BlockOwners`) loses it when the worker removes it; the owner of the block that takes its room
(`FreedRoom`) took it. So each removed block has one loser and one taker, or a remainder that is named.
"""

from __future__ import annotations

import msgspec

from core.ids import WorkerId
from replay.cache.block_owners import NO_OWNER, OWNED_MAX, BlockOwners
from replay.cache.copy_fold import REMOVED, CacheScope, Copies, WorkerCaches
from replay.cache.freed_room import FreedRoom

Loss = tuple[int, int]
"""The owner of a removed block, and the tokens that it loses: 0 for a block that the worker keeps on another tier, and
for one that was removed before the count began."""
NO_LOSS: Loss = (NO_OWNER, 0)


class DisplacedTokens(msgspec.Struct, kw_only=True):
    """Tokens of blocks that workers removed, of one group or of all. Over all groups `lost_to_others` and
    `took_from_others` are equal."""

    lost_to_others: int = 0
    """Blocks of another group took the room."""
    lost_to_own: int = 0
    """Blocks of the same group took the room."""
    lost_to_unknown: int = 0
    """Blocks without an owner took the room, or it is still empty."""
    took_from_others: int = 0
    took_from_unknown: int = 0
    """The removed blocks had no owner."""

    @property
    def lost(self) -> int:
        """Tokens of all removed blocks of the group."""
        return self.lost_to_others + self.lost_to_own + self.lost_to_unknown

    def add(self, other: DisplacedTokens) -> None:
        """The other sums are added."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class DisplacementTable:
    """A `CopyObserver`. Owners are groups of requests, by their names."""

    def __init__(self, caches: WorkerCaches, owned_max: int = OWNED_MAX) -> None:
        """The caches are those that the copies come to and go from."""
        self.owners = BlockOwners(owned_max)
        self.lost_unowned = 0
        """Tokens of removed blocks without an owner, whatever took their room."""
        self.counts = False
        """True from where removals count."""
        self._caches = caches
        self._room: FreedRoom[Loss] = FreedRoom()
        self._numbers: dict[str, int] = {}
        self._groups: list[DisplacedTokens] = []

    def __repr__(self) -> str:
        return f"<DisplacementTable of {len(self._groups)} groups>"

    def use(self, group: str, worker: WorkerId, hashes: list[int]) -> None:
        """A request of this group, with this prompt, was sent to the worker."""
        number = self._numbers.get(group)
        if number is None:
            number = self._numbers[group] = len(self._groups)
            self._groups.append(DisplacedTokens())
        self.owners.use(worker, number, hashes)

    def enter(self, stream: int, seq: int, time_ms: int) -> None:
        """Places do not count."""

    def on_joined(self, worker: WorkerId, scope: CacheScope) -> None:
        """An empty cache has nothing to lose."""

    def on_stored(self, copies: Copies) -> None:
        """The stored blocks take room that was freed."""
        takers = self.owners.store(copies)
        for (loser, tokens), taker in zip(self._room.fill(copies), takers, strict=False):
            self._displace(loser, taker, tokens)

    def on_gone(self, copies: Copies, how: str) -> None:
        """Removed blocks free their room; other ends are no loss to others."""
        if how != REMOVED:
            self.owners.take(copies, how)
            self._leave_empty(self._room.end(copies.worker))
            return
        kept = self._caches.held(copies.worker, copies.blocks)
        tokens = copies.scope[1] if self.counts else 0
        if not kept:
            losses = [(owner, tokens) for owner in self.owners.take(copies, how)]
        else:
            gone = copies._replace(blocks=[block for block in copies.blocks if block not in kept])
            owners = dict(zip(gone.blocks, self.owners.take(gone, how), strict=True))
            losses = [(owners[block], tokens) if block in owners else NO_LOSS for block in copies.blocks]
        self._room.free(copies, losses)

    def finish(self) -> None:
        """Room that is still empty counts as lost to unknown."""
        self._leave_empty(self._room.end_all())

    def rows(self) -> dict[str, DisplacedTokens]:
        """The sums of each group."""
        return dict(zip(self._numbers, self._groups, strict=True))

    def total(self) -> DisplacedTokens:
        """The sums of all groups."""
        total = DisplacedTokens()
        for each in self._groups:
            total.add(each)
        return total

    def _leave_empty(self, losses: list[Loss]) -> None:
        for loser, tokens in losses:
            self._displace(loser, NO_OWNER, tokens)

    def _displace(self, loser: int, taker: int, tokens: int) -> None:
        groups = self._groups
        if loser == NO_OWNER:
            self.lost_unowned += tokens
            if taker != NO_OWNER:
                groups[taker].took_from_unknown += tokens
        elif taker == NO_OWNER:
            groups[loser].lost_to_unknown += tokens
        elif taker == loser:
            groups[loser].lost_to_own += tokens
        else:
            groups[loser].lost_to_others += tokens
            groups[taker].took_from_others += tokens
