"""The changes that would have made another candidate win: each change alone, found by deciding again.

The nearest value is searched with the arithmetic of the decision's own rules: with it the other candidate is chosen,
with less it is not. For weights it is the nearest value at which no rounding and no tie can decide otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

import msgspec

from core.events.routing import DECIDE_VERSION
from core.ids import WorkerId
from core.settings import WEIGHT_MAX, RoutingSettings
from projections.policy.cost import MILLI, ScoredCandidate
from projections.policy.prefill_backlog import NO_BACKLOG, PrefillBacklog
from projections.policy.rules import RULES
from projections.policy.view import Candidate, RouteRequest
from replay.explain.explanation import RequiredChange

WEIGHT_M_MAX = round(WEIGHT_MAX * MILLI)


class Counterfactual(NamedTuple):
    """A decision among candidates, to be tried with changes."""

    candidates: list[Candidate]
    """By id."""
    request: RouteRequest
    settings: RoutingSettings
    stale: frozenset[WorkerId]
    turn: int
    seed: int
    backlog: PrefillBacklog = NO_BACKLOG
    version: int = DECIDE_VERSION
    """Of the rules: one of RULES."""
    recorded: WorkerId = WorkerId("")
    """The worker that was chosen."""

    @property
    def is_by_fetch(self) -> bool:
        """True if another worker would have been chosen had nothing been fetched: then no change of one term tells what
        the other candidate lacked."""
        return self.request.fetching is not None and self.chosen() != self.recorded

    def chosen(self, settings: RoutingSettings | None = None, changed: Candidate | None = None) -> WorkerId:
        """The worker chosen with these settings, and with `changed` instead of the candidate of its id."""
        settings = settings or self.settings
        candidates = self.candidates
        if changed is not None:
            candidates = [changed if each.worker == changed.worker else each for each in candidates]
        rules = RULES[self.version]
        scored = rules.score(candidates, self.request, settings, self.stale, self.backlog)
        return rules.rank(scored, self.request, settings, self.turn, self.seed)[0].candidate.worker

    def cost(self, candidate: Candidate) -> int:
        """The cost of this candidate."""
        return self.scored([candidate])[0].cost

    def scored(self, candidates: list[Candidate]) -> list[ScoredCandidate]:
        """The candidates with their costs."""
        return RULES[self.version].score(candidates, self.request, self.settings, self.stale, self.backlog)

    def waiting_there(self, worker: WorkerId, wait_us: int) -> Counterfactual:
        """The same with so long a wait for prefills on that worker."""
        return self._replace(backlog=self.backlog._replace(waits_us={**self.backlog.waits_us, worker: wait_us}))


def required_changes(case: Counterfactual, other: Candidate) -> list[RequiredChange]:
    """The changes, each alone, after which `other` is chosen; of the policies that look at costs, without a draw.

    Some 10 us per candidate and step; the steps are halved, but for cached blocks.
    """
    if case.settings.temperature_m:
        return []
    match case.settings.policy:
        case "kv" | "approximate":
            return [*_cached(case, other), *_less_work(case, other), *_of_settings(case, other)]
        case "time":
            own = (_cached(case, other), _fewer_blocks(case, other), _fewer_requests(case, other))
            return [*chain(*own, _shorter_wait(case, other))]
        case "session":
            return [*_shorter_wait(case, other)]
        case "least-loaded":
            return [*_fewer_requests(case, other), *_fewer_waiting(case, other)]
        case _:
            return []


def _less_work(case: Counterfactual, other: Candidate) -> Iterator[RequiredChange]:
    yield from _fewer_blocks(case, other)
    tokens = other.prefill_tokens
    at = _most(case, other, tokens, lambda value: other._replace(prefill_tokens=value))
    if at is not None:
        yield _required_change(
            "prefill_tokens", tokens, at, f"{tokens - at} fewer tokens waiting there to be prefilled"
        )
    if case.settings.request_weight_m:
        yield from _fewer_requests(case, other)


def _fewer_blocks(case: Counterfactual, other: Candidate) -> Iterator[RequiredChange]:
    was = other.active_blocks
    at = _most(case, other, was, lambda value: other._replace(active_blocks=value))
    if at is not None:
        yield _required_change("active_blocks", was, at, f"{_blocks(was - at, 'fewer active')} there")


def _shorter_wait(case: Counterfactual, other: Candidate) -> Iterator[RequiredChange]:
    was = case.backlog.waits_us.get(other.worker, 0)

    def wins(value: int) -> bool:
        return case.waiting_there(other.worker, value).chosen() == other.worker

    if was > 0 and wins(0):
        at = _edge(wins, loses=was, wins_at=0)
        text = f"a wait for prefills that is {(was - at) / MILLI:g} ms shorter there"
        yield _required_change("wait_ms", was / MILLI, at / MILLI, text)


def _fewer_requests(case: Counterfactual, other: Candidate) -> Iterator[RequiredChange]:
    was = other.active_requests
    at = _most(case, other, was, lambda value: other._replace(active_requests=value))
    if at is not None:
        yield _required_change("active_requests", was, at, f"{was - at} fewer active requests there")


def _fewer_waiting(case: Counterfactual, other: Candidate) -> Iterator[RequiredChange]:
    was = other.waiting
    at = _most(case, other, was, lambda value: other._replace(waiting=value))
    if at is not None:
        yield _required_change("waiting", was, at, f"{was - at} fewer requests waiting there")


def _cached(case: Counterfactual, other: Candidate) -> Iterator[RequiredChange]:
    """The least depth to which the prompt would have to be cached there, on the device."""
    others = (each for each in case.candidates if each.worker != other.worker)
    highest = min(map(case.cost, others)) + case.settings.tie_margin_m
    was = other.overlap[0]
    for depth in range(was + 1, case.request.prompt.blocks_reusable + 1):
        changed = other._replace(overlap=tuple(max(level, depth) for level in other.overlap))
        if case.cost(changed) <= highest and case.chosen(changed=changed) == other.worker:
            where = "there" if was == other.overlap[-1] else "on the device there"
            yield _required_change("cached_blocks", was, depth, f"{_blocks(depth - was, 'more cached')} {where}")
            return


def _most(case: Counterfactual, other: Candidate, was: int, changed: Callable[[int], Candidate]) -> int | None:
    """The most that there may be of something for `other` to be chosen, if less of it helps at all."""

    def wins(value: int) -> bool:
        return case.chosen(changed=changed(value)) == other.worker

    return _edge(wins, loses=was, wins_at=0) if was > 0 and wins(0) else None


def _of_settings(case: Counterfactual, other: Candidate) -> Iterator[RequiredChange]:
    """The nearest values of single weights. The difference of two costs is linear in a weight. So the values at which
    `other` is cheapest by more than rounding and the tie margin lie between two bounds."""
    terms = {each.candidate.worker: weight_terms(each, case.request) for each in case.scored(case.candidates)}
    for place, name in enumerate(("prefill_weight", "decode_weight", "request_weight")):
        was = getattr(case.settings, f"{name}_m")
        low, high = _between(terms, other.worker, place, case, case.settings.tie_margin_m + 1)
        if low <= high:
            value, far = (high, low) if high < was else (low, high)
            range_text = _range_text(value, far)
        else:
            found = _at_a_tie(case, other, name, _between(terms, other.worker, place, case, 0))
            if found is None:
                continue
            value, range_text = found, f"{found / MILLI:g}"
        yield _required_change(name, was / MILLI, value / MILLI, f"{name} {range_text} instead of {was / MILLI:g}")


def _at_a_tie(case: Counterfactual, other: Candidate, name: str, bounds: tuple[int, int]) -> int | None:
    """A value at which it is as cheap as another one, and the hash of request and worker gives it."""
    low, high = bounds
    for value in (low, high, (low + high) // 2) if low <= high else ():
        settings = msgspec.structs.replace(case.settings, **{f"{name}_m": value})
        if case.chosen(settings) == other.worker:
            return value
    return None


def _range_text(near: int, far: int) -> str:
    if near == far:
        return f"{near / MILLI:g}"
    if far in {0, WEIGHT_M_MAX}:
        return f"{near / MILLI:g} or {'less' if far < near else 'more'}"
    return f"{min(near, far) / MILLI:g} to {max(near, far) / MILLI:g}"


class WeightTerms(NamedTuple):
    """A cost is the sum of weight times term; in thousandths of thousandths."""

    prefill: int
    decode: int
    request: int


def weight_terms(scored: ScoredCandidate, request: RouteRequest) -> WeightTerms:
    """The terms that the weights multiply."""
    candidate, _, prefill_m = scored
    shared = max(0, candidate.pending - candidate.overlap[-1])
    active_m = (candidate.active_blocks - shared + request.prompt.blocks_to_hold) * MILLI
    return WeightTerms(prefill_m, active_m, candidate.active_requests * MILLI)


def _between(
    terms: dict[WorkerId, WeightTerms], other: WorkerId, place: int, case: Counterfactual, less_m: int
) -> tuple[int, int]:
    """The least and the highest weight at which `other` is cheaper than all by so much, the other weights being as
    they are."""
    settings = case.settings
    weights = (settings.prefill_weight_m, settings.decode_weight_m, settings.request_weight_m)
    low, high = 0, WEIGHT_M_MAX
    for worker, theirs in terms.items():
        if worker == other:
            continue
        per_weight = terms[other][place] - theirs[place]
        rest = less_m * MILLI + sum(
            weights[at] * (terms[other][at] - theirs[at]) for at in range(len(weights)) if at != place
        )
        if per_weight > 0:
            high = min(high, -rest // per_weight)
        elif per_weight < 0:
            low = max(low, -(rest // per_weight))
        elif rest > 0:
            return 1, 0
    return low, high


def _edge(wins: Callable[[int], bool], *, loses: int, wins_at: int) -> int:
    """The value nearest to `loses` from which on, towards `wins_at`, it wins; by halving."""
    while abs(wins_at - loses) > 1:
        middle = (wins_at + loses) // 2
        if wins(middle):
            wins_at = middle
        else:
            loses = middle
    return wins_at


def _required_change(what: str, was: float, would_be: float, text: str) -> RequiredChange:
    return RequiredChange(what=what, was=was, would_be=would_be, text=text)


def _blocks(count: int, what: str) -> str:
    return f"{count} {what} block{'' if count == 1 else 's'}"
