"""Ended: who is over for good, as a bounded list of tombstones; of anything else that ended a fold keeps nothing."""

from __future__ import annotations

ENDED_KEPT = 4096
"""Tombstones of one stream; the oldest goes first. Nobody writes after an end: the log itself refuses what follows
it, so a tombstone is needed only for as long as a copy of an old message may still come."""
REASON_CHARS_MAX = 120


class Ended(dict[str, str]):
    """Ids, and why each one is over; oldest first. No part of any digest."""

    def bury(self, who: str, why: str) -> None:
        """It is over; the oldest tombstone makes room."""
        self[who] = why[:REASON_CHARS_MAX]
        if len(self) > ENDED_KEPT:
            del self[next(iter(self))]
