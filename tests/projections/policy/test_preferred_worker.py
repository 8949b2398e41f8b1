"""Prefill workers in a decision: never chosen, but named to whoever is, if they hold more of the prompt."""

from __future__ import annotations

import pytest
from msgspec import structs

from core.events import CacheCleared, LoadReported
from core.ids import RequestId
from core.settings import RoutingSettings
from core.subjects import LOAD
from projections.policy.decide import record
from projections.policy.view import RouteRequest
from tests.projections.facts import joined, load, prompt, stored, worker_id
from tests.projections.site import KV, Site

A, B, P, Q = worker_id(1), worker_id(2), worker_id(8), worker_id(9)
ASKED = prompt(*range(8))


def site(*prefill: str, model: str = "tiny", block_size: int = 4) -> Site:
    """Two decode workers, and these that prefill."""
    it = Site()
    it.join(A, B)
    for worker in prefill:
        it.say(KV, worker, structs.replace(joined(worker, model, block_size), role="prefill"))
    return it


def test_a_prefill_worker_is_no_candidate() -> None:
    """However much it holds; nobody counts it as left out either."""
    it = site(P)
    it.cache(P, ASKED, 8)
    decision = it.decide(ASKED)
    assert {each.candidate.worker for each in decision.ranked} == {A, B}
    assert decision.excluded == {}
    it.exclude("suspected", [A, B])
    assert it.decide(ASKED).worker in {A, B}


def test_with_nothing_but_prefill_workers_nobody_is_chosen() -> None:
    """And nobody is named."""
    it = Site()
    it.say(KV, P, structs.replace(joined(P), role="prefill"))
    it.cache(P, ASKED, 8)
    decision = it.decide(ASKED)
    assert (decision.worker, decision.ranked, decision.excluded, decision.prefer) == (None, [], {}, "")


def test_the_one_that_holds_most_is_named_and_recorded() -> None:
    """With how much; its event says so."""
    it = site(P, Q)
    it.cache(P, ASKED, 3)
    it.cache(Q, ASKED, 5)
    decision = it.decide(ASKED)
    assert (decision.prefer, decision.prefer_tokens) == (Q, 20)
    event = record(decision, RouteRequest(RequestId("r0"), 0, "tiny", ASKED), RoutingSettings(policy="kv"), 1)
    assert (event.prefer, event.prefer_tokens, event.worker) == (Q, 20, decision.worker)


def test_nobody_is_named_who_holds_no_more_than_the_chosen_one() -> None:
    """Then there is nothing to gain; what the chosen one holds on any tier counts."""
    it = site(P)
    it.cache(P, ASKED, 4)
    it.cache(A, ASKED, 4, tier="host")
    it.exclude("not_connected", [B])
    assert it.decide(ASKED).prefer == ""
    it.cache(P, ASKED, 5)
    assert it.decide(ASKED).prefer == P


def test_only_what_lies_on_the_device_counts() -> None:
    """Nothing else can be pulled."""
    it = site(P)
    it.cache(P, ASKED, 8, tier="host")
    assert it.decide(ASKED).prefer == ""


@pytest.mark.parametrize("reason", ["not_connected", "suspected", "failed"])
def test_who_is_left_out_is_not_named(reason: str) -> None:
    """The next best is."""
    it = site(P, Q)
    it.cache(P, ASKED, 8)
    it.cache(Q, ASKED, 2)
    it.exclude(reason, [P])
    assert it.decide(ASKED).prefer == Q


@pytest.mark.parametrize("kind", ["draining", "gap", "model", "block_size"])
def test_who_cannot_help_is_not_named(kind: str) -> None:
    """It leaves, its cache is not known, it serves another model, or cuts prompts into other blocks."""
    it = site(P, model="big" if kind == "model" else "tiny", block_size=8 if kind == "block_size" else 4)
    it.cache(P, ASKED, 8)
    if kind == "draining":
        it.say(LOAD, P, LoadReported(running=0, waiting=0, blocks_used=0, blocks_total=1, draining=True))
    if kind == "gap":
        it._speakers[KV, P].say(CacheCleared())
        it.say(KV, P, stored(77))
    decision = it.decide(ASKED)
    assert (decision.prefer, decision.prefer_tokens) == ("", 0)
    assert decision.worker in {A, B}


def test_ties_go_to_the_less_busy_then_by_a_hash() -> None:
    """Repeatable, and spread over requests."""
    it = site(P, Q)
    it.cache(P, ASKED, 5)
    it.cache(Q, ASKED, 5)
    named = [it.decide(ASKED, request=f"r{number}").prefer for number in range(40)]
    assert named == [it.decide(ASKED, request=f"r{number}").prefer for number in range(40)]
    assert 8 < named.count(P) < 32
    it.say(LOAD, Q, load(3))
    assert {it.decide(ASKED, request=f"r{number}").prefer for number in range(40)} == {P}


def test_the_digest_covers_who_is_named_and_nothing_else_is_new() -> None:
    """Without one it is the digest of a fleet without prefill workers, all else being equal."""
    plain, it = site(), Site()
    it.join(A, B)
    assert it.decide(ASKED).digest == plain.decide(ASKED).digest
    one, two = site(P, Q), site(P, Q)
    for each, first, second in ((one, P, Q), (two, Q, P)):
        each.cache(first, ASKED, 5)
        each.cache(second, ASKED, 4)
    assert one.decide(ASKED).prefer != two.decide(ASKED).prefer
    assert one.state.cursor == two.state.cursor
    assert one.decide(ASKED).digest != two.decide(ASKED).digest
    idle, none = site(P), site(P)
    idle.say(KV, P, stored(99))
    none.say(KV, P, stored(98))
    assert idle.decide(ASKED).digest == none.decide(ASKED).digest
