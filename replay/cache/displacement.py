"""DisplacementTable: the tokens that groups of requests lost to each other in caches.

The owner of a block (`BlockOwners`) loses it when the worker removes it; the owner of the block that takes its room
(`FreedRoom`) took it. So each removed block has one loser and one taker, or a remainder that is named.
"""

from __future__ import annotations

import msgspec

from core.ids import WorkerId
from replay.cache.block_owners import NO_OWNER, BlockOwners
from replay.cache.copy_fold import REMOVED, CacheScope, Copies, WorkerCaches
from replay.cache.freed_room import FreedRoom
from replay.recording.request_history import RequestHistory

Loss = tuple[int, int]
"""The group of a removed block, and the tokens that it loses: 0 for a block that the worker keeps on another tier, and
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
    """A `CopyObserver`. A block belongs to the group of the request that owns it."""

    def __init__(self, caches: WorkerCaches, requests: RequestHistory) -> None:
        """The caches are those that the copies come to and go from."""
        self._owners = BlockOwners(requests)
        self.lost_unowned = 0
        """Tokens of removed blocks without an owner."""
        self.counts = False
        """True from where removals count."""
        self._caches = caches
        self._room: FreedRoom[Loss] = FreedRoom()
        self._numbers: dict[str, int] = {}
        self._groups: list[DisplacedTokens] = []
        self._group_of = {NO_OWNER: NO_OWNER}
        """By decision."""
        self._now_ms = 0

    def __repr__(self) -> str:
        return f"<DisplacementTable of {len(self._groups)} groups>"

    @property
    def forgotten(self) -> int:
        """Blocks whose owner was forgotten, beyond a bound."""
        return self._owners.forgotten

    def use(self, group: str, worker: WorkerId, number: int, hashes: list[int]) -> None:
        """The decision of this number sent this prompt, of a request of this group, to the worker."""
        at = self._numbers.get(group)
        if at is None:
            at = self._numbers[group] = len(self._groups)
            self._groups.append(DisplacedTokens())
        self._group_of[number] = at
        self._owners.use(worker, number, hashes)

    def enter(self, stream: int, seq: int, time_ms: int) -> None:  # noqa: ARG002 - of the protocol
        """Changes from now on were stored at that time."""
        self._now_ms = time_ms

    def on_joined(self, worker: WorkerId, scope: CacheScope) -> None:
        """An empty cache has nothing to lose."""

    def on_stored(self, copies: Copies) -> None:
        """The stored blocks take room that was freed."""
        takers = self._owners.store(copies)
        for (loser, tokens), taker in zip(self._room.fill(copies), takers, strict=False):
            self._displace(loser, self._group_of[taker], tokens)

    def on_gone(self, copies: Copies, how: str) -> None:
        """Removed blocks free their room; other ends are no loss to others."""
        if how != REMOVED:
            self._owners.take(copies, how, self._now_ms)
            self._leave_empty(self._room.end(copies.worker))
            return
        kept = self._caches.held(copies.worker, copies.blocks)
        gone = copies._replace(blocks=[block for block in copies.blocks if block not in kept]) if kept else copies
        tokens, losers = copies.scope[1] if self.counts else 0, iter(self._owners.take(gone, how, self._now_ms))
        self._room.free(
            copies,
            [NO_LOSS if block in kept else (self._group_of[next(losers)], tokens) for block in copies.blocks],
        )

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
