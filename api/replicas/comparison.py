"""Comparison: whether replicas that stand at equal cursors have equal digests. Pure.

1. Only whole folds of one fold version are compared.
2. Equal cursor must give equal digest. Cursors move, so several rounds of answers go in; what was once seen stays.
3. Who was never seen beside another is not judged: `not comparable yet` is an answer of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from api.replicas.replica import Replica


class Sighting(NamedTuple):
    """Somebody's digest at a place that others may have reached too."""

    replica: str
    place: Hashable
    """Fold version and cursor; equal places are comparable."""
    digest: str


class Verdict(NamedTuple):
    """What the comparison found."""

    agree: bool | None
    """None: not comparable yet."""
    text: str
    wrong: frozenset[str]
    """Ids whose digests differ; of more than two, those in the minority."""
    seen: frozenset[str]
    """Ids that were seen to agree with another one."""


class Comparison:
    """Takes what replicas say, round by round, and judges."""

    def __init__(self) -> None:
        self._group: dict[str, str] = {}
        """A replica and the one that stands for all that agree with it."""
        self._wrong: set[str] = set()
        self._differences: list[str] = []

    def __repr__(self) -> str:
        return f"<Comparison of {len(self._group)} replicas, {len(self._wrong)} differ>"

    def hear(self, replicas: Iterable[Replica]) -> None:
        """One round of answers, of one moment or nearly so."""
        self.see(
            Sighting(it.id, (it.fold_version, tuple(sorted(it.cursor.items()))), it.digest)
            for it in replicas
            if it.comparable and it.digest is not None
        )

    def see(self, sightings: Iterable[Sighting]) -> None:
        """Digests at places; those at one place are compared."""
        places: dict[Hashable, dict[str, str]] = {}
        for sighting in sightings:
            places.setdefault(sighting.place, {})[sighting.replica] = sighting.digest
        for digests in places.values():
            if len(digests) > 1:
                self._compare(digests)

    def verdict(self, replicas: list[Replica]) -> Verdict:
        """Whether they agree, of those that answered now."""
        there = [it.id for it in replicas if it.answered]
        wrong = self._wrong & set(there)
        seen = frozenset(who for who in there if self._seen(who, there) and who not in wrong)
        if wrong:
            return Verdict(False, "; ".join(self._differences), frozenset(wrong), seen)
        if len(there) > 1 and len({self._root(who) for who in there}) == 1:
            return Verdict(True, f"all {len(there)} have the same digest at equal cursors", frozenset(), seen)
        return Verdict(None, _why_not(replicas, len(seen)), frozenset(), seen)

    def _compare(self, digests: dict[str, str]) -> None:
        ranked = Counter(digests.values()).most_common()
        if len(ranked) > 1:
            tied = ranked[0][1] == ranked[1][1]
            self._wrong |= {who for who, digest in digests.items() if tied or digest != ranked[0][0]}
            said = ", ".join(f"{who} {digest}" for who, digest in sorted(digests.items()))
            self._differences.append(f"different digests at one cursor: {said}")
        for digest in dict(ranked):
            first, *rest = sorted(who for who, other in digests.items() if other == digest)
            for who in rest:
                self._group[self._root(who)] = self._root(first)

    def _root(self, who: str) -> str:
        while (above := self._group.setdefault(who, who)) != who:
            who = above
        return who

    def _seen(self, who: str, there: list[str]) -> bool:
        return any(other != who and self._root(other) == self._root(who) for other in there)


def _why_not(replicas: list[Replica], seen: int) -> str:
    there = [it for it in replicas if it.answered]
    if len(there) < 2:
        return "there is nothing to compare with fewer than two answers"
    unknown = [it.name for it in there if it.incomplete]
    if unknown:
        return f"{', '.join(unknown)}: a source is unknown until it restates itself; ask again later"
    if len({it.fold_version for it in there}) > 1:
        return "they fold by different versions, so their digests say nothing about each other"
    beside = f"{seen} of {len(there)} were seen to agree; " if seen else ""
    return f"{beside}their cursors were never equal when asked: ask again"
