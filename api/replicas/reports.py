"""What replicas reported of themselves in the log: their digests at cursors where others reported theirs too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from api.replicas.comparison import Sighting
from core.codec import decode_message
from core.errors import Corrupt
from core.event_json import hash_text
from core.events import Points, ReplicaReported
from core.ids import StreamSeq
from core.prompt import hashes_from_bytes
from core.subjects import ROUTING, owner
from streams.log import EventLog, Record

LOOK_BACK_MS = 20_000
"""Reports come every five seconds, so every replica that lives said several within this time."""
RECORDS_MAX = 100_000
"""Messages of the routing stream that are read at most, the newest."""

Place = tuple[int, str, int, int]
"""Fold version, stream, epoch, sequence."""


async def recent_sightings(log: EventLog, now_ms: int) -> list[Sighting]:
    """Digests of all streams together, at sets of points that at least two replicas reported."""
    state = await log.state(ROUTING)
    start = max(await log.seek(ROUTING, now_ms - LOOK_BACK_MS), state.last_seq - RECORDS_MAX + 1, 1)
    reported: dict[str, dict[Place, str]] = defaultdict(dict)
    async for record in log.read(ROUTING, StreamSeq(start)):
        for report in _reports(record):
            reported[owner(record.subject)] |= points(report)
    return shared(reported)


def points(report: ReplicaReported) -> dict[Place, str]:
    """The report's digests by place."""
    return {
        (report.fold_version, stream, at.epoch, seq): digest
        for stream, at in report.points.items()
        for seq, digest in _digests(at)
    }


def shared(reported: dict[str, dict[Place, str]]) -> list[Sighting]:
    """For each pair: one sighting each at the newest points that both reported, one point of each stream.

    A pair that has no point of some stream in common has not been compared there, and so not at all, unless
    what it has in common differs. Older points tell of what may have been mended since.
    """
    names = sorted(reported)
    pairs = ((one, other) for place, one in enumerate(names) for other in names[place + 1 :])
    return [sighting for one, other in pairs for sighting in _pair(one, reported[one], other, reported[other])]


def _pair(one: str, ones: dict[Place, str], other: str, others: dict[Place, str]) -> tuple[Sighting, ...]:
    newest = {place[1]: place for place in sorted(ones.keys() & others.keys(), key=_age)}
    differing = [at for at in newest.values() if ones[at] != others[at]]
    if differing:
        at = differing[0]
        return (Sighting(one, at, ones[at]), Sighting(other, at, others[at]))
    if newest and newest.keys() == {stream for _, stream, _, _ in ones.keys() | others.keys()}:
        at_all = ("reports", one, other)
        return (Sighting(one, at_all, "equal"), Sighting(other, at_all, "equal"))
    return ()


def _age(place: Place) -> tuple[int, int]:
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
