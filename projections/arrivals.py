"""Arrivals: records that tails deliver while a fold is made beside the live one, kept until it can take them."""

from __future__ import annotations

from collections import deque

from core.ids import StreamName
from streams.log import Record

ARRIVALS_MAX = 65_536
"""Records held at most …"""
ARRIVALS_BYTES_MAX = 64 * 1024 * 1024
"""… and their bytes; beyond either, what was held is let go and read again from the log."""


class Arrivals:
    """In the order in which they came."""

    def __init__(self) -> None:
        self.overflowed = False
        """Whether records were let go since the last `restart`: those that are held do not follow on what was read."""
        self._records: deque[Record] = deque()
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<Arrivals {len(self._records)} records, {self._bytes} bytes{', overflowed' * self.overflowed}>"

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        """The record is held, unless there are too many: then none is."""
        if self.overflowed:
            return
        self._records.append(record)
        self._bytes += len(record.payload)
        if len(self._records) > ARRIVALS_MAX or self._bytes > ARRIVALS_BYTES_MAX:
            self._let_go()
            self.overflowed = True

    def restart(self) -> None:
        """What comes from now on is held; all before it is to be read from the log."""
        self._let_go()
        self.overflowed = False

    def forget(self, stream: StreamName) -> None:
        """The stream's history was replaced: what came of the one before is void."""
        self._records = deque(record for record in self._records if record.stream != stream)
        self._bytes = sum(len(record.payload) for record in self._records)

    def take(self) -> Record | None:
        """The oldest that is held, no longer held; None if there is none."""
        if not self._records:
            return None
        record = self._records.popleft()
        self._bytes -= len(record.payload)
        return record

    def _let_go(self) -> None:
        self._records.clear()
        self._bytes = 0
