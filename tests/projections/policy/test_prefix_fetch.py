"""Fetches: which source a decision takes, when computing is cheaper, and what a record says of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.codec import decode_message, encode_event, encode_message
from core.events import RequestRouted
from core.events.routing import PrefixFetch
from core.ids import RequestId, SourceId, WorkerId
from core.kv_transfer import FetchAddress
from core.prompt import Prompt
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.policy.binding_plan import UnboundRequest, plan
from projections.policy.cost import estimate
from projections.policy.decide import Decision, decide, decide_newest, record
from projections.policy.load_time import LoadTime
from projections.policy.prefill_time import PrefillTime
from projections.policy.prefix_fetch import FETCH_BASE_US, FETCH_TOKENS_MIN, FETCHES_MAX
from projections.policy.view import RouteRequest
from projections.policy.worker_room import FETCH_WAIT_PERCENT
from replay.verify.judge import equal, first_difference
from tests.projections.facts import joined, load, pool_joined, prefilled, prompt, reads, routed, worker_id
from tests.projections.site import KV, Site

A, B, C = (WorkerId(worker_id(number)) for number in (1, 2, 3))
SIZE, BYTES = 16, 2_000_000
ASKED = prompt(*range(200), block_size=SIZE)
TIME = PrefillTime(1000, 500_000)
"""500 us a token: a block takes 8 ms, and its 2 MB take 2 ms at 1 GB/s."""
SETTINGS = RoutingSettings(policy="time")


def address(kind: str = "ab" * 16, load_blocks: int = 500, speed: int = 1000) -> FetchAddress:
    return FetchAddress(host="127.0.0.1", port=7, kind=kind, block_bytes=BYTES, load_blocks=load_blocks, mb_per_s=speed)


def site(**addresses: FetchAddress | None) -> Site:
    """Workers A, B and C, which fetch unless it is said otherwise; A has 150 blocks of the prompt in its host."""
    made = Site()
    for name, worker in {"a": A, "b": B, "c": C}.items():
        found = addresses.get(name, address())
        more: dict[str, Any] = {} if found is None else {"fetch": found}
        made.say(KV, worker, msgspec.structs.replace(joined(name, "tiny", SIZE), **more))
    made.cache(A, ASKED, 150, "host")
    return made


def route(busy: dict[str, int] | None, asked: Prompt = ASKED, **more: Any) -> RouteRequest:
    fetching = None if busy is None else {WorkerId(source): count for source, count in busy.items()}
    return RouteRequest(RequestId("r0"), 0, "tiny", asked, time=TIME, fetching=fetching, **more)


def choose(at: Site, request: RouteRequest, given_: RoutingSettings = SETTINGS) -> Decision:
    return decide(at.view, request, given_, now_ms=1000, seed=5)


def fetch_of(decision: Decision) -> PrefixFetch:
    assert decision.fetch is not None
    return decision.fetch


def crowded() -> Site:
    """The same, and A has so much to compute that it is not chosen."""
    at = site()
    at.say(LOAD, A, load(waiting=300))
    return at


def test_a_worker_that_lacks_the_prompt_fetches_it_from_one_that_is_overloaded() -> None:
    """150 blocks come from A in 310 ms, where computing them takes 1.2 s; the prediction counts them."""
    decision = choose(crowded(), route({}))
    assert decision.worker in {B, C}
    assert fetch_of(decision) == PrefixFetch({}, A, 150 * SIZE, FETCH_BASE_US + 150 * BYTES // 1000)
    assert decision.predicted_cached_tokens == 150 * SIZE
    assert decision.prefill_tokens == ASKED.tokens - 150 * SIZE


def test_the_cost_follows_from_the_terms_of_the_record() -> None:
    """The blocks to prefill contain the time of the fetch, as blocks that could be computed meanwhile."""
    decision = choose(crowded(), route({}))
    best = decision.ranked[0]
    terms = estimate(best.candidate, best.prefill_m, SETTINGS, ASKED.tokens, SIZE, decision.backlog)
    assert sum(terms) == best.cost
    rest_m = ASKED.tokens * 1000 // SIZE - 150 * SETTINGS.host_credit_m
    moving_m = -(-fetch_of(decision).us * 1000 // 8000)
    assert best.prefill_m == rest_m + moving_m
    assert best.cost < choose(crowded(), route(None)).ranked[0].cost


def test_without_the_input_a_decision_is_as_before() -> None:
    """No fetch, no field, and the digest of a fleet that cannot fetch."""
    with_, without = choose(crowded(), route(None)), site(a=None, b=None, c=None)
    without.say(LOAD, A, load(waiting=300))
    assert with_.fetch is None
    assert with_.digest == choose(without, route(None)).digest
    assert record(with_, route(None), SETTINGS, 0).fetch is msgspec.UNSET


def test_the_best_holder_computes_itself_if_it_is_free() -> None:
    decision = choose(site(), route({}))
    assert (decision.worker, fetch_of(decision).source) == (A, "")


@pytest.mark.parametrize(
    "changed",
    [
        {"settings": RoutingSettings(policy="kv")},
        {"addresses": {"b": address(speed=100), "c": address(speed=100)}},
        {"request": route({A: FETCHES_MAX})},
        {"request": route({}, asked=prompt(*range(200, 400), block_size=SIZE))},
        {"local": "suspected"},
        {"local": "failed"},
        {"local": "not_connected"},
        {"addresses": {"a": address(kind="cd" * 16)}},
        {"addresses": {"a": None}},
        {"addresses": {"b": None, "c": None}},
    ],
    ids=(
        "policy",
        "slow",
        "busy",
        "other prompt",
        "suspected",
        "failed",
        "not connected",
        "other kind",
        "source does not fetch",
        "worker does not fetch",
    ),
)
def test_nothing_is_fetched(changed: dict[str, Any]) -> None:
    """Under another policy, or at a speed at which computing is faster; from a source that has enough to
    do, has not the prompt, is suspected, is of another kind, or does not fetch; for a worker that does not fetch."""
    at = site(**changed.get("addresses", {}))
    at.say(LOAD, A, load(waiting=300))
    if "local" in changed:
        at.exclude(changed["local"], [A])
    decision = choose(at, changed.get("request", route({})), changed.get("settings", SETTINGS))
    assert fetch_of(decision).source == ""


def test_one_fewer_under_way_is_still_a_source() -> None:
    assert fetch_of(choose(crowded(), route({A: FETCHES_MAX - 1}))).source == A


@pytest.mark.parametrize(("own", "blocks", "source"), [(118, 150, A), (119, 150, ""), (166, 200, A), (167, 200, "")])
def test_a_short_advantage_is_not_fetched(own: int, blocks: int, source: str) -> None:
    """The source must have FETCH_TOKENS_MIN more, and FETCH_THRESHOLD_M as much."""
    at = crowded()
    at.cache(A, ASKED, blocks, "host")
    for worker in (B, C):
        at.cache(worker, ASKED, own, "host")
    assert FETCH_TOKENS_MIN == 32 * SIZE
    assert fetch_of(choose(at, route({}))).source == source


def test_a_request_fetches_no_more_than_its_engine_takes_at_once() -> None:
    small = address(load_blocks=60)
    at = site(b=small, c=small)
    at.say(LOAD, A, load(waiting=300))
    assert fetch_of(choose(at, route({}))).tokens == 60 * SIZE


def test_of_equal_sources_the_less_busy_one_is_taken() -> None:
    at = site()
    at.cache(B, ASKED, 150, "host")
    for worker in (A, B):
        at.say(LOAD, worker, load(waiting=300))
    assert fetch_of(choose(at, route({A: 1}))).source == B
    assert fetch_of(choose(at, route({B: 1}))).source == A
    assert fetch_of(choose(at, route({}))).source == A


def test_an_unknown_cache_is_no_source() -> None:
    at = crowded()
    member = at.state.member(A)
    assert member is not None
    member.cache_known = False
    assert fetch_of(choose(at, route({}))).source == ""


def test_the_record_is_made_again_with_its_fetch() -> None:
    """In every version on the wire; a record with another source, or other inputs, is found."""
    at, request = crowded(), route({B: 1})
    decision = choose(at, request)
    for version in (1, 3, 4):
        event = record(decision, request, SETTINGS, 0, version)
        message = encode_message(SourceId("aa" * 8), 1, bytes(16), 0, [encode_event(event)])
        (read,) = decode_message(message).events
        assert isinstance(read, RequestRouted)
        assert read == event
        again = RouteRequest.of(read, ASKED)
        assert again.fetching == {B: 1}
        remade = record(choose(at, again), again, SETTINGS, 0, version)
        assert equal(read, remade)
        forged = msgspec.structs.replace(read, fetch=PrefixFetch({B: 1}, C, 150 * SIZE, 1))
        assert not equal(forged, remade)
        difference = first_difference(forged, remade, forged.excluded)
        assert difference is not None
        assert difference.term == "fetch"


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200), st.integers(0, 40))
def test_a_fetch_never_makes_a_decision_dearer(a: int, b: int, c: int, waiting: int) -> None:
    """The chosen one costs no more than without fetches, by any caches, and columns of workers decide alike."""
    at = site()
    for worker, blocks in ((A, a), (B, b), (C, c)):
        at.cache(worker, ASKED, blocks, "host")
        at.say(LOAD, worker, load(waiting=waiting))
    with_, without = choose(at, route({})), choose(at, route(None))
    assert with_.ranked[0].cost <= without.ranked[0].cost
    assert decide_newest(at.view, route({}), SETTINGS, 1000, 5) == with_


def test_a_plan_places_a_request_where_its_fetch_makes_it_cheap() -> None:
    """The plan of held requests and the decision that is recorded have one fetch."""
    at = crowded()
    others = [route({}, asked=prompt(*range(at_ * 1000, at_ * 1000 + 300), block_size=SIZE)) for at_ in (1, 2)]
    queue = [UnboundRequest(route({})._replace(id=RequestId("r9")), 0)]
    queue += [UnboundRequest(each._replace(id=RequestId(f"r{n}")), 0) for n, each in enumerate(others)]
    planned = plan(at.view, queue, SETTINGS, 1000, {})
    assert planned is not None
    assert planned.request.id == "r9"
    assert fetch_of(planned.decision).source == A


POOL = "50" * 8


def pooled(own: int, pooled_blocks: int, speed: int = 1000) -> Site:
    """The crowded site, where B has blocks of the prompt in its host and more in a pool, and C takes no request."""
    at = crowded()
    fetches, access = address(speed=speed), reads(POOL)
    at.say(KV, B, msgspec.structs.replace(joined("b", "tiny", SIZE), fetch=fetches, pools=access))
    at.say(KV, POOL, msgspec.structs.replace(pool_joined(POOL, B), block_size=SIZE))
    at.cache(B, ASKED, own, "host")
    at.cache(WorkerId(POOL), ASKED, pooled_blocks, "disk")
    at.exclude("suspected", [C])
    return at


@pytest.mark.parametrize(("speed", "fetched"), [(1000, 100), (100, 0)], ids=["a fast network", "a slow network"])
def test_the_cheaper_one_of_pool_and_fetch_counts(speed: int, fetched: int) -> None:
    """B has 50 blocks in its host and 150 in the pool, which take 6 ms each by the credit of a disk; A's host has 150,
    of which one takes 2 ms or 20. What is fetched begins behind the host, and nothing is counted twice."""
    decision = choose(pooled(50, 150, speed), route({}))
    assert decision.worker == B
    assert decision.ranked[0].candidate.overlap == (0, 50, 150, 150)
    assert fetch_of(decision).tokens == fetched * SIZE
    assert decision.predicted_cached_tokens == 150 * SIZE


def test_behind_a_fetch_a_pool_counts_nothing() -> None:
    """A has 150 blocks and the pool 160: the fetch is cheaper, though ten blocks more are computed."""
    decision = choose(pooled(50, 160), route({}))
    assert (fetch_of(decision).tokens, decision.predicted_cached_tokens) == (100 * SIZE, 150 * SIZE)
    assert decision.prefill_tokens == ASKED.tokens - 150 * SIZE


@pytest.mark.parametrize(("disk_us", "fetched"), [(100, 0), (7000, 100), (8000, 100)], ids=["fast", "slower", "slow"])
def test_what_is_fetched_is_not_read_from_the_pool_as_well(disk_us: int, fetched: int) -> None:
    """With learned load times: then the load of the fetched blocks from the host counts, and none from the pool. The
    terms of the record make the cost. A pool slower than computing is not counted, and fetches replace it all the
    same."""
    request = route({}, load_time=LoadTime(50_000, disk_us * 1000, 0))
    decision = choose(pooled(50, 150), request)
    best = decision.ranked[0]
    assert (decision.worker, fetch_of(decision).tokens) == (B, fetched * SIZE)
    assert best.candidate.overlap == ((0, 50, 50, 50) if fetched else (0, 50, 150, 150))
    assert decision.predicted_cached_tokens == 150 * SIZE
    terms = estimate(best.candidate, best.prefill_m, SETTINGS, ASKED.tokens, SIZE, decision.backlog)
    assert sum(terms) == best.cost
    assert terms.load == 50 * 50 + (0 if fetched else 100 * disk_us)
    moved_us = FETCH_BASE_US + fetched * (BYTES // 1000 + 50)
    computed_m = ASKED.tokens * 1000 // SIZE - 150_000
    moved_m = -(-moved_us * 1000 * 1000 // (TIME.per_token_m * SIZE))
    assert best.prefill_m == computed_m + (moved_m if fetched else 0)
    event = record(decision, request, SETTINGS, 1)
    again = decide(pooled(50, 150).view, RouteRequest.of(event, ASKED), SETTINGS, 1000, 5)
    assert record(again, request, SETTINGS, 1) == event


def test_through_a_host_that_is_slower_than_computing_nothing_is_fetched() -> None:
    """Fetched blocks come through it."""
    assert fetch_of(choose(crowded(), route({}, load_time=LoadTime(5_000_000, 0, 0)))).source == A
    assert fetch_of(choose(crowded(), route({}, load_time=LoadTime(8_000_000, 0, 0)))).source == ""


def test_a_wait_for_room_counts_in_full_where_the_prefix_can_be_fetched() -> None:
    """And lies in a pool as well. A, which has the prompt, lacks room. Else three tenths of the wait count, and the
    request is held for longer."""
    residence_us = 2_000_000

    def chosen(at: Site, times: int) -> tuple[WorkerId | None, int]:
        at.say(LOAD, A, load())
        at.say(ROUTING, "ee" * 8, routed("x", A, prompt(*range(5000, 5900), block_size=SIZE)), prefilled("x"))
        held = UnboundRequest(route({}), 0, residence_us=times * residence_us)
        planned = plan(at.view, [held], SETTINGS, 1000, {})
        return (None, 0) if planned is None else (planned.decision.worker, planned.request.held[A])

    wait_us = 4 * residence_us * (901 + 201 - 990) // 901
    assert chosen(pooled(0, 150), 1) == (None, 0)
    assert chosen(pooled(0, 150), 4) == (B, wait_us * FETCH_WAIT_PERCENT // 100)
    assert chosen(site(), 4) == (None, 0)
