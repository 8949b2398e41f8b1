"""CacheReport: prompt tokens that came from a cache, and those that did not, by cause; in all and by group."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from replay.cache.block_history import Cause
from replay.cache.displacement import DisplacedTokens

BY_CAUSE, BY_SESSION, BY_TENANT, BY_WORKER, BY_HOUR = "cause", "session", "tenant", "worker", "hour"
GROUPINGS = (BY_CAUSE, BY_SESSION, BY_TENANT, BY_WORKER, BY_HOUR)
"""Groups of a report's rows; `cause` has no rows beside the total."""
DISPLACING = (BY_SESSION, BY_TENANT)
"""Groups that push each other's blocks out of caches."""
DECLINED, WORKER_LOST, NO_TOKEN, UNDER_WAY, REMOTE, UNREAD, NOT_COUNTED = (
    "declined",
    "worker_lost",
    "no_first_token",
    "under_way",
    "remote",
    "unread",
    "not_counted",
)
"""Attempts that are counted apart: the worker declined it; the worker was lost before the first token; it ended
otherwise before that; it had none when the log ends; a prefill worker computed its prompt; the log does not have its
prompt, or its replica's view; its engine did not say how much its cache had."""


class CacheSums(msgspec.Struct, kw_only=True):
    """Sums over served attempts, in prompt tokens. The last nine add up to `prompt_tokens`."""

    attempts: int = 0
    prompt_tokens: int = 0
    achieved: int = 0
    """Whole blocks that the engine took from its cache, by its own word."""
    sent_elsewhere: int = 0
    """A live worker held them, and another one got the request."""
    replica_behind: int = 0
    """The log had their store, and the replica had not read it."""
    evicted: int = 0
    """No worker held them any more, and the copy that went last was evicted."""
    worker_lost: int = 0
    """The same, and that copy ended with its worker, or was on a worker that the replica knew as failing."""
    unknown: int = 0
    """The same, and messages of its worker are missing."""
    not_yet_stored: int = 0
    """An earlier request had them, and no worker had stored them."""
    cold: int = 0
    """No earlier request had them."""
    always_computed: int = 0
    """Tokens behind the last block that a cache can give: an engine always computes the last token of a prompt."""

    @property
    def lost(self) -> int:
        """Tokens that were available and were computed."""
        return self.sent_elsewhere + self.replica_behind + self.evicted + self.worker_lost + self.unknown

    @property
    def available(self) -> int:
        """Tokens of blocks that some cache had held before."""
        return self.achieved + self.lost

    @property
    def not_available(self) -> int:
        """All other tokens."""
        return self.not_yet_stored + self.cold + self.always_computed

    def add(self, other: CacheSums) -> None:
        """The other sums are added."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


FIELDS = {
    Cause.ELSEWHERE: "sent_elsewhere",
    Cause.BEHIND: "replica_behind",
    Cause.EVICTED: "evicted",
    Cause.LOST: "worker_lost",
    Cause.UNKNOWN: "unknown",
    Cause.NOT_YET: "not_yet_stored",
    Cause.COLD: "cold",
}
"""The sum that has the blocks of a cause."""


class WorstTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt of a group that lost most."""

    request: str
    attempt: int
    seq: int
    """Of the message with its decision, in the routing stream."""
    lost: int
    """Tokens."""


class CacheRow(msgspec.Struct, kw_only=True):
    """One group."""

    name: str
    sums: CacheSums = msgspec.field(default_factory=CacheSums)
    worst: WorstTurn | None = None
    """None if it lost nothing; the first one of equal ones."""
    displaced: DisplacedTokens | None = None
    """Blocks of the group that workers removed, and those that made room for its own; None but by session and
    tenant."""

    def add(self, sums: CacheSums, turn: WorstTurn) -> None:
        """One more attempt."""
        self.sums.add(sums)
        if turn.lost > (self.worst.lost if self.worst is not None else 0):
            self.worst = turn


class DisplacementRemainder(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the displaced tokens that stand in no row."""

    unlisted: DisplacedTokens
    """Of groups without an attempt that counts. All rows and these are the total."""
    lost_unowned: int
    """Tokens of removed blocks that no request in the log had used."""
    forgotten: int
    """Blocks whose owner was forgotten, beyond a bound; 0 if the sums are exact."""


class CacheReport(msgspec.Struct, kw_only=True):
    """The whole answer."""

    by: str
    """Of GROUPINGS."""
    total: CacheRow
    rows: list[CacheRow]
    """Groups: hours in their order, others by what they lost, the most first."""
    apart: dict[str, int]
    """Attempts that are in no sum, by the reason."""
    first_ms: int
    """When the log stored the first decision that counts, and the last; 0 without one."""
    last_ms: int
    history_from_ms: int
    """Caches before this time are not known, but for the blocks that they held then; 0 if the log has its start."""
    gaps: int
    """Gaps in the middle of the log."""
    blocks_max: int
    """The answer is exact up to so many blocks that are gone."""
    forgotten: int
    """Blocks beyond that which were forgotten: they count as cold where they were asked for again."""
    remainder: DisplacementRemainder | None = None
    """None but by session and tenant."""

    @property
    def exact(self) -> bool:
        """True if no block was forgotten."""
        return not self.forgotten


class GroupTable:
    """The rows of a report in the making."""

    def __init__(self, by: str) -> None:
        self.by = by
        self.total = CacheRow(name="")
        self._rows: dict[str, CacheRow] = {}

    def __repr__(self) -> str:
        return f"<GroupTable of {len(self._rows)} rows by {self.by}>"

    def add(self, name: str, sums: CacheSums, turn: WorstTurn) -> None:
        """One more attempt, of that group."""
        self.total.add(sums, turn)
        if self.by != BY_CAUSE:
            row = self._rows.get(name)
            if row is None:
                row = self._rows[name] = CacheRow(name=name)
            row.add(sums, turn)

    def rows(self) -> list[CacheRow]:
        """In the order of a report."""
        rows: Iterable[CacheRow] = self._rows.values()
        if self.by == BY_HOUR:
            return sorted(rows, key=lambda row: row.name)
        return sorted(rows, key=lambda row: (-row.sums.lost, row.name))
