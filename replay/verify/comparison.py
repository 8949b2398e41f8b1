"""Comparison: two decisions on one request, and the first term in which they differ.

Terms are compared in one order, from what a decision rests on to what follows from it; so the first that differs is
the nearest to the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from core.events import RequestRouted
from core.events.routing import COLUMNS, TIMED_COLUMNS
from core.ids import from_column
from core.settings import RoutingSettings
from projections.policy.decide import Decision, record, recorded_exclusions
from projections.policy.view import RouteRequest

BEFORE_COST = (
    "overlap", "overlap_all", "pending", "active_blocks", "active_requests", "prefill", "waiting", "known", "wait_us",
)  # fmt: skip
"""Columns in the order in which they are looked at; the cost follows from them and comes last."""
TERMS = {
    "candidates": "who could serve it",
    "excluded": "who was left out",
    "overlap": "blocks cached on the device",
    "overlap_all": "blocks cached in any tier",
    "pending": "blocks being computed there for another request",
    "active_blocks": "blocks in flight there",
    "active_requests": "requests in flight there",
    "prefill": "blocks to prefill there, in thousandths",
    "waiting": "requests waiting there",
    "known": "whether its cache is known",
    "wait_us": "how long prefills there would hold it up, in microseconds",
    "cost": "cost, in thousandths",
    "choice": "the choice",
    "order": "the order of the candidates",
    "predicted": "cached tokens predicted",
    "prefill_tokens": "tokens to prefill",
    "blocks": "blocks that it occupies there",
    "wait": "how long prefills were expected to hold it up",
    "policy": "the policy",
    "prefer": "the prefill worker that holds most of the prompt",
    "prefer_tokens": "how much of the prompt that one holds",
    "digest": "something that the record does not show: a further candidate, or what only the replica knew",
    "failure": "this program cannot make the decision",
}
"""Every term, for people."""
assert set(BEFORE_COST) | {"cost"} == {*COLUMNS, *TIMED_COLUMNS}


class Term(NamedTuple):
    """Where two decisions part."""

    term: str
    """Of TERMS."""
    worker: str
    """The candidate that it is about; empty if about none."""
    recorded: Any
    recomputed: Any


class DecisionSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of two decisions, for people and for JSON."""

    worker: str
    """The chosen one; empty if nobody could serve."""
    name: str
    cost: int
    """Of the chosen one, in thousandths of a block."""
    predicted_cached_tokens: int
    digest: str


def event_of(
    decision: Decision, request: RouteRequest, settings: RoutingSettings, revision: int
) -> RequestRouted | None:
    """The decision as it would be recorded; None if nobody could serve."""
    return None if decision.worker is None else record(decision, request, settings, revision)


def side(routed: RequestRouted | None, name: str, digest: str = "") -> DecisionSide:
    """The decision's side; `digest` of one that nobody could serve."""
    if routed is None:
        return DecisionSide(worker="", name="", cost=0, predicted_cached_tokens=0, digest=digest)
    costs = routed.columns.get("cost", ())
    return DecisionSide(
        worker=routed.worker,
        name=name,
        cost=costs[0] if costs else 0,
        predicted_cached_tokens=routed.predicted_cached_tokens,
        digest=routed.digest,
    )


def first_difference(
    recorded: RequestRouted, recomputed: RequestRouted | None, excluded: dict[str, tuple[int, bytes]]
) -> Term | None:
    """The first term in which they part; None if they are equal. `excluded` is the recomputed one's (`shown`)."""
    return next(_differences(recorded, recomputed, excluded), None)


def equal(recorded: RequestRouted, recomputed: RequestRouted) -> bool:
    """Whether all that follows from the inputs is the same, not the digest alone: a record could be made to lie."""
    return (
        recorded.digest == recomputed.digest
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
    )


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
    for term, said, found in (
        ("predicted", recorded.predicted_cached_tokens, recomputed.predicted_cached_tokens),
        ("prefill_tokens", recorded.prefill_tokens, recomputed.prefill_tokens),
        ("blocks", recorded.blocks, recomputed.blocks),
        ("wait", recorded.wait_us, recomputed.wait_us),
        ("policy", recorded.policy, recomputed.policy),
        ("prefer", recorded.prefer, recomputed.prefer),
        ("prefer_tokens", recorded.prefer_tokens, recomputed.prefer_tokens),
        ("digest", recorded.digest, recomputed.digest),
    ):
        if said != found:
            yield Term(term, "", said, found)


def _columns(recorded: RequestRouted, recomputed: RequestRouted, ours: list[str], theirs: list[str]) -> Iterator[Term]:
    """Term by term, and within each candidate by candidate in the order of the record."""
    places = {worker: place for place, worker in enumerate(theirs)}
    both = [(worker, place, places[worker]) for place, worker in enumerate(ours) if worker in places]
    for term in (*BEFORE_COST, "cost"):
        said, found = recorded.columns.get(term, ()), recomputed.columns.get(term, ())
        for worker, one, other in both:
            if one < len(said) and other < len(found) and said[one] != found[other]:
                yield Term(term, worker, said[one], found[other])


def counts(excluded: dict[str, tuple[int, bytes]]) -> dict[str, Any]:
    """Exclusions for people and for JSON."""
    return {reason: {"count": count, "first": from_column(ids)} for reason, (count, ids) in sorted(excluded.items())}
