"""SettingsComparison: the first recorded decision that two sets of settings make otherwise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from core.errors import CallerError
from core.ids import ReplicaId
from core.settings import RoutingSettings
from replay.parallel import Progress
from replay.playback.playback import Playback, RecordedDecision
from replay.recording.participants import Participants
from replay.recording.recording import Recording
from replay.verify.chain_proof import gaps_of
from replay.verify.differing_terms import Term
from replay.verify.judge import DecisionSide, event_of, exclusions_of, first_difference, remake, side
from replay.verify.verify import PROGRESS_EVERY

Choose = Callable[[RecordedDecision], tuple[RoutingSettings, RoutingSettings]]
"""The two settings that a decision is made under."""


class SettingsComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The first decision at which they part."""

    request: str
    attempt: int
    replica: str
    replica_name: str
    seq: int
    time_ms: int
    same: int
    """Decisions before it with the same choice."""
    recorded: DecisionSide
    first: DecisionSide
    second: DecisionSide
    term: str
    term_worker: str
    term_worker_name: str
    term_first: Any
    term_second: Any


def compare_settings(
    recording: Recording,
    choose: Choose,
    start: int = 1,
    end: int | None = None,
    *,
    replicas: Collection[ReplicaId] | None = None,
    progress: Progress = lambda _done, _of: None,
) -> SettingsComparison | None:
    """The first decision of which the choice differs; None if none does."""
    total = len(recording.requests.span(start, end))
    for number, at in enumerate(Playback(recording, start, end, replica=replicas, gaps=gaps_of(recording))):
        if number % PROGRESS_EVERY == 0:
            progress(number, total)
        if at.fault is not None:  # `verify` names it
            continue
        first, second = choose(at)
        found = _parting(at, first, second, number, recording.names)
        if found is not None:
            progress(total, total)
            return found
    progress(total, total)
    return None


def settings_of_revisions(recording: Recording, first: int, second: int) -> Choose:
    """Those of two revisions that the recording tells of, each as it was said last. CallerError if it does not, or if
    this program cannot read one."""
    one, other = (_revision(recording, revision) for revision in (first, second))
    return lambda _: (one, other)


def settings_with_changes(changes: Mapping[str, Any]) -> Choose:
    """The settings in force, and the same with these changes. CallerError if they cannot be read."""
    RoutingSettings.parse(changes)
    made: dict[RoutingSettings, RoutingSettings] = {}

    def choose(at: RecordedDecision) -> tuple[RoutingSettings, RoutingSettings]:
        if at.settings not in made:
            made[at.settings] = RoutingSettings.parse({**at.settings.to_mapping(), **changes})
        return at.settings, made[at.settings]

    return choose


def _revision(recording: Recording, revision: int) -> RoutingSettings:
    settings = recording.replicas.revision(revision)
    if settings is None:
        known = ", ".join(map(str, sorted(recording.replicas.revisions))) or "none"
        raise CallerError(f"this recording tells of no revision {revision} of the settings; it tells of {known}")
    return RoutingSettings.parse(settings)


def _parting(
    at: RecordedDecision, first: RoutingSettings, second: RoutingSettings, same: int, names: Participants
) -> SettingsComparison | None:
    one, other = remake(at, first), remake(at, second)
    if isinstance(one, str) or isinstance(other, str):
        raise CallerError(
            f"{at.event.request} cannot be decided by this program: {one if isinstance(one, str) else other}"
        )
    if one.worker == other.worker:
        return None
    revision = at.event.settings_revision
    routed = event_of(one, at.request, first, revision)
    others = event_of(other, at.request, second, revision)
    term = Term("choice", "", one.worker or "", other.worker or "")
    if routed is not None:
        term = first_difference(routed, others, exclusions_of(other)) or term
    return SettingsComparison(
        request=at.event.request,
        attempt=at.event.attempt,
        replica=at.replica,
        replica_name=names.replica(at.replica),
        seq=at.seq,
        time_ms=at.time_ms,
        same=same,
        recorded=side(at.event, names.worker(at.event.worker)),
        first=side(routed, names.worker(one.worker or "")),
        second=side(others, names.worker(other.worker or "")),
        term=term.term,
        term_worker=term.worker,
        term_worker_name=names.worker(term.worker) if term.worker else "",
        term_first=term.recorded,
        term_second=term.recomputed,
    )
