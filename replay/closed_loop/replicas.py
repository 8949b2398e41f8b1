"""Replicas: who decided in a record, and how many of them were there at once.

A front end that is started again has another id and mostly the same name, and its successor may come before it goes.
Pods of one deployment have new names, and follow each other. So names count, while somebody of that name is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

NEVER = 1 << 62
"""A sequence that no stream reaches."""


class _Life(msgspec.Struct):
    """One id, from its first message to its end, by the routing stream."""

    name: str
    from_seq: int
    until_seq: int = NEVER


class Replicas:
    """See the module's text."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}

    def __repr__(self) -> str:
        return f"<Replicas, {len(self._lives)} so far>"

    def spoke(self, replica: str, seq: int) -> None:
        """It is there; until its name is known it goes by its id."""
        if replica not in self._lives:
            self._lives[replica] = _Life(replica, seq)

    def joined(self, replica: str, name: str) -> None:
        """It is called so; it may say so again."""
        self._lives[replica].name = name or replica

    def ended(self, replica: str, seq: int) -> None:
        """Nothing follows."""
        if replica in self._lives:
            self._lives[replica].until_seq = seq

    def at_once(self, replicas: Collection[str]) -> int:
        """The most names of these that were there at one time; O(n log n)."""
        lives = [self._lives[replica] for replica in replicas]
        edges = [(life.from_seq, 1, life.name) for life in lives] + [(life.until_seq, -1, life.name) for life in lives]
        there: Counter[str] = Counter()
        most = 0
        for _, change, name in sorted(edges):  # who goes, before who comes
            there[name] += change
            if not there[name]:
                del there[name]
            most = max(most, len(there))
        return most
