"""Differing terms: the inputs on which each term of a decision rests, and terms that missing messages do not excuse.

1. A term of a candidate rests on messages of that worker and of the pools that it reads, or of all replicas:
   `TERM_INPUTS`. Missing messages of other sources excuse no difference in it.
2. A cost follows from the recorded terms of its candidate, and the order from the recorded costs. So these are
   differences where the record contradicts itself, even if messages are missing.
3. The digest covers further candidates and facts that the record does not show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType

from core.events import RequestRouted
from core.events.routing import REUSE, TURNOVER, PrefixFetch
from core.ids import StreamName, WorkerId, from_column
from core.settings import APPROXIMATE
from core.subjects import LOAD, ROUTING, is_kv
from projections.policy.candidates import LAST_RESORT_REASONS
from projections.policy.cost import ScoredCandidate
from projections.policy.decide import Decision
from projections.policy.prefix_fetch import with_fetches
from projections.policy.rules import DELAYS_VERSION, POOLS_VERSION, RULES
from replay.playback.playback import RecordedDecision, RecordedRefusal
from replay.verify.evidence import REASONS, Unverifiable
from replay.verify.replaced_states import ReplacedStates

REUSE_MAX = "reuse_max"
"""The term of the greatest reuse of all candidates."""


class Term(NamedTuple):
    """One difference of two decisions."""

    term: str
    """Of `replay.verify.judge.TERMS`."""
    worker: str
    """The candidate concerned; empty if none is."""
    recorded: Any
    recomputed: Any


class Input(Enum):
    """Messages on which a term may rest."""

    CACHE = auto()
    """Of the worker, and of the pools that it reads, in the kv streams."""
    REPORT = auto()
    """Of the worker, in the load stream."""
    IN_FLIGHT = auto()
    """Of all replicas."""
    OWN = auto()
    """Of the replica that decided."""
    SETTINGS = auto()
    """The settings of that replica."""


OF_WORKER = frozenset({Input.CACHE, Input.REPORT})
"""Inputs of one worker alone."""
_MEMBERSHIP = (Input.CACHE, Input.REPORT, Input.OWN, Input.SETTINGS)
_CACHED = (Input.CACHE,)
TERM_INPUTS: Mapping[str, tuple[Input, ...]] = {
    "rules": (Input.SETTINGS,),
    "settings_revision": (Input.SETTINGS,),
    "candidates": _MEMBERSHIP,
    "excluded": _MEMBERSHIP,
    "overlap": _CACHED,
    "overlap_all": _CACHED,
    "overlap_host": _CACHED,
    "overlap_disk": _CACHED,
    "pending": (Input.IN_FLIGHT,),
    "active_blocks": (Input.IN_FLIGHT,),
    "active_requests": (Input.IN_FLIGHT,),
    "prefill": (Input.CACHE, Input.IN_FLIGHT, Input.SETTINGS),
    "waiting": (Input.REPORT,),
    "known": _CACHED,
    "wait_us": (Input.IN_FLIGHT, Input.SETTINGS),
    "reuse": (Input.REPORT,),
    "turnover": (Input.REPORT,),
    "cost": (Input.SETTINGS,),
    "choice": (Input.SETTINGS,),
    "order": (Input.SETTINGS,),
    "policy": (Input.SETTINGS,),
    "prefer": (Input.OWN,),
    "prefer_tokens": (Input.OWN,),
    "believed": (Input.IN_FLIGHT, Input.SETTINGS),
    "fetch": (Input.CACHE, Input.IN_FLIGHT, Input.OWN, Input.SETTINGS),
    "digest": (Input.IN_FLIGHT, Input.SETTINGS),
}
"""The inputs of each term beside other terms; a term that is not here has none."""


def judged_terms(
    at: RecordedDecision | RecordedRefusal,
    decision: Decision | None,
    terms: Iterable[Term],
    missing: list[Unverifiable],
    replaced: ReplacedStates | None = None,
) -> Term | Unverifiable | None:
    """The first term that no missing message excuses; if all are excused, the first reason in the order of REASONS.
    None without a term. `decision` is the one made again, from whose record the terms differ; `replaced`: states of a
    history that was replaced, which excuse a term that they explain."""
    excuses = _Excuses(at, decision, missing, replaced)
    for term in terms:
        if not excuses.hold_for(term):
            return term
    return min(excuses.used, key=lambda each: REASONS.index(each.reason), default=None)


class _Excuses:
    """Takes the terms of one decision in their order, from inputs to results."""

    def __init__(
        self,
        at: RecordedDecision | RecordedRefusal,
        decision: Decision | None,
        missing: list[Unverifiable],
        replaced: ReplacedStates | None,
    ) -> None:
        self.used: list[Unverifiable] = []
        """The reasons that excuse a term so far."""
        self._at, self._event, self._decision = at, at.event, decision
        self._missing = [(each, self._inputs(each)) for each in missing]
        self._replaced = replaced
        self._explaining: dict[str, list[Unverifiable]] = {}
        """By worker with a term that a replaced history explains."""
        self._ours = from_column(at.event.candidates) if isinstance(at.event, RequestRouted) else []
        self._theirs = [str(each.candidate.worker) for each in decision.ranked] if decision is not None else []
        self._shows_all = len(self._ours) == getattr(at.event, "candidates_total", 0)
        self._workers: set[str] = set()
        """Workers with a term that is excused."""
        self._is_other_reuse = False
        """True if the greatest reuse may be another than in the log."""
        self._costs_by_reuse: dict[WorkerId, int] = {}
        policies = {getattr(at.event, "policy", ""), at.settings.policy}
        self._approximate = APPROXIMATE in policies
        self._counts_no_pools = getattr(at.event, "decide_version", POOLS_VERSION) < POOLS_VERSION
        self._chosen_by_turn = "round-robin" in policies
        self._is_other_fetch = False
        """True if the fetch may be another than in the log."""
        self._fetches = isinstance(getattr(at.event, "fetch", UNSET), PrefixFetch)

    def hold_for(self, term: Term) -> bool:
        """True if missing messages, or terms before that they excuse, excuse the term."""
        match term.term:
            case "cursor":
                holds = self._hold_for_cursor()
            case "base":
                holds = self._hold_for_base()
            case "candidates" | "excluded":
                holds = self._hold_for_workers(term)
            case "choice" | "order":
                turn = [Input.OWN] if self._chosen_by_turn else []
                holds = self._note(term, *turn) or (self._may_follow() and self._follows_from_costs())
            case "reuse_max" | "cost":
                holds = self._hold_for_cost(term)
            case "prefer" | "prefer_tokens" | "fetch":
                holds = self._hold_for_other_worker(term)
            case "predicted" | "prefill_tokens" | "blocks" | "wait":
                holds = self._chosen_differs() or self._is_other_fetch
            case "believed":
                chosen = getattr(self._event, "worker", "")
                holds = self._chosen_differs() or self._note(term._replace(worker=chosen), Input.CACHE)
            case "digest":
                holds = bool(self.used) or self._hold_for_hidden(term) or self._hold_for_digest()
            case _:
                holds = self._note(term) or self._hold_for_sources(term) or self._hold_for_turnover(term)
                self._workers |= {term.worker} if holds else set()
                self._is_other_reuse |= holds and term.term == REUSE
        return holds

    def _note(self, term: Term, *more: Input) -> bool:
        """True if messages that the term rests on are missing."""
        found = [*self._lacking(term.worker, *TERM_INPUTS.get(term.term, ()), *more)]
        if self._approximate and term.term in ("overlap", "overlap_all"):
            found = [*self._lacking(term.worker, Input.IN_FLIGHT, Input.SETTINGS)]
        elif not found:
            found = [*self._explained(term)]
        self.used += found
        return bool(found)

    def _explained(self, term: Term) -> Iterator[Unverifiable]:
        """The history that was replaced, if the worker can have been in it as the record says. What is to be computed
        there follows from such a term of the worker."""
        if self._replaced is None:
            return
        if term.term == "prefill" and term.worker in self._explaining:
            yield from self._explaining[term.worker]
        elif by := self._replaced.explains(term.term, term.worker):
            found = Unverifiable("replaced", f"history was replaced: {by.text}", by.stream, term.worker)
            self._explaining[term.worker] = [found]
            yield found

    def _lacking(self, worker: str, *inputs: Input) -> Iterator[Unverifiable]:
        """The reasons why such messages, of that worker or of any if it is empty, may be missing."""
        for each, missing in self._missing:
            for it in inputs:
                if it in missing and (not worker or it not in OF_WORKER or self._concerns(each, worker, it)):
                    yield each
                    break

    def _concerns(self, each: Unverifiable, worker: str, it: Input) -> bool:
        """True if messages of the worker may be missing; or if it reads pools, those of a pool of its own, or of a
        source of which the fold does not know what it is."""
        if each.concerns(worker):
            return True
        state = self._at.view.state
        member = state.member(WorkerId(worker))
        access = member.joined.pools if member is not None and member.joined is not None else UNSET
        if it is not Input.CACHE or isinstance(access, UnsetType) or self._counts_no_pools:
            return False
        if each.source is None:
            sources = [it.worker for it in state.pools() if it.pool and it.pool.pool in access.ids]
            return not sources or any(map(each.concerns, sources))
        source = state.member(WorkerId(each.source))
        if source is None or not source.has_joined:
            return source is None or not source.ended
        return not isinstance(source.pool, UnsetType) and source.pool.pool in access.ids

    def _inputs(self, each: Unverifiable) -> set[Input]:
        """The inputs of which messages may be missing by that reason."""
        replica, replica_state = self._at.replica, self._at.replica_state
        if each.reason in ("version", "settings"):
            return {Input.SETTINGS}
        found = {it for it in Input if _stream_has(each.stream, it)}
        if not each.concerns(replica):
            found.discard(Input.OWN)
        known = replica_state.settings_known and replica_state.revision == self._event.settings_revision
        return found - {Input.SETTINGS} if known or Input.OWN not in found else found

    def _hold_for_prefill_workers(self) -> bool:
        """Workers that answer no request, and such as the fold does not have: one of them may hold the prompt."""
        serving = {str(member.worker) for member in self._at.view.state.serving()}
        found = [each for each in self._lacking("", Input.CACHE, Input.REPORT) if each.source not in serving]
        self.used += found
        return bool(found)

    def _hold_for_other_worker(self, term: Term) -> bool:
        """A worker beside the chosen one that holds a part of the prompt."""
        holds = self._chosen_differs() or self._note(term)
        if term.term != "fetch":
            return holds or self._hold_for_prefill_workers()
        self._is_other_fetch = holds or self._hold_for_sources(term)
        return self._is_other_fetch

    def _hold_for_sources(self, term: Term) -> bool:
        """The blocks to prefill on one worker rest on the caches of all that fetch, if any do."""
        if not self._fetches or term.term not in ("fetch", "prefill"):
            return False
        found = [*self._lacking("", Input.CACHE)]
        if not found and self._replaced is not None:
            sources = map(str, self._at.view.state.fetchers())
            by = next(filter(None, (self._replaced.explains("overlap", source) for source in sources)), None)
            found = [] if by is None else [Unverifiable("replaced", f"history was replaced: {by.text}", by.stream)]
        self.used += found
        return bool(found)

    def _hold_for_cursor(self) -> bool:
        """Each place that the log does not have is one of other history, or behind the end of the recording."""
        there = self._decision.cursor if self._decision is not None else {}
        streams = [stream for stream, place in self._event.cursor.items() if there.get(stream) != place]
        found = [
            [each for each, _ in self._missing if each.reason in ("replaced", "end") and each.stream in (stream, None)]
            for stream in streams
        ]
        self.used += [each for several in found for each in several]
        return all(found)

    def _hold_for_base(self) -> bool:
        """A decision of the chain is not here, or another history of the routing stream was."""
        found = [
            each
            for each, _ in self._missing
            if each.reason == "base" or (each.reason == "replaced" and each.stream in (ROUTING, None))
        ]
        self.used += found
        return bool(found)

    def _hold_for_workers(self, term: Term) -> bool:
        """Workers that are left out, or not, on one side alone: each rests on its own messages."""
        if term.term == "candidates":
            workers = set(term.recorded) ^ set(self._theirs)
            hidden = not self._shows_all
        else:
            one, other = (_shown(it) for it in (term.recorded, term.recomputed))
            workers = {worker for worker, _ in one ^ other}
            hidden = any(
                each["count"] > len(each["first"]) for it in (term.recorded, term.recomputed) for each in it.values()
            )
        local = self._at.view.local
        last_resort = {str(worker) for reason in LAST_RESORT_REASONS for worker in local.get(reason, ())}
        if hidden or not workers:
            return self._note(term)
        return all(
            self._note(term._replace(worker="" if worker in last_resort else worker)) for worker in sorted(workers)
        )

    def _hold_for_hidden(self, term: Term) -> bool:
        """Facts that the record does not show: of its candidates, and of further ones."""
        if not self._shows_all:
            return self._note(term, *_MEMBERSHIP)
        holds = self._note(term)
        for worker in self._ours:
            holds |= self._note(term._replace(worker=worker), Input.CACHE)
        return holds

    def _hold_for_digest(self) -> bool:
        """Requests in flight in a replaced history, which give the recorded decision as a whole."""
        by = self._replaced.explains_digest() if self._replaced is not None else None
        if by is not None:
            self.used.append(Unverifiable("replaced", f"history was replaced: {by.text}", by.stream))
        return by is not None

    def _hold_for_turnover(self, term: Term) -> bool:
        """The turnover of a worker beyond that of others rests on the reports of all candidates, and on their set."""
        if term.term != TURNOVER:
            return False
        if self.used and getattr(self._event, "candidates_total", 0) != len(self._theirs):
            return True  # others could serve it, which is excused by now
        if self._note(term._replace(worker="")):
            return True
        by = self._replaced.explains_turnover() if self._replaced is not None else None
        if by is not None:
            self.used.append(Unverifiable("replaced", f"history was replaced: {by.text}", by.stream))
        return by is not None

    def _hold_for_cost(self, term: Term) -> bool:
        """A cost rests on the terms of its worker, and on the greatest reuse. That may be of a candidate that the
        record does not show, or that the log does not have."""
        if term.term == "cost":
            return term.worker in self._workers or self._note(term) or self._follows_from_reuse(term)
        if not self._is_other_reuse and self._shows_all:
            columns = self._event.columns if isinstance(self._event, RequestRouted) else {}
            shown = columns.get(REUSE, ())[: len(self._ours)]
            # of the same candidates their own reuse differs before this, so they are others, which is excused by now
            self._is_other_reuse = term.recorded == max(shown, default=0)
        elif not self._is_other_reuse:
            self._is_other_reuse = self._is_of_hidden(term)
        return self._is_other_reuse

    def _is_of_hidden(self, term: Term) -> bool:
        """True if a candidate that the record does not show may have the greatest reuse: one of which a report is
        missing, one that the log does not have, or one of a history that was replaced."""
        if getattr(self._event, "candidates_total", 0) != len(self._theirs):
            return True  # which is excused by now
        hidden = [worker for worker in self._theirs if worker not in self._ours]
        if any(self._note(term._replace(worker=worker), Input.REPORT) for worker in hidden):
            return True
        by = self._replaced.explains_reuse_max(term.recorded, hidden) if self._replaced is not None else None
        if by is not None:
            self.used.append(Unverifiable("replaced", f"history was replaced: {by.text}", by.stream))
        return by is not None

    def _follows_from_reuse(self, term: Term) -> bool:
        """True if the rules give the candidate its recorded cost with the recorded greatest reuse, which is excused."""
        at, decision = self._at, self._decision
        if not self._is_other_reuse or not isinstance(at, RecordedDecision) or decision is None:
            return False
        if not self._costs_by_reuse:
            candidates = [each.candidate for each in decision.ranked]
            backlog = decision.backlog._replace(reuse_max=reuse_max(at.event))
            stale = at.view.local.get("stale", ())
            rules = RULES[at.event.decide_version]
            scored = rules.score(candidates, at.request, at.settings, stale, backlog)
            if at.request.fetching is not None:
                scored, _ = with_fetches(scored, at.view, at.request, at.settings, backlog)
            self._costs_by_reuse = {each.candidate.worker: each.cost for each in scored}
        return bool(self._costs_by_reuse.get(WorkerId(term.worker)) == term.recorded)

    def _chosen_differs(self) -> bool:
        event = self._event
        if not isinstance(event, RequestRouted) or not self.used:
            return False
        return event.worker in self._workers or self._theirs[:1] != [event.worker]

    def _may_follow(self) -> bool:
        """True if a term before is excused, or the record does not show all candidates and messages are missing."""
        return bool(self.used) or (not self._shows_all and self._hold_for_hidden(Term("digest", "", "", "")))

    def _follows_from_costs(self) -> bool:
        """True unless the rules would order the recorded candidates otherwise by their recorded costs, and by their
        overlaps where these are equal."""
        at, event, decision = self._at, self._event, self._decision
        if not isinstance(at, RecordedDecision) or not isinstance(event, RequestRouted) or decision is None:
            return True
        if not self._shows_all or set(self._ours) != set(self._theirs):
            return True  # hidden candidates, or some that the log does not show
        costs = dict(zip(self._ours, event.columns.get("cost", ()), strict=False))
        overlaps = dict(zip(self._ours, event.columns.get("overlap", ()), strict=False))
        scored = []
        for candidate, cost, prefill_m in decision.ranked:
            overlap = (overlaps.get(candidate.worker, candidate.overlap[0]), *candidate.overlap[1:])
            recorded = candidate._replace(overlap=overlap)
            scored.append(ScoredCandidate(recorded, costs.get(candidate.worker, cost), prefill_m))
        scored.sort(key=lambda each: each.candidate.worker)
        turn = at.view.routed(event.model)
        ranked = RULES[event.decide_version].rank(scored, at.request, at.settings, turn, event.seed)
        return [each.candidate.worker for each in ranked] == self._ours


def reuse_max(event: RequestRouted) -> int:
    """The greatest reuse of all candidates, by which its rules gave delays a price; 0 where they gave none."""
    return max(event.columns.get(REUSE, ()), default=0) if event.decide_version >= DELAYS_VERSION else 0


def _stream_has(stream: StreamName | None, it: Input) -> bool:
    """True if such messages stand in the stream, or in one that is not named."""
    match it:
        case Input.CACHE:
            return stream is None or is_kv(stream)
        case Input.REPORT:
            return stream in (None, LOAD)
        case _:
            return stream in (None, ROUTING)


def _shown(excluded: Mapping[str, Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Pairs of worker and reason."""
    return {(worker, reason) for reason, each in excluded.items() for worker in each["first"]}
