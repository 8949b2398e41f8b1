"""Held requests placed together: each as if all of its candidates were scored and ranked with what is before it."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from core.ids import RequestId, WorkerId
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.policy.binding_plan import PlacedRequest, PlacementInputs, ScoredRequest, UnboundRequest, place_all
from projections.policy.candidates import find_candidates
from projections.policy.cost import score
from projections.policy.policies import rank
from projections.policy.prefill_backlog import PrefillBacklog
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest
from tests.projections.facts import prompt, routed, worker_id
from tests.projections.site import Site

WORKERS = [WorkerId(worker_id(number)) for number in range(1, 6)]
NOW_MS = 1_000_000
OTHER = "dd" * 8
GIVEN = RoutingSettings(policy="time", prefill_base_us=100, prefill_us_per_token_m=1_000_000)
ALL_ALIKE = RoutingSettings(policy="time", prefill_base_us=100, own_weight_m=0, active_weight_m=0)
SOFT = RoutingSettings(policy="time", prefill_base_us=100, prefill_us_per_token_m=1_000_000, temperature_m=500)
NEAR = RoutingSettings(policy="time", prefill_base_us=100, prefill_us_per_token_m=1_000_000, tie_margin_m=20_000)


def made(seed: int) -> tuple[Site, list[UnboundRequest]]:
    """Workers with caches and prefills, some of them left out, and requests of two models that share some blocks."""
    drawn, site = random.Random(seed), Site()
    site.join(*WORKERS[:4])
    site.join(WORKERS[4], model="other")
    for number in range(drawn.randrange(6)):
        worker = drawn.choice(WORKERS)
        tokens = prompt(1, 2, *drawn.choices(range(3), k=4))
        site.say(ROUTING, OTHER, routed(f"x{number}", worker, tokens, now_ms=NOW_MS - drawn.randrange(50)))
        site.cache(drawn.choice(WORKERS), prompt(1, 2, *drawn.choices(range(3), k=4)), 5)
    site.exclude(drawn.choice(["suspected", "not_connected", "stale"]), drawn.sample(WORKERS, drawn.randrange(3)))
    return site, [
        UnboundRequest(
            RouteRequest(
                RequestId(f"r{number}"),
                0,
                drawn.choice(["tiny", "tiny", "tiny", "other"]),
                prompt(1, 2, *drawn.choices(range(3), k=drawn.randrange(1, 30))),
                time=drawn.choice([None, PrefillTime(50, 2_000)]),
            ),
            NOW_MS - drawn.randrange(100),
            drawn.getrandbits(64),
        )
        for number in range(drawn.randrange(1, 12))
    ]


def plainly(
    asked: list[ScoredRequest], site: Site, settings: RoutingSettings, busy_us: dict[WorkerId, int]
) -> list[PlacedRequest]:
    """By the definition."""
    placed: dict[WorkerId, list[PlacedRequest]] = defaultdict(list)
    for held, scored, tokens, own, per_wait_m, *_ in sorted(
        asked, key=lambda each: (-min(each.own_us), each.held.since_ms, each.held.request.id)
    ):
        waits = {
            one.candidate.worker: busy_us.get(one.candidate.worker, 0)
            + sum(min(other.own_us, own_us) for other in placed[one.candidate.worker])
            for one, own_us in zip(scored, own, strict=True)
        }
        dearer = [one._replace(cost=one.cost + per_wait_m * waits[one.candidate.worker] // 1000) for one in scored]
        turn = site.view.routed(held.request.model)
        chosen = rank(dearer, held.request, settings, turn, held.seed)[0].candidate.worker
        at = [one.candidate.worker for one in scored].index(chosen)
        held_us = {worker: wait for worker, wait in waits.items() if wait}
        placed[chosen].append(PlacedRequest(held, chosen, tokens[at], own[at], held_us, has_room=True))
    return sorted(each for all_ in placed.values() for each in all_)


@pytest.mark.parametrize("settings", [GIVEN, ALL_ALIKE, SOFT, NEAR], ids=["given", "all alike", "soft", "near"])
@pytest.mark.parametrize("seed", range(40))
def test_as_by_the_definition(seed: int, settings: RoutingSettings) -> None:
    """Scores too are those that each request has alone, and nobody sees another's cached blocks."""
    site, queue = made(seed)
    outstanding = site.view.outstanding()
    inputs = PlacementInputs(site.view, settings, NOW_MS, outstanding)
    asked = [inputs.asked(held) for held in queue]
    for each in asked:
        request = each.held.request
        time = PrefillTime.of(settings, request.time)
        left = find_candidates(site.view, request, settings, NOW_MS).left
        backlog = PrefillBacklog.of(time, outstanding, NOW_MS)
        assert each.scored == score(left, request, settings, site.view.local.get("stale", ()), backlog)
        assert each.own_us == [time.us(tokens) for tokens in each.tokens]
    can_go = [each for each in asked if each.scored]
    busy_us = {WORKERS[seed % 5]: 700} if seed % 2 else {}
    found = place_all(can_go, site.view, settings, busy_us)
    assert all(each.worker == worker for worker, all_ in found.items() for each in all_)
    assert sorted(each for all_ in found.values() for each in all_) == plainly(can_go, site, settings, busy_us)
