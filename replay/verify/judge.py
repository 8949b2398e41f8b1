"""Verdicts: recorded decisions and refusals made again and compared, with the first term that differs.

Terms are compared from the inputs of a decision to its results, so the first that differs is nearest to the cause.

Decisions and refusals are judged in one form, `Remade`: made again, compared term by term, excused term by term
(`replay.verify.differing_terms`). Prefill verdicts rest on nothing but their own record, so no message that is missing
excuses them, and `replay.verify.prefill_checks` shares only the evidence of newer rules.

The prompt of a refused request is not in the log; but the exclusions depend on nothing of it but its block size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UnsetType

from core.events import PromptBase, RequestRejected, RequestRouted
from core.events.routing import COLUMNS, LEVEL_COLUMNS, REUSE, TIMED_COLUMNS, TURNOVER, WAIT, PrefixFetch
from core.ids import ReplicaId, RequestId, StreamName, from_column
from core.prompt import HashedPrompt
from core.settings import RoutingSettings
from core.subjects import JOBS
from projections.policy.cost import BLOCK_COST_POLICIES, ESTIMATING_POLICIES, MILLI, REQUEST_COST_POLICIES
from projections.policy.decide import Decision, decide, record, recorded_exclusions, rejection_reason
from projections.policy.rules import RULES
from projections.policy.view import RouteRequest, View
from replay.playback.playback import Playback, RecordedDecision, RecordedRefusal
from replay.recording.gaps import Gaps
from replay.recording.participants import Participants
from replay.recording.prompt_columns import base_text
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES
from replay.verify.chain_proof import gaps_of, prove
from replay.verify.differing_terms import REUSE_MAX, Term, judged_terms, reuse_max
from replay.verify.evidence import Evidence, Unverifiable

BEFORE_COST = (
    "overlap", "overlap_all", "pending", "active_blocks", "active_requests", "prefill", "waiting", "known", "wait_us",
    "reuse", "turnover", *LEVEL_COLUMNS,
)  # fmt: skip
"""Columns in the order in which they are looked at; the cost follows from them and comes last."""
TERMS = {
    "rules": "the rules: this program does not have their version",
    "base": "the decision that it continues",
    "settings_revision": "the settings that the replica had",
    "cursor": "how far the replica had read the log",
    "candidates": "who could serve it",
    "excluded": "who was left out",
    "overlap": "blocks cached on the device",
    "overlap_all": "blocks cached in any tier",
    "pending": "blocks being computed there for another request",
    "active_blocks": "blocks in flight there",
    "active_requests": "requests in flight there",
    "prefill": "blocks to prefill there, in thousandths of a block",
    "waiting": "requests waiting there",
    "known": "whether its cache is known",
    "wait_us": "how long prefills there would hold it up, in microseconds",
    "reuse": "what the talks reuse that live there",
    "turnover": "how much more of its cache prompts filled of late than elsewhere",
    "overlap_host": "blocks cached on the device or on the host",
    "overlap_disk": "blocks cached on device, host or disk",
    REUSE_MAX: "the greatest reuse of all candidates",
    "cost": "cost",
    "choice": "the choice",
    "order": "the order of the candidates",
    "predicted": "cached tokens predicted",
    "prefill_tokens": "tokens to prefill",
    "blocks": "blocks that it occupies there",
    "wait": "how long prefills were expected to hold it up, in microseconds",
    "policy": "the policy",
    "prefer": "the prefill worker that holds most of the prompt",
    "prefer_tokens": "how much of the prompt that one holds",
    "believed": "what the worker is taken to keep",
    "fetch": "the worker from which the start of the prompt is fetched",
    "reason": "why it was refused",
    "digest": "something that the record does not show: a further candidate, or what only the replica knew",
    "failure": "this program cannot make the decision",
}
"""Every term, for people."""
assert set(BEFORE_COST) | {"cost"} == {*COLUMNS, *TIMED_COLUMNS, *LEVEL_COLUMNS}


class CostUnit(NamedTuple):
    """The unit of a policy's costs."""

    cost: str
    thousand: str
    """The unit of a thousand of it."""


COST_UNITS = {
    **dict.fromkeys(ESTIMATING_POLICIES, CostUnit("microseconds", "ms")),
    **dict.fromkeys(BLOCK_COST_POLICIES, CostUnit("thousandths of a weighted block", "blocks")),
    **dict.fromkeys(REQUEST_COST_POLICIES, CostUnit("thousandths of a request", "requests")),
}
"""By policy; the costs of all further policies are 0."""
NO_UNIT = CostUnit("", "")


class DecisionSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of two decisions, for people and for JSON."""

    worker: str
    """The chosen worker; empty if none could serve."""
    name: str
    cost: int
    """Of the chosen one, in the unit of the policy's costs (`COST_UNITS`)."""
    predicted_cached_tokens: int
    digest: str
    policy: str = ""
    """Empty for a refusal."""

    @property
    def cost_unit(self) -> CostUnit:
        """The unit of its cost; empty names where costs have none."""
        return COST_UNITS.get(self.policy, NO_UNIT)

    @property
    def cost_text(self) -> str:
        """The cost with the unit of a thousand of it."""
        return f"{self.cost / MILLI:g} {self.cost_unit.thousand}".rstrip()


def term_text(term: str, worker_name: str, one: DecisionSide, other: DecisionSide) -> str:
    """The term for people, with the worker concerned, if any, and its unit where both sides have the same."""
    noun, _, unit = TERMS.get(term, term).partition(", in ")
    if term == "cost" and one.cost_unit == other.cost_unit:
        unit = one.cost_unit.cost
    return noun + (f" of {worker_name}" if worker_name else "") + (f", in {unit}" if unit else "")


def event_of(
    decision: Decision, request: RouteRequest, settings: RoutingSettings, revision: int
) -> RequestRouted | None:
    """The decision as its event would record it; None if no worker could serve."""
    return None if decision.worker is None else record(decision, request, settings, revision)


def side(routed: RequestRouted | None, name: str, digest: str = "") -> DecisionSide:
    """The decision as a side of a comparison; `digest` counts if no worker could serve."""
    if routed is None:
        return DecisionSide(worker="", name="", cost=0, predicted_cached_tokens=0, digest=digest)
    costs = routed.columns.get("cost", ())
    return DecisionSide(
        worker=routed.worker,
        name=name,
        cost=costs[0] if costs else 0,
        predicted_cached_tokens=routed.predicted_cached_tokens,
        digest=routed.digest,
        policy=routed.policy,
    )


def first_difference(
    recorded: RequestRouted, recomputed: RequestRouted | None, excluded: dict[str, tuple[int, bytes]]
) -> Term | None:
    """The first term that differs; None if they are equal. `excluded` belongs to the recomputed decision."""
    return next(_differences(recorded, recomputed, excluded), None)


def equal(recorded: RequestRouted, recomputed: RequestRouted) -> bool:
    """True if all results are the same, not only the digest: a forged record could state the digest alone."""
    return (
        recorded.digest == recomputed.digest
        and recorded.cursor == recomputed.cursor
        and recorded.worker == recomputed.worker
        and recorded.columns == recomputed.columns
        and recorded.candidates == recomputed.candidates
        and recorded.excluded == recomputed.excluded
        and recorded.blocks == recomputed.blocks
        and recorded.candidates_total == recomputed.candidates_total
        and recorded.prefill_tokens == recomputed.prefill_tokens
        and recorded.predicted_cached_tokens == recomputed.predicted_cached_tokens
        and recorded.policy == recomputed.policy
        and recorded.prefer == recomputed.prefer
        and recorded.prefer_tokens == recomputed.prefer_tokens
        and recorded.wait_us == recomputed.wait_us
        and recorded.believed == recomputed.believed
        and recorded.fetch == recomputed.fetch
    )


def fetch_text(fetch: PrefixFetch | UnsetType) -> str:
    """Source, tokens and time of the fetch; empty if there is none."""
    if isinstance(fetch, UnsetType) or not fetch.source:
        return ""
    return f"{fetch.source}, {fetch.tokens} tokens, {fetch.us} us"


def exclusions_of(decision: Decision) -> dict[str, tuple[int, bytes]]:
    """Its exclusions, as `first_difference` takes them."""
    return recorded_exclusions(decision.excluded)


def _differences(
    recorded: RequestRouted, recomputed: RequestRouted | None, excluded: dict[str, tuple[int, bytes]]
) -> Iterator[Term]:
    ours, theirs = from_column(recorded.candidates), from_column(recomputed.candidates) if recomputed else []
    total = recomputed.candidates_total if recomputed else 0
    whole = recorded.candidates_total == len(ours) and total == len(theirs)
    if recorded.candidates_total != total or (whole and set(ours) != set(theirs)):
        yield Term("candidates", "", sorted(ours), sorted(theirs))
    if recorded.excluded != excluded:
        yield Term("excluded", "", counts(recorded.excluded), counts(excluded))
    if recomputed is None:
        yield Term("choice", recorded.worker, recorded.worker, "")
        return
    yield from _columns(recorded, recomputed, ours, theirs)
    if recorded.worker != recomputed.worker:
        yield Term("choice", recorded.worker, recorded.worker, recomputed.worker)
    if ours != theirs:
        yield Term("order", "", ours, theirs)
    for term, one, other in (
        ("fetch", fetch_text(recorded.fetch), fetch_text(recomputed.fetch)),
        ("predicted", recorded.predicted_cached_tokens, recomputed.predicted_cached_tokens),
        ("prefill_tokens", recorded.prefill_tokens, recomputed.prefill_tokens),
        ("blocks", recorded.blocks, recomputed.blocks),
        ("wait", recorded.wait_us, recomputed.wait_us),
        ("policy", recorded.policy, recomputed.policy),
        ("prefer", recorded.prefer, recomputed.prefer),
        ("prefer_tokens", recorded.prefer_tokens, recomputed.prefer_tokens),
        ("believed", recorded.believed, recomputed.believed),
        ("digest", recorded.digest, recomputed.digest),
    ):
        if one != other:
            yield Term(term, "", one, other)


def _columns(recorded: RequestRouted, recomputed: RequestRouted, ours: list[str], theirs: list[str]) -> Iterator[Term]:
    """Term by term, and within each candidate by candidate in the order of the record."""
    places = {worker: place for place, worker in enumerate(theirs)}
    both = [(worker, place, places[worker]) for place, worker in enumerate(ours) if worker in places]
    for term in (*BEFORE_COST, "cost"):
        before, now = _column(recorded, term), _column(recomputed, term)
        if term == "cost" and WAIT in recorded.columns and WAIT in recomputed.columns:
            most, most_now = reuse_max(recorded), reuse_max(recomputed)
            if most != most_now:
                yield Term(REUSE_MAX, "", most, most_now)
        for worker, one, other in both:
            if one < len(before) and other < len(now) and before[one] != now[other]:
                yield Term(term, worker, before[one], now[other])


def _column(event: RequestRouted, term: str) -> tuple[int, ...]:
    """Its column of that name. One of reuse or turnover that is left out has no other than 0, where the policy reads
    any; one of a level is that of all tiers, where load times were read."""
    found: tuple[int, ...] | None = event.columns.get(term)
    if found is None and term in LEVEL_COLUMNS:
        return _column(event, "overlap_all") if event.load_time else ()
    if found is None:
        found = (0,) * len(event.columns["cost"]) if term in (REUSE, TURNOVER) and WAIT in event.columns else ()
    return found


def counts(excluded: dict[str, tuple[int, bytes]]) -> dict[str, Any]:
    """Exclusions for people and for JSON."""
    return {reason: {"count": count, "first": from_column(ids)} for reason, (count, ids) in sorted(excluded.items())}


class Remade(NamedTuple):
    """A recorded decision or refusal made again: the one form in which both are judged."""

    terms: Sequence[Term]
    """All terms that differ from the record, from inputs to results; none if the record follows from the log."""
    decision: Decision | None = None
    """None if this program cannot make it."""
    routed: RequestRouted | None = None
    """Its record; None if no worker could serve."""

    @property
    def worker(self) -> str:
        """The chosen worker; empty if none could serve."""
        return (self.decision.worker or "") if self.decision is not None else ""


def remake_refusal(at: RecordedRefusal) -> list[Remade]:
    """The request asked again with every block size that its prompt may have been cut into; the one that gives the
    record alone, if one does."""
    if at.event.decide_version not in RULES:
        return [Remade([rules_term(at.event.decide_version)])]
    found = [_decide_again(at, size) for size in _block_sizes(at.view, at.event.model)]
    return next(([again] for again in found if not again.terms), found)


def _decide_again(at: RecordedRefusal, block_size: int) -> Remade:
    event, prompt = at.event, HashedPrompt(1, block_size, b"")
    request = RouteRequest(RequestId(event.request), event.attempt, event.model, prompt, adapter=event.adapter or "")
    decision = decide(at.view, request, at.settings, event.now_ms, 0, version=event.decide_version)
    return Remade([*_revision_differences(at), *_refusal_differences(event, decision)], decision)


def _refusal_differences(event: RequestRejected, decision: Decision) -> Iterator[Term]:
    excluded = recorded_exclusions(decision.excluded)
    if decision.ranked:
        yield Term("candidates", "", [], [str(each.candidate.worker) for each in decision.ranked])
    if excluded != event.excluded:
        yield Term("excluded", "", counts(event.excluded), counts(excluded))
    if not _answers_alike(event):
        yield Term("reason", "", f"{event.reason}, status {event.status}", rejection_reason(excluded))


def _answers_alike(event: RequestRejected) -> bool:
    """True if reason and status are those of the exclusions: 500 stands only for a later attempt, behind an answer that
    had begun."""
    statuses = (503, 500) if event.attempt else (503,)
    return event.reason == rejection_reason(event.excluded) and event.status in statuses


def _block_sizes(view: View, model: str) -> list[int]:
    """The block sizes of the model's workers, and one that no worker has: a worker that had it may be gone."""
    joined = [member.joined for member in view.state.alive() if member.joined is not None]
    sizes = sorted({each.block_size for each in joined if each.model == model})
    return [*sizes, max((each.block_size for each in joined), default=0) + 1]


VERIFIED, DIFFERENT, NOT_JUDGED = "verified", "different", "not judged"
REFUSED = "refused"
"""Instead of the digest of a refused request, which has none."""


class DecisionDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that does not follow from the log."""

    request: str
    attempt: int
    replica: str
    replica_name: str
    seq: int
    """Of the message in the routing stream that says it."""
    time_ms: int
    term: str
    """The first of `replay.verify.judge.TERMS` that differs."""
    term_worker: str
    """The candidate that the term is about; empty if about none."""
    term_worker_name: str
    term_recorded: Any
    term_recomputed: Any
    recorded: DecisionSide
    recomputed: DecisionSide


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on one decision or refusal."""

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
    """The worker chosen now; empty for none."""
    cost: int
    decide_version: int
    """Of the program that recorded it; 0 for a refusal."""
    verdict: str = VERIFIED
    """VERIFIED, DIFFERENT or NOT_JUDGED."""
    reason: str = ""
    """Of `replay.verify.evidence.REASONS`, for what is not judged."""
    why: str = ""
    """The same as a sentence."""
    difference: DecisionDifference | None = None

    @property
    def refusal(self) -> bool:
        """True if the request was refused, not routed."""
        return self.recorded == REFUSED


def verdicts(playback: Playback) -> Iterator[Verdict]:
    """One per decision and refusal that is played, in the order of the log."""
    judge = _Judge(playback)
    for window in playback.windows():
        found = [judge.decided(at) if isinstance(at, RecordedDecision) else judge.refused(at) for at in window]
        found.sort(key=place)
        yield from found


def place(verdict: Verdict) -> tuple[int, int]:
    """The verdict's place in the log, to sort by."""
    return verdict.seq, verdict.number


Judged = TypeVar("Judged", bound=tuple[Any, ...])


class RemadeDecision(NamedTuple):
    """One decision of a recording, made again."""

    at: RecordedDecision
    decision: Decision | str
    same: bool
    excuse: Unverifiable | None
    """Why a decision that differs is not judged."""


def judge_decision(
    recording: Recording, seq: int, replica: ReplicaId, request: str, attempt: int
) -> RemadeDecision | None:
    """The decision in that message of the routing stream, as `verify` judges it; None if it cannot be played. A
    decision that differs costs a proof of the whole recording, for its gaps."""
    return _judged(
        recording, lambda gaps: _judge_alone(recording, gaps, seq, replica, request, attempt), lambda found: found.same
    )


def _judged(
    recording: Recording, judge: Callable[[Gaps], Judged | None], holds: Callable[[Judged], bool]
) -> Judged | None:
    """The finding of `judge` with the gaps that messages show; if that does not hold, with those that chains prove."""
    gaps = gaps_of(recording)
    found = judge(gaps)
    if found is None or holds(found):
        return found
    proved = prove(recording).gaps
    if proved.all == gaps.all and not proved.replaced:
        return found
    return judge(proved)


def _judge_alone(
    recording: Recording, gaps: Gaps, seq: int, replica: ReplicaId, request: str, attempt: int
) -> RemadeDecision | None:
    playback = Playback(recording, seq, seq + 1, replica=replica, gaps=gaps)
    for at in playback:
        if (at.event.request, at.event.attempt) == (request, attempt):
            decision = remake(at)
            it = remade(at, decision)
            evidence, found = Evidence(playback), None
            if it.terms:
                found = judged_terms(at, it.decision, it.terms, evidence.all(at), evidence.replaced_states(at))
            return RemadeDecision(at, decision, not it.terms, found if isinstance(found, Unverifiable) else None)
    return None


class DecisionVerdict(NamedTuple):
    """One decision or refusal of a recording, with its verdict."""

    at: RecordedDecision | RecordedRefusal
    verdict: Verdict


def judge_at(recording: Recording, number: int, replica: ReplicaId) -> DecisionVerdict | None:
    """The decision or refusal of the event with that number (see `request_history`), as `verify` judges it; None if it
    cannot be played. One that differs costs a proof of the whole recording, for its gaps."""
    return _judged(
        recording,
        lambda gaps: _verdict_alone(recording, gaps, number, replica),
        lambda found: found.verdict.verdict == VERIFIED,
    )


def _verdict_alone(recording: Recording, gaps: Gaps, number: int, replica: ReplicaId) -> DecisionVerdict | None:
    seq, at_place = divmod(number, PLACES)
    playback = Playback(recording, seq, seq + 1, replica=replica, gaps=gaps)
    judge = _Judge(playback)
    for at in playback.everything():
        if at.number == at_place:
            verdict = judge.decided(at) if isinstance(at, RecordedDecision) else judge.refused(at)
            return DecisionVerdict(at, verdict)
    return None


def remake(at: RecordedDecision, settings: RoutingSettings | None = None) -> Decision | str:
    """The decision made again by its own version of the rules, under its own settings or others; a sentence if that
    cannot be done: this program lacks that version, or the rules raised."""
    event = at.event
    if event.decide_version not in RULES:
        return f"this program does not have version {event.decide_version} of the rules"
    if at.fault is not None:
        return f"its prompt is not known: {at.fault.text}"
    try:
        return decide(
            at.view, at.request, settings or at.settings, event.now_ms, event.seed, version=event.decide_version
        )
    except Exception as error:  # noqa: BLE001 - any error of the rules is a difference
        return f"{type(error).__name__}: {error}"


def remade(at: RecordedDecision, decision: Decision | str) -> Remade:
    """The decision compared with its record."""
    event = at.event
    if event.decide_version not in RULES:
        return Remade([rules_term(event.decide_version)])
    if at.fault is not None:
        base = base_text(event.base) if isinstance(event.base, PromptBase) else ""
        return Remade([Term("base", "", base, at.fault.text)])
    if isinstance(decision, str):
        return Remade([Term("failure", "", "", decision)])
    routed = event_of(decision, at.request, at.settings, event.settings_revision)
    terms = [*_revision_differences(at)]
    if not terms and routed is not None and equal(event, routed):
        return Remade((), decision, routed)
    terms += _differences(event, routed, exclusions_of(decision))
    if event.cursor != decision.cursor:
        terms.insert(0, Term("cursor", "", event.cursor, decision.cursor))
    return Remade(terms or [Term("digest", "", event.digest, decision.digest)], decision, routed)


def _revision_differences(at: RecordedDecision | RecordedRefusal) -> Iterator[Term]:
    """The settings that the record names, if the replica had others by its chain."""
    state = at.replica_state
    if state.settings_known and state.revision != at.event.settings_revision:
        yield Term("settings_revision", "", at.event.settings_revision, state.revision)


def rules_term(version: int) -> Term:
    """The difference of a decision by a version of the rules that this program does not have."""
    return Term("rules", "", version, max(RULES))


def difference(
    at: RecordedDecision, term: Term, routed: RequestRouted | None, names: Participants
) -> DecisionDifference:
    """The two sides: the recorded decision, and `routed`."""
    recorded = side(at.event, names.worker(at.event.worker))
    return _difference(at, term, recorded, side(routed, names.worker(routed.worker) if routed else ""), names)


def _refusal_difference(at: RecordedRefusal, term: Term, worker: str, names: Participants) -> DecisionDifference:
    if term.term == "candidates":
        term = Term("choice", worker, "", worker)
    now = DecisionSide(
        worker=worker, name=names.worker(worker) if worker else "", cost=0, predicted_cached_tokens=0, digest=""
    )
    return _difference(at, term, side(None, "", REFUSED), now, names)


def _difference(
    at: RecordedDecision | RecordedRefusal,
    term: Term,
    recorded: DecisionSide,
    recomputed: DecisionSide,
    names: Participants,
) -> DecisionDifference:
    return DecisionDifference(
        request=at.event.request,
        attempt=at.event.attempt,
        replica=at.replica,
        replica_name=names.replica(at.replica),
        seq=at.seq,
        time_ms=at.time_ms,
        term=term.term,
        term_worker=term.worker,
        term_worker_name=names.worker(term.worker) if term.worker else "",
        term_recorded=term.recorded,
        term_recomputed=term.recomputed,
        recorded=recorded,
        recomputed=recomputed,
    )


class _Judge:
    """Comes to a verdict on each decision as it is given."""

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        self._recording = playback.recording
        self._evidence = Evidence(playback)

    def decided(self, at: RecordedDecision) -> Verdict:
        event = at.event
        decision = remake(at)
        found = remade(at, decision)
        routed, digest = found.routed, decision if isinstance(decision, str) else decision.digest
        if found.terms and self._playback.replaced_streams(event):
            routed, digest = None, ""  # made on a part of its history
        costs = routed.columns["cost"] if routed else ()
        ours = (
            at.seq, at.number, event.request, event.attempt, at.replica, event.digest, digest, event.worker,
            routed.worker if routed else "", costs[0] if costs else 0, event.decide_version,
        )  # fmt: skip
        if not found.terms:
            return Verdict(*ours)
        missing, replaced = self._evidence.all(at), self._evidence.replaced_states(at)
        term = judged_terms(at, found.decision, found.terms, missing, replaced)
        if isinstance(term, Unverifiable):
            return Verdict(*ours, NOT_JUDGED, term.reason, term.text)
        cause = self._cause(at) or term or found.terms[0]
        return Verdict(*ours, DIFFERENT, "", "", difference(at, cause, routed, self._recording.names))

    def refused(self, at: RecordedRefusal) -> Verdict:
        event, tried = at.event, remake_refusal(at)
        found = tried[0]
        recomputed = found.worker or "refused for other reasons" if found.terms else REFUSED
        ours = (
            at.seq,
            at.number,
            event.request,
            event.attempt,
            at.replica,
            REFUSED,
            recomputed,
            "",
            found.worker,
            0,
            0,
        )
        if not found.terms:
            return Verdict(*ours)
        missing, replaced = self._evidence.all(at), self._evidence.replaced_states(at)
        terms = [judged_terms(at, each.decision, each.terms, missing, replaced) for each in tried]
        if excuse := next((each for each in terms if isinstance(each, Unverifiable)), None):
            return Verdict(*ours, NOT_JUDGED, excuse.reason, excuse.text)
        term = terms[0] if isinstance(terms[0], Term) else found.terms[0]
        return Verdict(*ours, DIFFERENT, "", "", _refusal_difference(at, term, found.worker, self._recording.names))

    def _cause(self, at: RecordedDecision) -> Term | None:
        """A claim of the record that the log contradicts, before any term of the decision: a place that the replica
        cannot have read."""
        event, source = at.event, self._playback.source
        replaced = self._playback.replaced_streams(event)
        for name, (epoch, seq) in event.cursor.items():
            stream = StreamName(name)
            here = source.epochs.get(stream)
            if stream in replaced or (here == epoch and stream != JOBS and seq > source.ends[stream]):
                found = f"{stream}:{source.ends[stream]} of epoch {here}" if here is not None else "no such stream"
                return Term("cursor", "", f"{stream}:{seq} of epoch {epoch}", found)
        return None
