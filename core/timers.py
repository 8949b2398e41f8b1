"""Timers: keys in the order of their times; at one time, in the order in which these were set."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from sortedcontainers import SortedList

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """One time for each key, in microseconds of the clock of its owner. O(log n) each."""

    def __init__(self) -> None:
        self._entries: SortedList = SortedList()
        """Of (time, number, key); no two have one number, so keys are never compared."""
        self._by_key: dict[K, tuple[int, int, K]] = {}
        self._number = 0

    def __repr__(self) -> str:
        return f"<Timers {len(self._by_key)}, the next at {self.due_us} us>"

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: K) -> bool:
        return key in self._by_key

    @property
    def due_us(self) -> int | None:
        """The first time; None without any key."""
        return self._entries[0][0] if self._by_key else None

    def set(self, key: K, due_us: int) -> None:
        """The key is due then, and no more at the time that it had before."""
        self.cancel(key)
        self._number += 1
        entry = self._by_key[key] = (due_us, self._number, key)
        self._entries.add(entry)

    def cancel(self, key: K) -> None:
        """The key has no time; it may have had none."""
        entry = self._by_key.pop(key, None)
        if entry is not None:
            self._entries.remove(entry)

    def pop_due(self, now_us: int) -> K | None:
        """The first due key, without a time from now on; None if no key is due."""
        if not self._by_key or self._entries[0][0] > now_us:
            return None
        key: K = self._entries.pop(0)[2]
        del self._by_key[key]
        return key
