"""The replicas at a moment: what each had said of its folds, how far behind the log it was, and whether they agree."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from api.debug.timeline.replica_reports import LatestComparison, ReplicaReport
from api.debug.timeline.timeline import Lifetime, Timeline
from core.ids import StreamName
from streams.archive.archive_reader import ArchiveReader


def replicas(archive: ArchiveReader, timeline: Timeline, ms: int) -> list[dict[str, Any]]:
    """Those that had joined by then, by number; the positions of a few reports are looked up in the archive."""
    found = []
    counts = _decisions(timeline, ms)
    for number, life in enumerate(list(timeline.replicas)):
        if life.from_ms <= ms:
            said = timeline.reports.last(number, ms)
            met = timeline.reports.agreements(number, ms)
            found.append(
                {
                    "replica": number,
                    "id": life.id,
                    "name": life.name or life.id,
                    "address": life.address,
                    "alive": _alive(life, ms),
                    "end": "" if _alive(life, ms) else life.end,
                    "decisions": counts.get(number, 0),
                    "report": None if said is None else _report(archive, said),
                    "agrees": None if not met else all(each.meeting.equal for each in met),
                    "agreements": [_agreement(each) for each in met],
                }
            )
    return found


def _agreement(found: LatestComparison) -> dict[str, Any]:
    seq, equal = found.meeting.seq, found.meeting.equal
    return {"with": found.other, "stream": found.stream, "seq": seq, "equal": equal}


def _alive(life: Lifetime, ms: int) -> bool:
    return life.to_ms < 0 or ms < life.to_ms


def _decisions(timeline: Timeline, ms: int) -> dict[int, int]:
    """How many each had made by then."""
    decisions = timeline.decisions
    upto = bisect_right(decisions.column("ms"), ms, hi=len(decisions))
    by_replica = decisions.column("replica")[:upto]
    return {number: by_replica.count(number) for number in set(by_replica)}


def _report(archive: ArchiveReader, said: ReplicaReport) -> dict[str, Any]:
    """Lag is in messages of the stream, between what it had folded and what the log had when it said so."""
    streams = {}
    for name, point in said.points.items():
        stream = StreamName(name)
        there = archive.seek(stream, said.ms) - 1 if stream in archive.streams else point.seq
        streams[name] = {"seq": point.seq, "digest": point.digest, "lag": max(0, there - point.seq)}
    return {"ms": said.ms, "at": f"routing:{said.seq}", "streams": streams, "incomplete": list(said.incomplete)}
