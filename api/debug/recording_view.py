"""Recording view: answers of the page about one recording.

The timeline is read on the event loop; states and explanations are computed on the fold thread.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from importlib.metadata import version
from typing import Any

import msgspec

from api.debug.cache_view import CacheView
from api.debug.decision_view import decision
from api.debug.fold_thread import FoldThread, RecordingState
from api.debug.keyframes import check_near
from api.debug.planner_view import planner_decision, planner_rows
from api.debug.timeline.decision_table import search
from api.debug.timeline.replica_reports import ReplicaReport
from api.debug.timeline.timeline import Timeline
from api.debug.what_if_view import WINDOW_MAX, WhatIfAnswers, WhatIfQuestion
from core.clock import Clock
from core.errors import CallerError, Unavailable
from core.ids import StreamName, StreamSeq, new_id
from core.keys import DeploymentKey
from core.settings import POLICIES, RoutingSettings
from core.subjects import ROUTING, SCALE
from replay.explain.explain import explain
from replay.recording.moment import AtSequence, AtTime
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES
from replay.state_at.state_at import summary_at, within
from streams.archive.archive_reader import ArchiveReader

NOTES_CHUNK_MAX = 5000
"""Most notes in one answer."""
REQUESTS_MAX = 500
"""Most requests in flight in one answer; all are counted."""


class RecordingView:
    """See the module's text. `show` first."""

    def __init__(self, source: str, key: DeploymentKey | None, clock: Clock, *, live_messages_max: int = 0) -> None:
        """`source` is the page's name for the recording; `live_messages_max` bounds one that grows, 0 for a file."""
        self.source = source
        self.live = live_messages_max > 0
        self.copied: tuple[int, int] | None = None
        """Copied messages of the log, and the total to copy; None when the copy is complete."""
        self.away = ""
        """The reason why a live recording does not grow at the moment; empty if it grows."""
        self.run = new_id()
        """An id of this process: a page that got another id must ask again from the start."""
        self.fold_thread = FoldThread(RecordingState(key, messages_expected=live_messages_max))
        self._clock = clock
        self._archive: ArchiveReader | None = None
        self._what_ifs = WhatIfAnswers()
        self._cache = CacheView(key)
        self._jump_ms = 0.0

    def __repr__(self) -> str:
        return f"<RecordingView of {self.source}, {self.fold_thread!r}>"

    @property
    def timeline(self) -> Timeline:
        """The timeline of all messages read so far."""
        return self.fold_thread.recording_state.timeline

    def start(self) -> None:
        """Questions are answered."""
        self.fold_thread.start()

    async def show(self, archive: ArchiveReader) -> None:
        """The archive, the one before with more messages, is shown."""
        before = self._archive
        self._archive = ArchiveReader(archive.path, archive.path.open("rb"), archive.contents)
        await self.fold_thread.show(archive)
        if before is not None:
            before.close()

    async def close(self) -> None:
        """All files are closed."""
        await asyncio.to_thread(self._cache.close)
        await self.fold_thread.close()
        if self._archive is not None:
            self._archive.close()

    # --- answers -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The recording that is shown, and how far it is read and folded."""
        recording_state, timeline = self.fold_thread.recording_state, self.timeline
        contents = self._archive.contents if self._archive is not None else None
        return {
            "run": self.run,
            "source": self.source,
            "namespace": contents.namespace if contents else "",
            "program": contents.program if contents else f"contrail {version('contrail')}",
            "live": self.live,
            "copied": self.copied,
            "away": self.away,
            "error": self.fold_thread.failure,
            "from_ms": timeline.from_ms,
            "to_ms": timeline.to_ms,
            "now_ms": self._clock.wall_ms(),
            "decisions": len(timeline.decisions),
            "scanned": 1.0
            if recording_state.scan.done
            else recording_state.scan.messages / max(1, recording_state.scan.total),
            "skipped": recording_state.scan.skipped,
            "folded": recording_state.folding.share,
            "folded_to_ms": recording_state.folding.to_ms,
            "keyframes": recording_state.folding.keyframes,
            "keyframes_bytes": recording_state.folding.keyframes_bytes,
            "keyframe_distance": recording_state.folding.distance,
            "jump_ms": round(self._jump_ms, 1),
            "price_remarks": recording_state.prices.texts,
            "proved": recording_state.proved,
            "planner": self._archive is not None and SCALE in self._archive.streams,
            "redacted": contents.redacted if contents else False,
            "window_max": WINDOW_MAX,
            "policies": POLICIES,
            "defaults": RoutingSettings().to_mapping(),
        }

    def timeline_after(self, after: int, notes_after: int, run: str) -> dict[str, Any]:
        """Decisions after a message of the routing stream, notes, and all workers and replicas known so far.

        The first `notes_after` notes are left out if `run` is the id of this process.
        """
        timeline = self.timeline
        first = notes_after if run == self.run else 0
        notes = timeline.notes[first : first + NOTES_CHUNK_MAX]
        found = timeline.decisions.after(after)
        found["more"] = found["more"] or len(timeline.notes) > first + len(notes)
        return found | {
            "run": self.run,
            "workers": msgspec.to_builtins(list(timeline.workers)),
            "replicas": msgspec.to_builtins(list(timeline.replicas)),
            "notes": msgspec.to_builtins(notes),
            "notes_from": first,
            "notes_dropped": dict(timeline.notes_dropped),
        }

    def load(self, from_ms: int, to_ms: int, points: int) -> dict[str, Any]:
        """The load reports of workers in a window, thinned."""
        return {"workers": self.timeline.loads.between(from_ms, to_ms, points)}

    def decision(self, n: int) -> dict[str, Any]:
        """One decision, as it was recorded."""
        return decision(self._shown(), self.timeline, n)

    def search(self, text: str) -> dict[str, Any]:
        """Decisions that match a search text."""
        return search(self.timeline.decisions, text, self.timeline.to_ms)

    def replicas(self, ms: int) -> dict[str, Any]:
        """The replicas at a time."""
        return {"replicas": replicas(self._shown(), self.timeline, ms)}

    async def explanation(self, n: int) -> dict[str, Any]:
        """The explanation of one decision, with its outcome as far as the timeline has it."""
        decisions = self.timeline.decisions
        attempt = decisions.history.at(n)
        if attempt is None:
            raise CallerError("there is no such decision in this recording")
        seq = max(n, attempt.prefilled_at, attempt.ended_at) // PLACES
        return await self.fold_thread.ask(
            lambda recording_state: explanation(recording_state.recording(seq), attempt.request, n, attempt.attempt)
        )

    async def state(self, n: int | None, ms: int | None, replica: str | None) -> dict[str, Any]:
        """The state at a moment."""
        started_us = self._clock.monotonic_us()
        seq = 0 if n is None else n // PLACES
        found = await self.fold_thread.ask(
            lambda recording_state: state(
                recording_state.newest if replica is None else recording_state.recording(seq), n, ms, replica
            )
        )
        self._jump_ms = (self._clock.monotonic_us() - started_us) / 1000
        return found | {"took_ms": round(self._jump_ms, 1)}

    def cache(self, by: str) -> dict[str, Any]:
        """The cache hits of the recording, and those that it lost. StillCounting until they are counted."""
        return self._cache.report(self._shown(), len(self.timeline.decisions), by)

    async def planner(self, after: int) -> dict[str, Any]:
        """The planner's decisions after a message of its stream."""
        return await self.fold_thread.ask(lambda recording_state: planner_rows(recording_state.newest, after))

    async def planner_decision(self, seq: int, model: str | None, role: str | None) -> dict[str, Any]:
        """The explanation of the planner's decision in a message, on the model and the role if it sizes several."""
        return await self.fold_thread.ask(
            lambda recording_state: planner_decision(recording_state.newest, seq, model, role)
        )

    async def what_if(self, asked: WhatIfQuestion) -> dict[str, Any]:
        """The outcome of a scenario over a window."""
        started_us = self._clock.monotonic_us()
        decisions = self.timeline.decisions
        seq = asked.to_n // PLACES
        found = await self.fold_thread.ask(
            lambda recording_state: self._what_ifs.answer(recording_state.recording(seq), decisions, asked)
        )
        return found | {"took_ms": round((self._clock.monotonic_us() - started_us) / 1000, 1)}

    def _shown(self) -> ArchiveReader:
        if self._archive is None:
            raise Unavailable("the log is still being copied: a moment")
        return self._archive


def explanation(recording: Recording, request: str, n: int, number: int) -> dict[str, Any]:
    """The attempt of that number that was decided at `n`; only `known: False` if its tenant used the id again."""
    tried = recording.requests.at(n)
    found = explain(recording, request, None if tried is None else tried.tenant)
    for attempt in found.attempts:
        if (attempt.seq, attempt.attempt) == (n // PLACES, number):  # a message may hold several
            explained: dict[str, Any] = msgspec.to_builtins(attempt)
            course = msgspec.to_builtins(found.course)
            return explained | {"known": True, "uses": found.uses, "summary": found.summary, "course": course}
    return {"known": False, "uses": found.uses}


def state(recording: Recording, n: int | None, ms: int | None, replica: str | None) -> dict[str, Any]:
    """The state before a decision, or at a time, of the log or as one replica believed.

    StateNotFolded if no keyframe is near enough, CallerError if the replica did not run then.
    """
    moment = AtTime(ms or 0) if n is None else AtSequence(ROUTING, StreamSeq(n // PLACES))
    check_near(recording, within(recording, moment))
    found: dict[str, Any] = msgspec.to_builtins(summary_at(recording, moment, replica))
    in_flight = found["in_flight"]
    return found | {"in_flight": in_flight[:REQUESTS_MAX], "in_flight_total": len(in_flight)}


def replicas(archive: ArchiveReader, timeline: Timeline, ms: int) -> list[dict[str, Any]]:
    """The replicas that had joined by `ms`, by number: their newest report, its lag, and whether digests agree."""
    decisions = timeline.decisions
    made = decisions.column("replica")[: bisect_right(decisions.column("ms"), ms, hi=len(decisions))]
    found = []
    for number, lifetime in enumerate(list(timeline.replicas)):
        if lifetime.from_ms <= ms:
            alive = lifetime.to_ms < 0 or ms < lifetime.to_ms
            report = timeline.reports.last(number, ms)
            comparisons = timeline.reports.agreements(number, ms)
            agreements = [
                {"with": each.other, "stream": each.stream, "seq": each.comparison.seq, "equal": each.comparison.equal}
                for each in comparisons
            ]
            found.append(
                {
                    "replica": number,
                    "id": lifetime.id,
                    "name": lifetime.name or lifetime.id,
                    "address": lifetime.address,
                    "alive": alive,
                    "end": "" if alive else lifetime.end,
                    "decisions": made.count(number),
                    "report": None if report is None else _report(archive, report),
                    "agrees": all(each.comparison.equal for each in comparisons) if comparisons else None,
                    "agreements": agreements,
                }
            )
    return found


def _report(archive: ArchiveReader, report: ReplicaReport) -> dict[str, Any]:
    """The report with its lag: messages of each stream between the fold and the log's end at that time."""
    streams = {}
    for name, point in report.points.items():
        stream = StreamName(name)
        end = archive.seek(stream, report.ms) - 1 if stream in archive.streams else point.seq
        streams[name] = {"seq": point.seq, "digest": point.digest, "lag": max(0, end - point.seq)}
    return {"ms": report.ms, "at": f"routing:{report.seq}", "streams": streams, "incomplete": list(report.incomplete)}
