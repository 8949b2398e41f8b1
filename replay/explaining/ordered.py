"""Ordered: whose turn it was under `session`, and who was drawn under `power-of-two`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from core.event_json import hash_text
from projections.policy.cost import MILLI, ScoredCandidate
from projections.policy.policies import SESSION_TOKENS, rank, two_of
from replay.explaining.ground import Ground
from replay.explaining.timed_form import Passed, SessionOrder
from replay.explaining.weighed import ms_text

Name = Callable[[str], str]


def session_order(on: Ground, name: Name) -> SessionOrder | None:
    """Where the chosen worker stands in the order of the session, and who comes before it; None under other policies,
    and where the log does not have the bound."""
    if on.settings.policy != "session" or not on.settings_known:
        return None
    of, key, blocks = _whose(on)
    order = _order(on)
    at = order.index(on.ranked[0]) if _follows(on, order) else None
    return SessionOrder(
        of=of,
        key=key,
        blocks=blocks,
        position=None if at is None else at + 1,
        wait_max_ms=on.settings.session_wait_max_ms,
        passed=[_passed(on, scored, name) for scored in order[:at]] if at is not None else [],
    )


def drawn_two(on: Ground) -> list[ScoredCandidate]:
    """The two that `power-of-two` drew, the first one first; none under other policies, of a single candidate, and
    where the record does not hold all: places are drawn, and they count by id."""
    if on.settings.policy != "power-of-two" or len(on.ranked) < max(2, on.event.candidates_total):
        return []
    by_id = sorted(on.ranked, key=lambda scored: scored.candidate.worker)
    return [by_id[at] for at in two_of(len(by_id), on.event.seed)]


def why_session(on: Ground, name: Name) -> str:
    """Why the first of the ranked was chosen under `session`."""
    order = session_order(on, name)
    assert order is not None
    chosen = on.ranked[0]
    called, bound = name(chosen.candidate.worker), f"the bound of {order.wait_max_ms:g} ms (session_wait_max_ms)"
    if min(scored.cost for scored in on.ranked):
        wait = ms_text(on.backlog.waits_us.get(chosen.candidate.worker, 0))
        return f"everywhere the wait for prefills is beyond {bound}; {called} has the shortest, {wait}"
    whose = _WHOSE[order.of].format(order)
    if order.position is None:
        return f"{called} is the first in the order of {whose} where the wait for prefills is within {bound}"
    if order.position == 1:
        return f"{called} is the first in the order of {whose}, and the wait for prefills there is within {bound}"
    waits = ", ".join(f"{each.name} {ms_text(each.wait_ms * MILLI)}" for each in order.passed)
    passed = f"before it, the wait for prefills is beyond {bound}: {waits}"
    return f"{called} is number {order.position} in the order of {whose}; {passed}"


_WHOSE = {
    "session": "the session {0.key}",
    "prefix": "prompts that begin so ({0.blocks} blocks, hash {0.key})",
    "request": "this request alone, whose prompt has no full block",
}


def why_of_two(on: Ground, name: Name) -> str:
    """Why the first of the ranked was chosen under `power-of-two`, of at least two candidates."""
    chosen, drew = on.ranked[0], drawn_two(on)
    called, among = name(chosen.candidate.worker), max(len(on.ranked), on.event.candidates_total)
    if not drew:  # of more than the record holds there is no telling who the other was
        return f"policy power-of-two drew two of {among}: {called} had no more requests than the other"
    first, second = (name(scored.candidate.worker) for scored in drew)
    (other,) = (scored for scored in drew if scored != chosen)
    busy, others = (scored.candidate.active_requests + scored.candidate.waiting for scored in (chosen, other))
    text = f"policy power-of-two drew {first} and {second} of {among}"
    if busy == others:
        return f"{text}: both had {busy} requests, and {first} was drawn first"
    return f"{text}: {called} had {busy} requests, {name(other.candidate.worker)} had {others}"


def _whose(on: Ground) -> tuple[str, str, int]:
    """What `rank` takes for a session, what it is called, and how many blocks of the prompt make it."""
    if on.request.session:
        return "session", on.request.session, 0
    prompt = on.request.prompt
    depth = min(prompt.blocks, max(1, SESSION_TOKENS // prompt.block_size))
    if not depth:
        return "request", on.request.id, 0
    return "prefix", hash_text(prompt.key(depth)), depth


def _order(on: Ground) -> list[ScoredCandidate]:
    """The candidates as they would be taken one after the other if nobody had anything to wait for."""
    idle = [scored._replace(cost=0) for scored in on.ranked]
    settings = msgspec.structs.replace(on.settings, tie_margin_m=0)
    places = {scored.candidate.worker: scored for scored in on.ranked}
    idle.sort(key=lambda scored: scored.candidate.worker)
    order = rank(idle, on.request, settings, on.turn or 0, on.event.seed)
    return [places[scored.candidate.worker] for scored in order]


def _follows(on: Ground, order: list[ScoredCandidate]) -> bool:
    """Whether the order says who is chosen: all are there, and the first of those that cost least is the one."""
    highest = min(scored.cost for scored in order) + on.settings.tie_margin_m
    first = next(scored for scored in order if scored.cost <= highest)
    return len(order) >= on.event.candidates_total and first == on.ranked[0]


def _passed(on: Ground, scored: ScoredCandidate, name: Name) -> Passed:
    worker = scored.candidate.worker
    return Passed(worker=worker, name=name(worker), wait_ms=on.backlog.waits_us.get(worker, 0) / MILLI)
