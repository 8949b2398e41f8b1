"""Verdict: one recorded decision made again, and whether it comes out the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from core.events import RequestRouted
from core.settings import RoutingSettings
from projections.policy.decide import Decision, decide
from replay.doubts import rolled_back
from replay.names import Names
from replay.playback import Playback, Refusal, Situation
from replay.verifying.agreements import Agreements
from replay.verifying.differences import Side, Term, again, counts, equal, first_difference, left_out, side
from replay.verifying.refused import Again, refused_again

VERIFIED, DIFFERENT, NOT_JUDGED = "verified", "different", "not judged"
REASONS = ("version", "replaced", "end", "cut", "settings", "unknown", "deleted", "gap")
"""Why a decision that comes out otherwise is not judged; the first that holds is the reason."""
REPLACED = "replaced"
LIFTED = frozenset({"cut", "deleted", "gap"})
"""Reasons that hold only until the replica is known to have had our folds."""
REFUSED = "refused"
"""Stands for the digest of a request that nobody could serve: it has none."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that does not follow from the log."""

    request: str
    attempt: int
    replica: str
    replica_name: str
    seq: int
    """Of the message in the routing stream that says it."""
    time_ms: int
    term: str
    """The first of `replay.verifying.differences.TERMS` that differs."""
    term_worker: str
    """The candidate that the term is about; empty if about none."""
    term_worker_name: str
    term_recorded: Any
    term_recomputed: Any
    recorded: Side
    recomputed: Side


class Verdict(msgspec.Struct, frozen=True):
    """What became of one decision."""

    seq: int
    number: int
    """Of the event in that message."""
    request: str
    attempt: int
    replica: str
    recorded: str
    """The digest; REFUSED for a refusal."""
    recomputed: str
    recorded_worker: str
    """Empty for a refusal."""
    worker: str
    """Chosen now; empty for nobody."""
    cost: int
    decide_version: int
    """Of the program that recorded it; 0 for a refusal."""
    verdict: str = VERIFIED
    """VERIFIED, DIFFERENT or NOT_JUDGED."""
    reason: str = ""
    """One of REASONS, for what is not judged."""
    why: str = ""
    """The same as a sentence."""
    difference: Difference | None = None

    @property
    def refusal(self) -> bool:
        """Whether the request was refused, not routed."""
        return self.recorded == REFUSED


def verdicts(playback: Playback) -> Iterator[Verdict]:
    """One per decision and refusal that is played, in the order of the log."""
    judge = _Judge(playback)
    for window in playback.windows():
        found = [judge.decided(at) if isinstance(at, Situation) else judge.refused(at) for at in window]
        found.sort(key=place)
        yield from found


def place(verdict: Verdict) -> tuple[int, int]:
    """Where it stands in the log."""
    return verdict.seq, verdict.number


def remade(at: Situation, settings: RoutingSettings | None = None) -> Decision | str:
    """The decision made again, under its own settings or others; what was raised if that cannot be done: rules of this
    program may fail on what others decided well."""
    event = at.event
    try:
        return decide(at.view, at.request, settings or at.settings, event.now_ms, event.seed)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told as a difference
        return f"{type(error).__name__}: {error}"


def first_term(at: Situation, decision: Decision | str) -> tuple[Term | None, RequestRouted | None]:
    """Where the decision parts from what was recorded, if it does, and the decision as it would be recorded."""
    event = at.event
    if isinstance(decision, str):
        return Term("failure", "", "", decision), None
    routed = again(decision, at.request, at.settings, event.settings_revision)
    if routed is not None and equal(event, routed):
        return None, routed
    return first_difference(event, routed, left_out(decision)), routed


def difference(at: Situation, term: Term, routed: RequestRouted | None, names: Names) -> Difference:
    """The two sides: what was recorded, and `routed`."""
    event = at.event
    return Difference(
        request=event.request,
        attempt=event.attempt,
        replica=at.replica,
        replica_name=names.replica(at.replica),
        seq=at.seq,
        time_ms=at.time_ms,
        term=term.term,
        term_worker=term.worker,
        term_worker_name=names.worker(term.worker) if term.worker else "",
        term_recorded=term.recorded,
        term_recomputed=term.recomputed,
        recorded=side(event, names.worker(event.worker)),
        recomputed=side(routed, names.worker(routed.worker) if routed else ""),
    )


class _Judge:
    """Comes to a verdict on each situation as it is given."""

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        self._recording = playback.recording
        self._agreements: Agreements | None = None

    def decided(self, at: Situation) -> Verdict:
        event = at.event
        decision = "" if REPLACED in at.doubts else remade(at)  # of another history: nothing to decide on is here
        term, routed = first_term(at, decision)
        costs = routed.columns["cost"] if routed else ()
        recomputed = decision if isinstance(decision, str) else decision.digest
        ours = (
            at.seq, at.number, event.request, event.attempt, at.replica, event.digest, recomputed, event.worker,
            routed.worker if routed else "", costs[0] if costs else 0, event.decide_version,
        )  # fmt: skip
        if term is None:
            return Verdict(*ours)
        reason, why = self._excuse(at)
        if reason:
            return Verdict(*ours, NOT_JUDGED, reason, why)
        return Verdict(*ours, DIFFERENT, "", "", difference(at, term, routed, self._recording.names))

    def refused(self, at: Refusal) -> Verdict:
        event, found = at.event, refused_again(at)
        worker = found.worker or ""
        recomputed = REFUSED if found.same else worker or "refused for other reasons"
        ours = (at.seq, at.number, event.request, event.attempt, at.replica, REFUSED, recomputed, "", worker, 0, 0)
        if found.same:
            return Verdict(*ours)
        reason, why = self._excuse(at)
        if reason:
            return Verdict(*ours, NOT_JUDGED, reason, why)
        return Verdict(*ours, DIFFERENT, "", "", _other_refusal(at, found, self._recording.names))

    def _excuse(self, at: Situation | Refusal) -> tuple[str, str]:
        """Why one that comes out otherwise is not judged, as reason and sentence; empty if it is."""
        doubts = at.doubts
        if doubts.keys() & LIFTED:
            if self._agreements is None:
                self._agreements = Agreements(self._recording)
            doubts = self._playback.doubts(at, self._agreements.before(at.replica, at.seq))
        if not doubts:
            why = rolled_back(self._recording, at.event, at.time_ms)
            doubts = {REPLACED: why} if why else {}
        reason = next((reason for reason in REASONS if reason in doubts), "")
        return reason, doubts.get(reason, "")


def _other_refusal(at: Refusal, found: Again, names: Names) -> Difference:
    event, worker = at.event, found.worker or ""
    name = names.worker(worker) if worker else ""
    said, now = ("", worker) if worker else (counts(event.excluded), counts(found.excluded))
    return Difference(
        request=event.request,
        attempt=event.attempt,
        replica=at.replica,
        replica_name=names.replica(at.replica),
        seq=at.seq,
        time_ms=at.time_ms,
        term="choice" if worker else "excluded",
        term_worker=worker,
        term_worker_name=name,
        term_recorded=said,
        term_recomputed=now,
        recorded=Side(worker="", name="", cost=0, predicted_cached_tokens=0, digest=REFUSED),
        recomputed=Side(worker=worker, name=name, cost=0, predicted_cached_tokens=0, digest=""),
    )
