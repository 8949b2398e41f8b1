"""Policies beside `kv`: by estimated time, the better one of two, and a session's own worker."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from core.codec import encode_event
from core.events import WorkerLeft
from core.events.routing import COLUMNS, TIMED_COLUMNS
from core.ids import RequestId, WorkerId, from_column, new_id
from core.keys import session_key
from core.prompt import Prompt
from core.settings import POLICIES, RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.folds.load_fold import REUSE_STEPS
from projections.folds.state import NO_OVERLAP
from projections.policy.binding_plan import HELD_MAX
from projections.policy.cost import (
    FIRST_ACTIVE_TIMES,
    FIRST_ACTIVE_TOKENS,
    TURNOVER_TIMES,
    estimate,
    excess_turnover,
    score,
    turnover_base,
)
from projections.policy.decide import Decision, decide, record
from projections.policy.delay_price import REUSE_FULL
from projections.policy.policies import SESSION_TOKENS, two_of
from projections.policy.prefill_backlog import PrefillBacklog
from projections.policy.prefill_time import PrefillTime
from projections.policy.rules import FIRST_ACTIVE_VERSION, TURNOVER_VERSION
from projections.policy.view import Candidate, RouteRequest
from tests.projections.facts import SEED, load, prefilled, prompt, routed, worker_id
from tests.projections.site import REPLICA, Site

A, B, C, D = (WorkerId(worker_id(number)) for number in (1, 2, 3, 4))
ASKED = prompt(*range(20))  # 81 tokens, 21 blocks of 4
BUSY = prompt(*range(100, 119))  # 77 tokens
NOW_MS = 1000
OTHER = "dd" * 8
BY_TIME = RoutingSettings(
    policy="time",
    own_weight_m=4000,
    own_request_weight_m=30,
    active_weight_m=38,
    prefill_base_us=8000,
    prefill_us_per_token_m=20_500,
)
SESSION = RoutingSettings(policy="session")
OWN_US = 8000 + 81 * 20_500 // 1000
BLOCK_NS = 38 * 20_500 * 4 // 1000
"""Price of an active block."""


@pytest.fixture
def site() -> Site:
    made = Site()
    made.join(A, B, C, D)
    return made


def decided(
    site: Site, given_: RoutingSettings, asked: Prompt = ASKED, *, request: str = "r", seed: int = 0, session: str = ""
) -> Decision:
    wanted = RouteRequest(RequestId(request), 0, "tiny", asked, session=session)
    return decide(site.view, wanted, given_, NOW_MS, seed)


def costs(decision: Decision) -> dict[str, int]:
    return {each.candidate.worker: each.cost for each in decision.ranked}


def test_time_by_hand(site: Site) -> None:
    """Own prefill four times, the wait, active blocks by their tokens, and the own one for each active request."""
    site.cache(B, ASKED, 10)
    site.say(ROUTING, OTHER, routed("x", C, BUSY, now_ms=NOW_MS - 2), routed("y", D, BUSY), prefilled("y"))
    decision = decided(site, BY_TIME)
    own_b = 8000 + 41 * 20_500 // 1000
    active = BLOCK_NS * 20 // 1000
    wait_c = 1050 * (8000 + 77 * 20_500 // 1000) // 1000 - 2000
    assert decision.backlog.waits_us == {C: wait_c}
    assert costs(decision) == {
        A: 4 * OWN_US,
        B: 4 * own_b,
        C: 4 * OWN_US + wait_c + active + 30 * OWN_US // 1000,
        D: 4 * OWN_US + active + 30 * OWN_US // 1000,
    }
    assert (decision.worker, decision.prefill_tokens) == (B, 41)
    for scored in decision.ranked:
        terms = estimate(scored.candidate, scored.prefill_m, BY_TIME, ASKED.tokens, 4, decision.backlog)
        assert sum(terms) == scored.cost


def test_talks_that_live_on_a_worker_have_a_price(site: Site) -> None:
    """By the logarithm of what they reuse a second. It stands in the record; version 1 of the rules knew none."""
    site.say(LOAD, B, load(reuse_rate=3000))
    site.say(LOAD, C, load(reuse_rate=2000))
    site.say(LOAD, C, load())
    given_ = structs.replace(BY_TIME, reuse_weight_m=2000, delay_weight_m=0)
    decision = decided(site, given_)
    price_us = 2 * (20_500 * 81 // 1000) * 31 // 16
    assert costs(decision) == {A: 4 * OWN_US, B: 4 * OWN_US + price_us, C: 4 * OWN_US, D: 4 * OWN_US}
    wanted = RouteRequest(RequestId("r"), 0, "tiny", ASKED)
    event = record(decision, wanted, given_, 1)
    assert dict(zip(from_column(event.candidates), event.columns["reuse"], strict=True))[B] == 31
    before = decide(site.view, wanted, given_, NOW_MS, 0, version=1)
    assert costs(before) == dict.fromkeys((A, B, C, D), 4 * OWN_US)
    assert "reuse" not in record(before, wanted, given_, 1).columns
    site.say(LOAD, B, WorkerLeft(reason="left"))
    assert decided(site, given_).backlog.reuse == {}


def test_delays_have_a_price_among_talks(site: Site) -> None:
    """By the greatest reuse of all candidates: twice what a request waits and computes, and its prefill for each
    active request there. Versions 1 and 2 of the rules knew none."""
    site.say(ROUTING, OTHER, routed("x", C, BUSY, now_ms=NOW_MS - 2), routed("y", D, BUSY), prefilled("y"))
    given_ = structs.replace(BY_TIME, reuse_weight_m=0, delay_weight_m=500, active_weight_m=0)
    wanted = RouteRequest(RequestId("r"), 0, "tiny", ASKED)
    before = decided(site, given_)
    site.say(LOAD, B, load(reuse_rate=3000))
    decision = decided(site, given_)
    wait_c, price_m = decision.backlog.waits_us[C], 500 * 31 // 64
    active = {A: 0, B: 0, C: 1, D: 1}
    assert costs(decision) == {
        worker: cost + price_m * (2 * (OWN_US + wait_c * (worker == C)) + OWN_US * active[WorkerId(worker)]) // 1000
        for worker, cost in costs(before).items()
    }
    for scored in decision.ranked:
        assert (
            sum(estimate(scored.candidate, scored.prefill_m, given_, ASKED.tokens, 4, decision.backlog)) == scored.cost
        )
    event = record(decision, wanted, structs.replace(given_, candidates_recorded_max=1), 1)
    assert (event.columns["reuse"], decision.worker) == ((0, 31), A)  # behind A's stands that of B
    assert costs(decide(site.view, wanted, given_, NOW_MS, 0, version=2)) == costs(before)
    site.say(LOAD, B, load(reuse_rate=1 << 30))
    assert decided(site, given_).backlog.reuse_max > 64
    full = structs.replace(given_, delay_weight_m=1000)
    assert costs(decided(site, full))[A] == costs(before)[A] + 2 * OWN_US  # full is full
    site.say(LOAD, B, load(draining=True, reuse_rate=3000))
    assert {**costs(decided(site, given_)), B: 0} == {**costs(before), B: 0}  # B is no candidate


def test_the_first_active_tokens_have_a_price_among_talks(site: Site) -> None:
    """The price is the same at and above FIRST_ACTIVE_TOKENS. It is 0 without talks, and by version 6 of the rules."""
    first = FIRST_ACTIVE_TOKENS // 4
    active = {A: 0, B: 1000, C: first, D: first + 5000}
    for worker, blocks in active.items():
        event = structs.replace(routed(f"x{worker}", worker, BUSY), blocks=blocks)
        site.say(ROUTING, OTHER, event, prefilled(event.request))
    given_ = structs.replace(BY_TIME, reuse_weight_m=0, delay_weight_m=0)
    before = decided(site, given_)
    assert costs(before)[C] - costs(before)[A] == BLOCK_NS * first // 1000
    for rate, reuse in ((3000, 31), (1 << 30, REUSE_FULL)):
        site.say(LOAD, B, load(reuse_rate=rate))
        decision = decided(site, given_)
        price_ns = FIRST_ACTIVE_TIMES * 38 * reuse // REUSE_FULL * 20_500 * 4 // 1000
        assert costs(decision) == {
            worker: cost + price_ns * min(active[WorkerId(worker)], first) // 1000
            for worker, cost in costs(before).items()
        }
        for each in decision.ranked:
            terms = estimate(each.candidate, each.prefill_m, given_, ASKED.tokens, 4, decision.backlog)
            assert sum(terms) == each.cost
            blocks = active[each.candidate.worker]
            assert terms.decode == BLOCK_NS * blocks // 1000 + price_ns * min(blocks, first) // 1000
        asked = RouteRequest(RequestId("r"), 0, "tiny", ASKED)
        assert costs(decide(site.view, asked, given_, NOW_MS, 0, version=FIRST_ACTIVE_VERSION - 1)) == costs(before)
    site.say(LOAD, B, load(draining=True, reuse_rate=3000))
    assert {**costs(decided(site, given_)), B: 0} == {**costs(before), B: 0}  # B is no candidate


@pytest.mark.parametrize("size", [1, 16, 48, 1000, FIRST_ACTIVE_TOKENS, FIRST_ACTIVE_TOKENS + 1])
def test_the_first_active_tokens_are_whole_blocks(size: int) -> None:
    """A block counts among the first ones if all of its tokens do. Negative counts of pending events stay as they
    are."""
    first, asked = FIRST_ACTIVE_TOKENS // size, Prompt(bytes(4 * size), size, SEED)
    given_, request = structs.replace(BY_TIME, active_weight_m=1000), RouteRequest(RequestId("r"), 0, "tiny", asked)
    backlog = PrefillBacklog(PrefillTime(0, 1000), {}, reuse_max=4 * REUSE_STEPS)
    counts = (-3, 0, 1, max(0, first - 1), first, first + 1, 2 * first + 7)
    candidates = [
        Candidate(WorkerId(worker_id(at)), "tiny", size, 0, True, NO_OVERLAP, 0, blocks, 0, 0, 0, draining=False)
        for at, blocks in enumerate(counts)
    ]
    scored, plain = (
        score(candidates, request, given_, (), each) for each in (backlog, backlog._replace(prices_first_active=False))
    )
    added = [one.cost - other.cost for one, other in zip(scored, plain, strict=True)]
    assert added == [FIRST_ACTIVE_TIMES * size * min(blocks, first) for blocks in counts]
    for each in scored:
        assert sum(estimate(each.candidate, each.prefill_m, given_, asked.tokens, size, backlog)) == each.cost


def price_of(steps: int) -> int:
    """What a prefill of the whole prompt costs more with so many 64ths of turnover above the base."""
    return TURNOVER_TIMES * OWN_US * steps // 64


@pytest.mark.parametrize(
    ("turnovers", "excess"),
    [
        pytest.param((0, 0, 0, 0), (0, 0, 0, 0), id="none"),
        pytest.param((64, 64, 64, 64), (0, 0, 0, 0), id="all equal"),
        pytest.param((10, 11, 13, 10), (0, 1, 3, 0), id="above the least"),
        pytest.param((10, 18, 18, 26), (0, 8, 8, 16), id="below the mean by just the slack"),
        pytest.param((10, 18, 18, 30), (0, 7, 7, 19), id="below the mean by more"),
        pytest.param((0, 64, 64, 64), (0, 24, 24, 24), id="one that has just joined"),
        pytest.param((0, 0, 0, 64), (0, 0, 0, 56), id="one that is full"),
        pytest.param((0, 0, 30, 64), (0, 0, 15, 49), id="a mean that is rounded down"),
    ],
)
def test_what_a_prompt_pushes_out_has_a_price(site: Site, turnovers: tuple[int, ...], excess: tuple[int, ...]) -> None:
    """By the turnover above the least one, or above the mean less the slack. The terms add up to the cost. Version 7 of
    the rules, and other policies, have no such price."""
    workers, given_ = (A, B, C, D), structs.replace(BY_TIME, reuse_weight_m=0, delay_weight_m=0)
    request = RouteRequest(RequestId("r"), 0, "tiny", ASKED)
    before = decided(site, given_)
    for worker, turnover in zip(workers, turnovers, strict=True):
        site.say(LOAD, worker, load(turnover=turnover))
    decision = decided(site, given_)
    assert costs(decision) == {
        worker: costs(before)[worker] + price_of(steps) for worker, steps in zip(workers, excess, strict=True)
    }
    assert decision.backlog.turnover == {each: more for each, more in zip(workers, excess, strict=True) if more}
    for each in decision.ranked:
        terms = estimate(each.candidate, each.prefill_m, given_, ASKED.tokens, 4, decision.backlog)
        assert sum(terms) == each.cost
        assert terms.turnover == price_of(excess[workers.index(each.candidate.worker)])
    event = record(decision, request, given_, 1)
    if any(excess):
        column = dict(zip(from_column(event.candidates), event.columns["turnover"], strict=True))
        assert column == dict(zip(workers, excess, strict=True))
    assert ("turnover" in event.columns) == any(excess)
    by_7 = decide(site.view, request, given_, NOW_MS, 0, version=TURNOVER_VERSION - 1)
    assert costs(by_7) == costs(before)
    assert not by_7.backlog.turnover
    for policy in ("kv", "session"):
        found = decided(site, RoutingSettings(policy=policy))
        of_7 = decide(site.view, request, RoutingSettings(policy=policy), NOW_MS, 0, version=TURNOVER_VERSION - 1)
        assert costs(found) == costs(of_7)
        assert not found.backlog.turnover


def test_turnover_has_the_price_of_the_own_prefill(site: Site) -> None:
    """Blocks that are cached push nothing out, and take off as much of the price. An excluded worker does not count."""
    given_ = structs.replace(BY_TIME, reuse_weight_m=0, delay_weight_m=0)
    site.cache(B, ASKED, 10)
    without = costs(decided(site, given_))
    for worker in (A, B, C):
        site.say(LOAD, worker, load(turnover=40))
    site.say(LOAD, D, load(turnover=36))
    own_b = 8000 + 41 * 20_500 // 1000
    price, price_b = (TURNOVER_TIMES * own * 4 // 64 for own in (OWN_US, own_b))
    more = {A: price, B: price_b, C: price, D: 0}
    assert costs(decided(site, given_)) == {worker: without[worker] + more[worker] for worker in more}
    site.say(LOAD, D, load(draining=True, turnover=36))
    assert costs(decided(site, given_)) == {worker: without[worker] for worker in (A, B, C)}
    site.say(LOAD, D, load(turnover=36))
    site.exclude("failed", [D])
    assert costs(decided(site, given_)) == {worker: without[worker] for worker in (A, B, C)}


def test_excess_turnover_of_no_candidates() -> None:
    assert excess_turnover([], {A: 64}) == {}
    assert turnover_base(0, 0, 0) == 0


@pytest.mark.parametrize("policy", ["kv", "time"])
def test_equal_costs_go_to_the_larger_overlap(site: Site, policy: str) -> None:
    """Then to the hash, which alone decided under version 1, and decides among costs within a margin."""
    given_ = RoutingSettings(policy=policy, device_credit_m=0)
    names = [f"r{number}" for number in range(20)]
    by_hash = [decided(site, given_, request=name).worker for name in names]
    site.cache(B, ASKED, 3)
    site.cache(D, ASKED, 7)
    for name, worker in zip(names, by_hash, strict=True):
        found = decided(site, given_, request=name)
        assert len({*costs(found).values()}) == 1
        assert [each.candidate.worker for each in found.ranked[:2]] == [D, B]
        wanted = RouteRequest(RequestId(name), 0, "tiny", ASKED)
        assert decide(site.view, wanted, given_, NOW_MS, 0, version=1).worker == worker
        assert decided(site, structs.replace(given_, tie_margin_m=1), request=name).worker == worker


def test_time_weighs_a_wait_against_what_a_cache_saves(site: Site) -> None:
    """The worker that holds the prompt is worth waiting for while that is shorter, and is left when it is not."""
    site.cache(A, ASKED, 20)
    given_ = RoutingSettings(
        policy="time", prefill_us_per_token_m=1_000_000, own_weight_m=1000, own_request_weight_m=30, active_weight_m=1
    )
    site.say(ROUTING, OTHER, routed("x", A, prompt(*range(50, 65)), now_ms=NOW_MS))  # 61 ms, 1 to compute after it
    assert decided(site, given_).worker == A
    site.say(ROUTING, OTHER, routed("y", A, prompt(60, 61, 62), now_ms=NOW_MS))  # 13 ms more
    assert decided(site, given_).worker == A
    site.say(ROUTING, OTHER, routed("z", A, prompt(70), now_ms=NOW_MS))  # 5 ms more: 1.05 * 79 + 1 > 81
    assert decided(site, given_).worker != A


def test_time_credits_what_is_being_computed(site: Site) -> None:
    """As `kv` does: a start that is computed there for another is not computed twice, and half of all if stale."""
    site.pending_events.emit(routed("x", C, prompt(*range(15), 99), now_ms=NOW_MS), None)
    own_m = 81 * 250 - 15 * 900
    found = {each.candidate.worker: each for each in decided(site, BY_TIME).ranked}
    assert (found[C].prefill_m, found[A].prefill_m) == (own_m, 81 * 250)
    terms = estimate(found[C].candidate, found[C].prefill_m, BY_TIME, ASKED.tokens, 4, decided(site, BY_TIME).backlog)
    assert terms.decode == BLOCK_NS * (17 - 15) // 1000
    site.exclude("stale", [C])
    assert {each.candidate.worker: each.prefill_m for each in decided(site, BY_TIME).ranked}[C] == 81 * 250 - 6750


def test_a_record_by_time_says_the_wait(site: Site) -> None:
    """In a column for the candidates, and for the chosen one, whose prefill is expected to begin then."""
    for worker in (A, B, C, D):
        site.say(ROUTING, OTHER, routed(f"x{worker}", worker, BUSY, now_ms=NOW_MS))
    decision = decided(site, BY_TIME)
    event = record(decision, RouteRequest(RequestId("r"), 0, "tiny", ASKED), BY_TIME, 1)
    assert tuple(event.columns) == (*COLUMNS, *TIMED_COLUMNS[:1])
    wait_us = 1050 * (8000 + 77 * 20_500 // 1000) // 1000
    assert (event.wait_us, event.columns["wait_us"]) == (wait_us, (wait_us,) * 4)
    site.pending_events.emit(event, None)
    assert max(site.view.outstanding()[decision.worker or A]).begins_us == NOW_MS * 1000 + wait_us
    by_kv = record(
        decided(site, RoutingSettings(policy="kv")), RouteRequest(RequestId("r"), 0, "tiny", ASKED), BY_TIME, 1
    )
    assert (tuple(by_kv.columns), by_kv.wait_us) == (COLUMNS, 0)


def test_a_record_by_time_is_small() -> None:
    """200 workers, 2000 tokens in blocks of 16: under 2048 bytes, and 22 more for each worker for which others are
    held: HELD_MAX of them at most."""
    site, workers = Site(), [WorkerId(new_id()) for _ in range(200)]
    site.join(*workers, block_size=16)
    asked = prompt(*range(125), extra=0, block_size=16)

    def size(held: int) -> int:
        held_us = dict.fromkeys(workers[:held], 1 << 30)
        wanted = RouteRequest(RequestId("r"), 0, "tiny", asked, time=PrefillTime(1 << 20, 1 << 20), held=held_us)
        decision = decide(site.view, wanted, RoutingSettings(), 1 << 41, 2**64 - 1)
        return len(encode_event(record(decision, wanted, RoutingSettings(), 3)))

    assert size(0) < 2048
    assert size(1) <= size(0) + 22
    assert size(HELD_MAX) <= 2048 + 22 * HELD_MAX


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_view_gives_the_same_decision(site: Site, policy: str) -> None:
    """Bit for bit; and what is outstanding is in the digest of those policies alone that look at it."""
    given_ = RoutingSettings(policy=policy)
    site.say(ROUTING, OTHER, routed("x", A, BUSY, now_ms=NOW_MS))
    one = decided(site, given_, seed=2**63)
    assert decided(site, given_, prompt(*range(20)), seed=2**63) == one
    later = Site()
    later.join(A, B, C, D)
    later.say(ROUTING, OTHER, routed("x", A, BUSY, now_ms=NOW_MS - 1))
    assert (decided(later, given_, seed=2**63).digest == one.digest) == (policy not in {"time", "session"})
    assert decided(site, given_, seed=2**63, session="ab" * 8).digest != one.digest


def test_two_are_drawn_evenly() -> None:
    """Every pair in either order about equally often, never one twice; the ends of the seed give ends."""
    for workers in (2, 3, 8):
        drawn = Counter(two_of(workers, seed * 0x9E3779B97F4A7C15 % 2**64) for seed in range(4000))
        assert len(drawn) == workers * (workers - 1)
        assert all(first != second for first, second in drawn)
        assert max(drawn.values()) < 1.4 * 4000 / len(drawn)
    assert (two_of(8, 0), two_of(8, 2**64 - 1)) == ((0, 1), (7, 6))


def test_power_of_two_takes_the_one_with_fewer_requests(site: Site) -> None:
    """Of the two that the seed gives: in flight and waiting; a tie is the first one's; the cache does not matter."""
    given_ = RoutingSettings(policy="power-of-two", temperature_m=1000)
    site.cache(A, ASKED, 20)
    site.say(ROUTING, OTHER, routed("x", A, BUSY), routed("y", B, BUSY))
    site.say(LOAD, C, load(waiting=2))
    by_pair = {two_of(4, seed << 48): decided(site, given_, seed=seed << 48).worker for seed in range(2**16)[::7]}
    by_pair |= {two_of(4, seed): decided(site, given_, seed=seed).worker for seed in (0, 2**32 - 1)}
    workers, weights = [A, B, C, D], [1, 1, 2, 0]
    for (first, second), chosen in by_pair.items():
        assert chosen == workers[second if weights[second] < weights[first] else first]
    site.exclude("not_connected", [A, B, C])
    assert decided(site, given_, seed=2**63).worker == D


def test_a_session_stays_where_it_is(site: Site) -> None:
    """Whatever the prompts; sessions spread over the workers, and only those of one that is gone move."""
    keys = [session_key(f"client {number}", 7) for number in range(200)]
    homes = {key: decided(site, SESSION, session=key).worker for key in keys}
    assert min(Counter(homes.values()).values()) > 30
    assert {key: decided(site, SESSION, BUSY, session=key, request="q").worker for key in keys} == homes
    site.exclude("failed", [B])
    moved = {key: decided(site, SESSION, session=key).worker for key in keys}
    assert {homes[key] for key in keys if moved[key] != homes[key]} == {B}
    assert len({moved[key] for key in keys if homes[key] == B}) == 3


def test_a_session_moves_on_where_prefills_are_long(site: Site) -> None:
    """At the bound it stays, beyond it the next worker in its order is taken; where all are, the shortest wait."""
    key = session_key("me", 7)
    order = [each.candidate.worker for each in decided(site, SESSION, session=key).ranked]
    given_ = RoutingSettings(policy="session", prefill_base_us=0, prefill_us_per_token_m=1_000_000)
    site.say(ROUTING, OTHER, routed("x", order[0], BUSY, now_ms=NOW_MS))  # 1.05 * 77 = 80.85 ms
    site.say(ROUTING, OTHER, routed("y", order[1], ASKED, now_ms=NOW_MS))
    for bound_ms, expected in ((81, order[0]), (80, order[2]), (0, order[2])):
        bounded = RoutingSettings.parse({**given_.to_mapping(), "session_wait_max_ms": bound_ms})
        assert decided(site, bounded, session=key).worker == expected
    site.exclude("failed", order[2:])
    bounded = RoutingSettings.parse({**given_.to_mapping(), "session_wait_max_ms": 10})
    decision = decided(site, bounded, session=key)
    assert decision.worker == order[0]
    assert [each.cost for each in decision.ranked] == [80_850 - 10_000, 85_050 - 10_000]


def test_without_a_session_prompts_that_begin_alike_stay_together(site: Site) -> None:
    """By their first SESSION_TOKENS; shorter ones by what they have, and those of no block at all anywhere."""
    depth = SESSION_TOKENS // 4
    start = tuple(range(depth))
    homes = {decided(site, SESSION, prompt(*start, extra), request=f"r{extra}").worker for extra in range(20)}
    assert len(homes) == 1
    others = {decided(site, SESSION, prompt(number, *start[1:])).worker for number in range(100, 140)}
    assert others == {A, B, C, D}
    assert len({decided(site, SESSION, prompt(5, extra=2), request=f"r{number}").worker for number in range(20)}) == 1
    assert len({decided(site, SESSION, prompt(extra=2), request=f"r{number}").worker for number in range(40)}) == 4


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=20), st.integers(0, 2**64 - 1))
def test_a_session_key_tells_names_apart_and_nothing_of_them(name: str, seed: int) -> None:
    """16 hex digits, other ones under another seed; none for no name."""
    key = session_key(name, seed)
    assert (key == "") == (name == "")
    assert session_key(name, seed) == key
    if name:
        assert len(key) == 16
        assert int(key, 16) >= 0
        assert session_key(name, (seed + 1) % 2**64) != key
        assert session_key(f"{name}.", seed) != key


def test_what_was_learned_counts_where_the_settings_leave_it_to_that(site: Site) -> None:
    """And stands in the record, by which a replay decides."""
    time = PrefillTime(500, 3000)
    wanted = RouteRequest(RequestId("r"), 0, "tiny", ASKED, time=time)
    site.say(ROUTING, OTHER, routed("x", A, BUSY, now_ms=NOW_MS))
    learned = RoutingSettings(policy="time", own_weight_m=4000)
    decision = decide(site.view, wanted, learned, NOW_MS, 0)
    assert (costs(decision)[B], decision.backlog.waits_us) == (4 * (500 + 243), {A: 1050 * (500 + 231) // 1000})
    event = record(decision, wanted, learned, 0)
    assert event.prefill_time == time
    again = RouteRequest.of(event, ASKED)
    assert again == wanted
    assert decide(site.view, again, learned, NOW_MS, 0) == decision
    assert record(decide(site.view, wanted, BY_TIME, NOW_MS, 0), wanted, BY_TIME, 0).prefill_time == ()
    assert (
        record(decide(site.view, wanted, RoutingSettings(policy="kv"), NOW_MS, 0), wanted, learned, 0).prefill_time
        == ()
    )


def test_a_record_holds_the_session(site: Site) -> None:
    """Its key, by which a replay decides."""
    key = session_key("me", 7)
    wanted = RouteRequest(RequestId("r"), 0, "tiny", ASKED, session=key)
    event = record(decide(site.view, wanted, SESSION, NOW_MS, 0), wanted, SESSION, 0)
    assert (event.session, event.policy) == (key, "session")
    assert REPLICA not in event.session
