"""Comparison of the digests of replicas at equal cursors: by their replies, and by their reports in the log.

1. Only whole folds of one fold version are compared.
2. Equal cursors must have equal digests. Cursors move, so several rounds of replies are compared; results accumulate.
3. A replica that was never seen beside another is not judged: `not comparable yet` is an answer of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from api.cli.inspect.replica_state import ReplicaStatus
from core.codec import decode_message
from core.errors import Corrupt
from core.event_json import hash_text
from core.events import Points, ReplicaReported
from core.ids import StreamSeq
from core.prompt import hashes_from_bytes
from core.subjects import ROUTING, owner
from streams.log import EventLog, Record


class DigestObservation(NamedTuple):
    """One replica's digest at a place where others may have one, too."""

    replica: str
    place: Hashable
    """Fold version and cursor; equal places are comparable."""
    digest: str


class ComparisonResult(NamedTuple):
    """The result of a comparison."""

    agree: bool | None
    """None: not comparable yet."""
    text: str
    wrong: frozenset[str]
    """Ids with differing digests; of more than two, those in the minority."""
    seen: frozenset[str]
    """Ids that agreed with another one."""


class ReplicaDigestComparison:
    """Compares the replies of replicas, round by round."""

    def __init__(self) -> None:
        self._group: dict[str, str] = {}
        """Union-find of agreeing replicas: each replica's parent."""
        self._wrong: set[str] = set()
        self._differences: list[str] = []

    def __repr__(self) -> str:
        return f"<ReplicaDigestComparison of {len(self._group)} replicas, {len(self._wrong)} differ>"

    def add_replies(self, replicas: Iterable[ReplicaStatus]) -> None:
        """One round of replies, taken at nearly one moment, is compared."""
        self.add_observations(
            DigestObservation(it.id, (it.fold_version, tuple(sorted(it.cursor.items()))), it.digest)
            for it in replicas
            if it.comparable and it.digest is not None
        )

    def add_observations(self, observations: Iterable[DigestObservation]) -> None:
        """Digests at equal places are compared."""
        places: dict[Hashable, dict[str, str]] = {}
        for observation in observations:
            places.setdefault(observation.place, {})[observation.replica] = observation.digest
        for digests in places.values():
            if len(digests) > 1:
                self._compare(digests)

    def verdict(self, replicas: list[ReplicaStatus]) -> ComparisonResult:
        """The result for the replicas that answered now."""
        there = [it.id for it in replicas if it.answered]
        wrong = self._wrong & set(there)
        seen = frozenset(who for who in there if self._seen(who, there) and who not in wrong)
        if wrong:
            return ComparisonResult(False, "; ".join(self._differences), frozenset(wrong), seen)
        if len(there) > 1 and len({self._root(who) for who in there}) == 1:
            return ComparisonResult(True, f"all {len(there)} have the same digest at equal cursors", frozenset(), seen)
        return ComparisonResult(None, _why_not(replicas, len(seen)), frozenset(), seen)

    def _compare(self, digests: dict[str, str]) -> None:
        ranked = Counter(digests.values()).most_common()
        if len(ranked) > 1:
            tied = ranked[0][1] == ranked[1][1]
            self._wrong |= {who for who, digest in digests.items() if tied or digest != ranked[0][0]}
            texts = ", ".join(f"{who} {digest}" for who, digest in sorted(digests.items()))
            self._differences.append(f"different digests at one cursor: {texts}")
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


def _why_not(replicas: list[ReplicaStatus], seen: int) -> str:
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


REPORT_WINDOW_MS = 20_000
"""Every live replica reports several times within this window: once in five seconds."""
RECORDS_MAX = 100_000
"""Messages of the routing stream that are read at most, the newest."""

FoldPosition = tuple[int, str, int, int]
"""Fold version, stream, epoch, sequence."""


async def recent_observations(log: EventLog, now_ms: int) -> list[DigestObservation]:
    """Digests of all streams together, at sets of points that at least two replicas reported."""
    state = await log.state(ROUTING)
    start = max(await log.seek(ROUTING, now_ms - REPORT_WINDOW_MS), state.last_seq - RECORDS_MAX + 1, 1)
    reported: dict[str, dict[FoldPosition, str]] = defaultdict(dict)
    async for record in log.read(ROUTING, StreamSeq(start)):
        for report in _reports(record):
            reported[owner(record.subject)] |= points(report)
    return shared(reported)


def points(report: ReplicaReported) -> dict[FoldPosition, str]:
    """The report's digests by place."""
    return {
        (report.fold_version, stream, at.epoch, seq): digest
        for stream, at in report.points.items()
        for seq, digest in _digests(at)
    }


def shared(reported: dict[str, dict[FoldPosition, str]]) -> list[DigestObservation]:
    """For each pair: one observation each at the newest points that both reported, one point of each stream.

    A pair with no common point of some stream is not compared, unless its common points differ. Older points may show
    differences that were settled since.
    """
    names = sorted(reported)
    pairs = ((one, other) for place, one in enumerate(names) for other in names[place + 1 :])
    return [observation for one, other in pairs for observation in _pair(one, reported[one], other, reported[other])]


def _pair(
    one: str, ones: dict[FoldPosition, str], other: str, others: dict[FoldPosition, str]
) -> tuple[DigestObservation, ...]:
    newest = {place[1]: place for place in sorted(ones.keys() & others.keys(), key=_age)}
    differing = [at for at in newest.values() if ones[at] != others[at]]
    if differing:
        at = differing[0]
        return (DigestObservation(one, at, ones[at]), DigestObservation(other, at, others[at]))
    if newest and newest.keys() == {stream for _, stream, _, _ in ones.keys() | others.keys()}:
        at_all = ("reports", one, other)
        return (DigestObservation(one, at_all, "equal"), DigestObservation(other, at_all, "equal"))
    return ()


def _age(place: FoldPosition) -> tuple[int, int]:
    """Later epochs and sequences are larger."""
    return place[2:]


def _reports(record: Record) -> list[ReplicaReported]:
    try:
        message = decode_message(record.payload)
    except Corrupt:  # the fold counts it
        return []
    return [event for event in message.events if isinstance(event, ReplicaReported)]


def _digests(at: Points) -> Iterable[tuple[int, str]]:
    return zip(at.seqs, map(hash_text, hashes_from_bytes(at.digests)), strict=True)
