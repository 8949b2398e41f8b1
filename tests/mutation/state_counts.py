"""State counts: how often each state of COVERAGE is in a log, found in its messages alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec import UNSET

from core.codec import CHAIN_START, Message
from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheRestated,
    LoadReported,
    LocalChanged,
    PromptBase,
    ReplicaReported,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
    SettingsChanged,
    UnknownEvent,
    WorkerJoined,
    WorkerLeft,
)
from core.events.jobs import PrefillFailed
from core.events.kv import PREFILL
from core.events.routing import COMPACT_VERSION, PROGRESS_VERSION
from core.settings import TIERS, RoutingSettings
from core.subjects import JOBS, ROUTING
from projections.policy.view import EXCLUSION_REASONS
from replay.recording.recording import RecordedFrame
from tests.replay.staged import Stage


class StateCount(NamedTuple):
    """A state, and how often the log must have it."""

    state: str
    least: int


COVERAGE = (
    StateCount("settings changed", 30), StateCount("migrated", 20), StateCount("restated in flight", 8),
    StateCount("digests reported", 30), StateCount("blocks stored in runs", 200), StateCount("runs shortened", 60),
    StateCount("cache cleared", 20), StateCount("cache restated", 20), StateCount("worker left", 3),
    StateCount("worker lost", 3), StateCount("replica lost", 1), StateCount("job pulled", 8),
    StateCount("job cancelled", 8), StateCount("jobs restated", 4), StateCount("remote prefill", 20),
    StateCount("decided before its own events", 100), StateCount("decision", 600),
    StateCount("tier other than device", 50), StateCount("messages missing", 10),
    StateCount("decision continued", 200), StateCount("decision of version 3", 200),
    StateCount("decision of version 4", 200), StateCount("first token as an array", 50),
    StateCount("end as an array", 50),
    # the rare ones
    StateCount("cost at the margin", 2), StateCount("waiting at the bound", 1), StateCount("two local reasons", 1),
    StateCount("prefill worker left out", 1), StateCount("prefill worker waits", 1),
    StateCount("message replaced", 1), StateCount("message repeated", 2), StateCount("restatement interrupted", 1),
    StateCount("tier unknown", 3), StateCount("event unknown", 1), StateCount("attempt routed again", 1),
    StateCount("restated before its own events", 1), StateCount("believed for just so long", 1),
    StateCount("counts stated", 4), StateCount("decisions dropped", 1), StateCount("clock off", 15),
    StateCount("attempt declined", 1), StateCount("job given up", 1), StateCount("worker that left a moment before", 1),
)  # fmt: skip
"""Beside the states of decisions, which `tests.golden.test_decisions` counts in the log that this one extends."""
_OF_EVENTS = {
    "SettingsChanged": "settings changed", "RequestMigrated": "migrated", "ReplicaReported": "digests reported",
    "CacheCleared": "cache cleared", "CacheRestated": "cache restated", "ReplicaLost": "replica lost",
    "WorkerLeft": "worker left", "WorkerLost": "worker lost", "PrefillPulled": "job pulled",
    "PrefillCancelled": "job cancelled", "JobsRestated": "jobs restated", "RequestRouted": "decision",
}  # fmt: skip
CLOCK_OFF_MS = 1000
MOMENT_MS = 40
"""A scenario of the examination sees the log so much later."""


def states(stage: Stage) -> Counter[str]:
    """How often each state of COVERAGE is in the log."""
    found: Counter[str] = Counter()
    prefilling = {
        frame.owner
        for frames in stage.frames.values()
        for frame in frames
        for event in _message(frame).events
        if isinstance(event, WorkerJoined) and event.role == PREFILL
    }
    for frames in stage.frames.values():
        sources: dict[str, _SourceStates] = {}
        for frame in frames:
            source = sources.setdefault(_message(frame).source, _SourceStates(prefilling))
            found.update(source.of_message(frame))
    left, routed = _times(stage, WorkerLeft), _times(stage, RequestRouted)
    found["worker that left a moment before"] = sum(any(0 < at - end <= MOMENT_MS for at in routed) for end in left)
    return found


def _times(stage: Stage, kind: type[WorkerLeft | RequestRouted]) -> set[int]:
    """The times of the messages with such an event."""
    return {
        frame.time_ms
        for frames in stage.frames.values()
        for frame in frames
        if any(isinstance(event, kind) for event in _message(frame).events)
    }


def _message(frame: RecordedFrame) -> Message:
    assert frame.message is not None
    return frame.message


@dataclass
class _SourceStates:
    """The states in the messages of one source, in their order."""

    prefilling: set[str]
    n_next: int = 0
    head: bytes = CHAIN_START
    parts: int = 0
    """Of a restatement that is not complete."""
    settings: RoutingSettings = field(default_factory=RoutingSettings)
    ended: dict[tuple[str, int], int] = field(default_factory=dict)
    """Attempts, and where they ended."""
    routed_ms: dict[str, int] = field(default_factory=dict)
    """Worker to the time of its last decision with a retention."""
    prefilled: int = 0
    restated: int = 0
    """Places of the last first token, and of the last restatement behind one."""

    def of_message(self, frame: RecordedFrame) -> Iterator[str]:
        message = _message(frame)
        if message.n < self.n_next:
            yield "message repeated"
            return
        if message.n > self.n_next:
            yield "messages missing"
        elif message.prev != self.head:
            yield "message replaced"
        if abs(message.sent_ms - frame.time_ms) > CLOCK_OFF_MS:
            yield "clock off"
        self.n_next, self.head = message.n + 1, frame.head
        for event in message.events:
            if known := _OF_EVENTS.get(type(event).__name__):
                yield known
            if isinstance(event, PrefillFailed) and event.dead:
                yield "job given up"
            if isinstance(event, UnknownEvent) and frame.stream == JOBS:
                yield "event unknown"
            yield from self._of_worker(event, frame)
            yield from self._of_replica(event, frame.seq)

    def _of_worker(self, event: Any, frame: RecordedFrame) -> Iterator[str]:
        if isinstance(event, BlocksStored | BlocksRemoved | CacheRestated) and event.tier not in TIERS:
            yield "tier unknown"
        if isinstance(event, BlocksStored | BlocksRemoved):
            if event.blocks.pieces:
                yield "blocks stored in runs" if isinstance(event, BlocksStored) else "runs shortened"
            if event.tier != "device":
                yield "tier other than device"
        if isinstance(event, CacheRestated):
            if self.parts and not event.part:
                yield "restatement interrupted"
            self.parts = event.part + 1 if event.part + 1 < event.parts else 0
        if isinstance(event, LoadReported):
            if event.waiting == self.settings.waiting_max:
                yield "waiting at the bound"
            if event.waiting and frame.owner in self.prefilling:
                yield "prefill worker waits"

    def _of_replica(self, event: Any, seq: int) -> Iterator[str]:
        match event:
            case SettingsChanged():
                self.settings = RoutingSettings.parse(event.settings)
            case LocalChanged():
                if len({*event.reasons} & {*EXCLUSION_REASONS}) > 1:
                    yield "two local reasons"
                if event.worker in self.prefilling and event.reasons:
                    yield "prefill worker left out"
            case ReplicaReported() | ReplicaRestated():
                yield from self._of_statement(event, seq)
            case RequestPrefilled():
                self.prefilled = seq
                if event.v == PROGRESS_VERSION:
                    yield "first token as an array"
                if event.prefill is not None and event.prefill.remote:
                    yield "remote prefill"
            case RequestFinished():
                self.ended[event.request, event.attempt] = seq
                if event.v == PROGRESS_VERSION:
                    yield "end as an array"
                if event.outcome == "declined":
                    yield "attempt declined"
            case RequestRouted():
                yield from self._of_decision(event, seq)

    def _of_statement(self, event: ReplicaReported | ReplicaRestated, seq: int) -> Iterator[str]:
        if isinstance(event, ReplicaRestated):
            self.restated = seq
            if event.requests:
                yield "restated in flight"
        if event.counts is not UNSET:
            yield "counts stated"
            if event.counts.dropped:
                yield "decisions dropped"

    def _of_decision(self, event: RequestRouted, seq: int) -> Iterator[str]:
        read, costs, margin = event.cursor[ROUTING][1], event.columns["cost"], self.settings.tie_margin_m
        if seq - read > 1:
            yield "decided before its own events"
        if isinstance(event.base, PromptBase):
            yield "decision continued"
        if event.v >= COMPACT_VERSION:
            yield f"decision of version {event.v}"
        if margin and costs[0] == min(costs) + margin:
            yield "cost at the margin"
        if read < self.ended.get((event.request, event.attempt), 0):
            yield "attempt routed again"
        if read < self.prefilled < self.restated:
            yield "restated before its own events"
        if event.believed is not None:
            before_ms = self.routed_ms.get(event.worker, 0)
            if event.believed[1] and event.now_ms - before_ms == event.believed[1]:
                yield "believed for just so long"
            self.routed_ms[event.worker] = event.now_ms
