"""The decision: a pure function of what a view shows, and every rule by which it chooses."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.codec import encode_event
from core.events import WorkerLeft
from core.events.routing import COLUMNS, LOCAL_REASONS
from core.ids import RequestId, WorkerId, from_column, new_id
from core.prompt import hashes_from_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.policy.decide import record, recorded_exclusions
from projections.policy.policies import SOFT_TABLE
from projections.policy.view import Candidate, RouteRequest
from tests.projections.facts import finished, joined, load, prefilled, prompt, restated, routed, worker_id
from tests.projections.site import KV, REPLICA, Site

A, B, C, D = (WorkerId(worker_id(number)) for number in (1, 2, 3, 4))
ASKED = prompt(*range(20))
LONG = prompt(*range(125), extra=0, block_size=16)
REQUEST = RequestId("r0")


@pytest.fixture
def site() -> Site:
    made = Site()
    made.join(A, B, C, D)
    return made


def candidate(site: Site, worker: str) -> Candidate:
    return next(each for each in site.view.candidates(ASKED) if each.worker == worker)


def chosen(site: Site, given_: RoutingSettings, requests: int = 200) -> Counter[str | None]:
    """How often each worker is chosen, with the seeds spread evenly over all."""
    seeds = [i * 2**64 // requests for i in range(requests)]
    return Counter(site.decide(ASKED, given_, request=f"r{i}", seed=seed).worker for i, seed in enumerate(seeds))


def test_the_same_arguments_give_the_same_decision(site: Site) -> None:
    """Twice the same, digest included, by any policy; another request, seed, time or view gives another digest."""
    site.cache(B, ASKED, 4)
    for policy in ("kv", "random", "round-robin", "least-loaded"):
        given_ = RoutingSettings(policy=policy, temperature_m=500)
        assert site.decide(ASKED, given_, seed=2**63) == site.decide(prompt(*range(20)), given_, seed=2**63)
    first = site.decide(ASKED)
    others = [site.decide(ASKED, request="r1"), site.decide(ASKED, seed=1), site.decide(prompt(*range(19)))]
    site.say(LOAD, D, load(1))
    others.append(site.decide(ASKED))
    assert len({each.digest for each in [first, *others]}) == 5
    site.exclude("not_connected", [A, B, C])
    alone = [site.decide(ASKED, request=request, seed=seed) for request, seed in (("r0", 0), ("r1", 0), ("r0", 1))]
    assert {each.worker for each in alone} == {D}
    assert len({each.digest for each in alone}) == 3


@settings(deadline=None, max_examples=30)
@given(st.permutations([A, B, C, D]), st.permutations([A, B, C, D]))
def test_the_order_in_which_workers_joined_does_not_matter(one: list[str], other: list[str]) -> None:
    """Candidates stand by id; the same facts in another order give the same ranking and choice."""
    decisions = []
    for order in (one, other):
        site = Site()
        for worker in order:
            site.join(worker)
        for worker in reversed(order):
            site.cache(worker, ASKED, int(worker, 16) % 3)
        assert [each.worker for each in site.view.candidates(ASKED)] == [A, B, C, D]
        decisions.append(site.decide(ASKED))
    assert decisions[0] == decisions[1]


def test_kv_prefers_the_longest_overlap(site: Site) -> None:
    """At equal load the worker that holds most of the prompt is chosen, and what it lacks is to be prefilled."""
    site.cache(B, ASKED, 5)
    site.cache(C, ASKED, 12)
    decision = site.decide(ASKED)
    assert (decision.worker, decision.predicted_cached_tokens, decision.prefill_tokens) == (C, 48, ASKED.tokens - 48)
    assert decision.ranked[1].candidate.worker == B
    assert sorted(each.cost for each in decision.ranked) == [each.cost for each in decision.ranked]


def test_the_last_token_is_never_predicted_as_cached(site: Site) -> None:
    """Even when every block of the prompt is held."""
    whole = prompt(*range(20), extra=0)
    site.cache(B, whole, 20)
    decision = site.decide(whole)
    assert (decision.worker, decision.prefill_tokens) == (B, 4)


def test_load_outweighs_overlap_when_it_is_more(site: Site) -> None:
    """Blocks in flight on a worker are priced against the blocks that it would save."""
    equal = RoutingSettings(policy="kv", decode_weight_m=1000)
    site.cache(B, ASKED, 10)
    site.say(ROUTING, REPLICA, routed("x", B, prompt(*range(100, 104))), prefilled("x"))
    assert site.decide(ASKED, equal).worker == B
    site.say(ROUTING, REPLICA, routed("y", B, prompt(*range(200, 206))), prefilled("y"))
    assert site.decide(ASKED, equal).worker != B
    assert site.decide(ASKED, RoutingSettings(policy="kv")).worker == B
    site.say(ROUTING, REPLICA, finished("x"), finished("y"))
    assert site.decide(ASKED, equal).worker == B


def test_a_talk_stays_where_its_turns_are_in_flight(site: Site) -> None:
    """By the defaults of `kv`: turns of one talk that overlap share its blocks, and each counts them all."""
    site.cache(B, ASKED, 10)
    turns = [routed(f"turn {number}", B, ASKED) for number in range(4)]
    site.say(ROUTING, REPLICA, *turns, *(prefilled(f"turn {number}") for number in range(4)))
    assert candidate(site, B).active_blocks >= 4 * 10
    assert set(chosen(site, RoutingSettings(policy="kv"), 20)) == {B}


def test_queued_prefill_counts_until_the_first_token(site: Site) -> None:
    """A worker that is computing a long prompt is dearer than one that only holds it."""
    site.say(ROUTING, REPLICA, routed("x", A, prompt(*range(100, 110))), routed("y", B, prompt(*range(100, 110))))
    site.exclude("failed", [C, D])
    site.say(ROUTING, REPLICA, prefilled("y"))
    assert site.decide(ASKED).worker == B
    assert (candidate(site, A).prefill_tokens, candidate(site, B).prefill_tokens) == (41, 0)


def test_tiers_are_credited_apart(site: Site) -> None:
    """A block on the host is worth less than one on the device; levels are nested."""
    site.cache(A, ASKED, 8)
    site.cache(B, ASKED, 8, tier="host")
    site.cache(C, ASKED, 4)
    site.cache(C, ASKED, 8, tier="disk", skip=4)
    decision = site.decide(ASKED)
    assert [each.candidate.worker for each in decision.ranked] == [A, B, C, D]
    assert [each.candidate.overlap for each in decision.ranked] == [(8,) * 4, (0, 8, 8, 8), (4, 4, 8, 8), (0,) * 4]
    prefill = ASKED.tokens * 250
    saved = [8000, 6000, 4000 + 1000, 0]
    assert [each.prefill_m for each in decision.ranked] == [prefill - each for each in saved]


def test_an_unknown_cache_counts_as_empty(site: Site) -> None:
    """After a gap nothing is claimed of the worker, and the record says so."""
    site.cache(B, ASKED, 10)
    site.say(KV, B, restated(1, 2))
    assert candidate(site, B).overlap[0] == 10
    site._speakers[KV, B].say()
    site.say(KV, B, joined())
    decision = site.decide(ASKED)
    assert (candidate(site, B).cache_known, candidate(site, B).overlap) == (False, (0,) * 4)
    event = record(decision, RouteRequest(REQUEST, 0, "tiny", ASKED), RoutingSettings(policy="kv"), 0)
    assert dict(zip(from_column(event.candidates), event.columns["known"], strict=True)) == {A: 1, B: 0, C: 1, D: 1}


def test_ties_are_broken_by_a_hash_and_spread(site: Site) -> None:
    """Equal workers get equal shares over many requests, the same request the same worker always."""
    counts = chosen(site, RoutingSettings(policy="kv"), 400)
    assert set(counts) == {A, B, C, D}
    assert min(counts.values()) > 60
    rankings = {tuple(each.candidate.worker for each in site.decide(ASKED, request=f"r{i}").ranked) for i in range(200)}
    assert len(rankings) == 24
    assert len({site.decide(ASKED, seed=seed).worker for seed in range(20)}) == 1


def test_costs_within_the_margin_are_ties(site: Site) -> None:
    """A block's difference is a choice, and none under a margin of one block."""
    site.cache(B, ASKED, 1)
    assert set(chosen(site, RoutingSettings(policy="kv"), 50)) == {B}
    assert set(chosen(site, RoutingSettings(policy="kv", tie_margin_m=999), 50)) == {B}
    assert set(chosen(site, RoutingSettings(policy="kv", tie_margin_m=1000), 100)) == {A, B, C, D}


def test_a_stale_worker_has_half_its_credit(site: Site) -> None:
    """Its load is not known: what it would save is multiplied by the setting."""
    site.cache(B, ASKED, 10)
    site.cache(C, ASKED, 6)
    assert site.decide(ASKED).worker == B
    site.exclude("stale", [B])
    decision = site.decide(ASKED)
    assert decision.worker == C
    prefill = {each.candidate.worker: each.prefill_m for each in decision.ranked}
    assert prefill[A] - prefill[B] == 10_000 // 2
    assert decision.local == {"stale": [B]}


@pytest.mark.parametrize("where", ["ahead", "folded"])
def test_a_fan_out_stays_together(site: Site, where: str) -> None:
    """Among workers that are equally busy, the one that is computing the same start draws the request.

    So it is before any block is stored, and whether the decision that began it was read back or not.
    """
    for worker, start in ((A, 100), (B, 200), (C, 0), (D, 300)):
        event = routed(worker, worker, prompt(*range(start, start + 15), 99))
        if where == "ahead":
            site.pending_events.emit(event, None)
        else:
            site.say(ROUTING, "dd" * 8, event)
    assert candidate(site, C).pending == 15
    assert set(chosen(site, RoutingSettings(policy="kv"), 50)) == {C}
    decision = site.decide(ASKED)
    assert decision.predicted_cached_tokens == 60
    prefill = {each.candidate.worker: each.prefill_m for each in decision.ranked}
    assert prefill[A] - prefill[C] == 15 * 1000 + 15 * 900  # not queued for, and credited
    site.cache(C, ASKED, 15)
    assert site.decide(ASKED).ranked[0].prefill_m == prefill[A] - 15 * 1000
    without = site.decide(ASKED, RoutingSettings(policy="kv", pending_credit_m=0, device_credit_m=0))
    assert len({each.cost for each in without.ranked}) == 1


def test_a_fan_out_on_an_idle_fleet_stays_together(site: Site) -> None:
    """Prompts with one long start come at once, nothing is cached: they follow the first while that saves work."""
    workers: set[WorkerId | None] = set()
    for number in range(6):
        asked = prompt(*range(30), 1000 + number)
        decision = site.decide(asked, request=f"fan {number}")
        workers.add(decision.worker)
        asked_ = RouteRequest(RequestId(f"fan {number}"), 0, "tiny", asked)
        site.pending_events.emit(record(decision, asked_, RoutingSettings(policy="kv"), 0), None)
    assert len(workers) == 1


def test_a_pending_start_wins_where_it_saves_more_than_it_queues(site: Site) -> None:
    """Its credit is that of a block, at 0.9, against the rest of the queue there."""
    site.pending_events.emit(routed("x", C, prompt(*range(19)), predicted=60), None)
    decision = site.decide(ASKED, RoutingSettings(policy="kv", decode_weight_m=0))
    assert (decision.worker, decision.predicted_cached_tokens) == (C, 19 * 4)


def test_no_prefill_is_less_than_nothing(site: Site) -> None:
    """Neither credit beyond the prompt nor a shared start beyond the queue makes another request cheaper."""
    site.cache(A, ASKED, 20)
    site.pending_events.emit(routed("x", C, prompt(*range(19)), predicted=60), None)
    decision = site.decide(ASKED, RoutingSettings(policy="kv", device_credit_m=2000, pending_credit_m=0))
    assert {each.candidate.worker: each.prefill_m for each in decision.ranked}[A] == 0
    assert {each.candidate.worker: each.prefill_m for each in decision.ranked}[C] == ASKED.tokens * 250


def test_work_counts_whether_it_was_read_back_or_not(site: Site) -> None:
    """What the log has and what this replica said since add up, on every term."""
    site.say(ROUTING, "dd" * 8, routed("x", A, prompt(1, 2)))
    site.pending_events.emit(routed("y", A, prompt(3, 4, 5)), None)
    found = candidate(site, A)
    assert (found.active_blocks, found.active_requests, found.prefill_tokens) == (3 + 4, 2, 9 + 13)


def test_every_exclusion_has_its_reason(site: Site) -> None:
    """Who is left out is counted under one reason; without anyone left nobody is chosen."""
    others = [worker_id(number) for number in range(10, 17)]
    site.join(*others)
    site.join(worker_id(20), model="other")
    site.join(worker_id(21), block_size=8)
    site.exclude("not_connected", others[:2])
    site.exclude("suspected", others[1:4])
    site.exclude("failed", others[3:5])
    site.say(LOAD, others[5], load(draining=True))
    site.say(LOAD, others[6], load(waiting=256))
    expected = {
        "other_model": [worker_id(20)],
        "other_block_size": [worker_id(21)],
        "not_connected": others[:2],
        "suspected": others[2:4],
        "failed": others[4:5],
        "draining": others[5:6],
        "overloaded": others[6:],
    }
    decision = site.decide(ASKED)
    assert decision.excluded == expected
    assert {each.candidate.worker for each in decision.ranked} == {A, B, C, D}
    assert decision.local == {"not_connected": others[:2], "suspected": others[1:4], "failed": others[3:5]}
    site.exclude("not_connected", [A, B, C, D, *others])
    decision = site.decide(ASKED)
    assert (decision.worker, decision.ranked, decision.prefill_tokens) == (None, [], ASKED.tokens)
    counts = recorded_exclusions(decision.excluded)
    assert decision.local["not_connected"] == sorted([A, B, C, D, *others])
    assert (counts["not_connected"][0], from_column(counts["not_connected"][1])) == (11, [A, B, C, D])


def test_a_worker_in_doubt_serves_when_nobody_else_can(site: Site) -> None:
    """Suspected and failed workers are left out only while another is left; not connected ones always."""
    site.exclude("suspected", [A])
    site.exclude("failed", [B])
    site.exclude("not_connected", [C])
    assert site.decide(ASKED).excluded == {"not_connected": [C], "suspected": [A], "failed": [B]}
    site.exclude("not_connected", [C, D])
    decision = site.decide(ASKED)
    assert {each.candidate.worker for each in decision.ranked} == {A, B}
    assert (decision.excluded, decision.local["suspected"]) == ({"not_connected": [C, D]}, [A])


def test_workers_that_ended_are_no_candidates(site: Site) -> None:
    """They are not excluded: they are not there."""
    site.say(KV, "ff" * 8, joined())
    assert len(site.view.candidates(ASKED)) == 5
    site.say(KV, "ff" * 8, WorkerLeft(reason="done"))
    assert [each.worker for each in site.view.candidates(ASKED)] == [A, B, C, D]


def test_round_robin_goes_around_per_model(site: Site) -> None:
    """Each choice takes the next worker of the model by id, whether decisions were read back or not."""
    site.join(worker_id(20), worker_id(21), model="other")
    given_ = RoutingSettings(policy="round-robin")
    found: dict[str, list[str | None]] = {"tiny": [], "other": []}
    unread = []
    for i in range(12):
        model = "other" if i % 3 == 2 else "tiny"
        decision = site.decide(ASKED, given_, request=f"r{i}", model=model)
        assert decision.worker is not None
        found[model].append(decision.worker)
        unread.append(routed(f"r{i}", decision.worker, model=model))
        site.pending_events.emit(unread[-1], site.state.routing.replicas.get(REPLICA))
        if i % 4 == 3:
            site.say(ROUTING, REPLICA, *unread)
            for event in unread:
                site.pending_events.read_back(event)
            unread.clear()
    assert found["tiny"] == [A, B, C, D] * 2
    assert found["other"] == [worker_id(20), worker_id(21)] * 2


def test_random_follows_the_seed(site: Site) -> None:
    """The recorded seed alone decides, and all workers get their share."""
    counts = chosen(site, RoutingSettings(policy="random"), 8)
    assert site.decide(ASKED, RoutingSettings(policy="random"), seed=6).worker == C
    assert sum(counts.values()) == 8


def test_least_loaded_counts_requests(site: Site) -> None:
    """In flight by the log and waiting by the worker's last report; the cache does not matter."""
    site.cache(A, ASKED, 20)
    site.say(ROUTING, REPLICA, routed("x", A), routed("y", B))
    site.say(LOAD, C, load(waiting=2))
    assert site.decide(ASKED, RoutingSettings(policy="least-loaded")).worker == D


def test_temperature_shares_by_weight(site: Site) -> None:
    """At temperature 1 the dearest worker has half the chance of the cheapest; equal costs have equal chances."""
    counts = chosen(site, RoutingSettings(policy="kv", temperature_m=1000), 400)
    assert set(counts.values()) == {100}
    site.cache(A, ASKED, 20)
    site.exclude("failed", [C, D])
    assert chosen(site, RoutingSettings(policy="kv", temperature_m=1000), 300)[A] in range(199, 202)
    assert chosen(site, RoutingSettings(policy="kv", temperature_m=500), 500)[A] in range(399, 402)
    assert set(chosen(site, RoutingSettings(policy="kv", temperature_m=1), 300)) == {A}
    extremes = [
        site.decide(ASKED, RoutingSettings(policy="kv", temperature_m=1000), seed=seed).worker
        for seed in (0, 2**64 - 1)
    ]
    assert extremes == [A, B]


def test_the_powers_of_two_are_right() -> None:
    """2^32 * 2^(-i/16), rounded: each 16th power is that power of two, checked in whole numbers."""
    for i, value in enumerate(SOFT_TABLE):
        assert (2 * value - 1) ** 16 <= 2 ** (16 * 33 - i) <= (2 * value + 1) ** 16


def test_two_models_do_not_mix(site: Site) -> None:
    """A request goes to a worker of its model even if another holds the prompt; counts are per model."""
    site.join(worker_id(20), model="other")
    site.cache(A, ASKED, 20)
    decision = site.decide(ASKED, model="other")
    assert (decision.worker, decision.excluded) == (worker_id(20), {"other_model": [A, B, C, D]})
    assert site.decide(ASKED, model="nobody's").worker is None


def recorded_bytes(**local: int) -> int:
    """Of a decision among 200 workers, of which the first so many stand in `local` for each reason."""
    site, workers = Site(), [new_id() for _ in range(200)]
    site.join(*workers, block_size=16)
    for worker in workers[:-20:-1]:
        site.cache(worker, LONG, 100)
        site.say(ROUTING, "dd" * 8, routed(worker, worker, LONG))
    for reason, count in local.items():
        site.exclude(reason, workers[:count])
    decision = site.decide(LONG, seed=2**64 - 1)
    return len(encode_event(record(decision, RouteRequest(REQUEST, 0, "tiny", LONG), RoutingSettings(policy="kv"), 3)))


def test_a_record_is_small_whatever_the_fleet() -> None:
    """200 workers, 2000 tokens in blocks of 16: under 2048 bytes, of which 1000 are the prompt's hashes."""
    assert recorded_bytes() < 2048
    assert recorded_bytes(**dict.fromkeys(LOCAL_REASONS, 199)) < 2048


def test_a_record_holds_the_decision(site: Site) -> None:
    """Who was chosen, the best candidates with every term in one order, what was left out, and where the log stood."""
    site.cache(C, ASKED, 12)
    site.say(ROUTING, "dd" * 8, routed("x", C, prompt(*range(5))))
    site.say(LOAD, C, load(waiting=2))
    site.exclude("stale", [D])
    given_ = RoutingSettings(policy="kv", candidates_recorded_max=3)
    decision = site.decide(ASKED, given_, seed=9)
    event = record(decision, RouteRequest(REQUEST, 0, "tiny", ASKED, tenant="t", priority=2), given_, 3)
    assert (event.worker, from_column(event.candidates)[0], event.candidates_total) == (C, C, 4)
    assert len(from_column(event.candidates)) == 3
    assert tuple(event.columns) == COLUMNS
    assert {len(column) for column in event.columns.values()} == {3}
    best = {name: column[0] for name, column in event.columns.items()}
    expected = {"overlap": 12, "overlap_all": 12, "pending": 5, "active_blocks": 6, "active_requests": 1, "waiting": 2}
    assert best == {**expected, "cost": decision.ranked[0].cost, "prefill": decision.ranked[0].prefill_m, "known": 1}
    assert hashes_from_bytes(event.hashes) == [ASKED.key(depth) for depth in range(1, 21)]
    assert (event.blocks, event.prefill_tokens, event.predicted_cached_tokens) == (21, ASKED.tokens - 48, 48)
    assert event.cursor == {"kv_0": (1, 5), "load": (1, 1), "routing": (1, 1)}
    assert (event.seed, event.now_ms, event.settings_revision, event.policy) == (9, 1000, 3, "kv")
    assert (event.digest, event.tenant, event.priority) == (decision.digest, "t", 2)
