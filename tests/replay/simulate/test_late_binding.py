"""Replicas that hold requests until the right worker is free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.events.routing import RequestQueued
from core.ids import RequestId
from core.settings import RoutingSettings
from core.subjects import ROUTING
from replay.explain.explain import explain
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.report import ServedRequest
from replay.simulate.simulated_log import KEY, START_MS
from replay.simulate.simulation import simulate
from replay.verify.verify import verify
from tests.fixtures.passes import one_prompt_a_pass
from tests.replay.simulate.families import ENGINE, families
from tests.replay.simulate.said import said

__all__ = ["one_prompt_a_pass"]

HOLD_MAX_MS = 60
ARRIVALS = families(120, every_us=5_000)
"""More than two workers can prefill at once, again and again; none waits for a place beside that."""


def run(path: Path | None = None, hold_max_ms: int = HOLD_MAX_MS, **options: Any) -> list[ServedRequest]:
    routing = RoutingSettings(policy="time", hold_max_ms=hold_max_ms, active_max=len(ARRIVALS))
    wanted = {"workers": 2, "engine": ENGINE, "routing": routing}
    return simulate(Options(**{**wanted, **options}), ARRIVALS, archive=path).served


def held_us(each: ServedRequest) -> int:
    return each.routed_us - each.arrival_us


@pytest.mark.parametrize("options", [{}, {"replicas": 3, "lag_ms": 20}, {"failures_per_hour": 3000}])
def test_all_are_served_and_none_is_held_for_longer_than_allowed(options: dict[str, Any]) -> None:
    """The same ones in the same way each time."""
    found = run(workers=3, **options)

    assert [each.id for each in found if each.first_us < 0] == []
    first_try = [held_us(each) for each in found if each.attempts == 1]
    assert 0 < max(first_try) <= HOLD_MAX_MS * 1000
    assert min(first_try) == 0
    assert run(workers=3, **options) == found


def test_nothing_is_sent_to_a_worker_that_prefills() -> None:
    """What goes there goes together, or after the first token of what went before, or because it was held for long."""
    found = run()
    for worker in range(2):
        sent = sorted((each for each in found if each.worker == worker), key=lambda each: each.routed_us)
        assert len(sent) > 20
        free_us = last_us = 0
        for each in sent:
            late = held_us(each) == HOLD_MAX_MS * 1000
            assert each.routed_us >= free_us or each.routed_us == last_us or late
            free_us, last_us = max(free_us, each.first_us), each.routed_us


def test_a_replica_hears_of_workers_that_others_freed() -> None:
    """Through the log: what it holds for one of them does not wait for a first token of its own."""
    two = [each._replace(hashes=b"", prompt_tokens=31 + 8000 * (place == 0)) for place, each in enumerate(ARRIVALS[:2])]
    two[0] = two[0]._replace(hashes=bytes(8 * (two[0].prompt_tokens // ENGINE.block_size)))
    engine = replace(ENGINE, context_max=1 << 16, capacity_blocks=1000)
    routing = RoutingSettings(policy="time", hold_max_ms=60_000)
    options = Options(workers=1, engine=engine, routing=routing, replicas=2, lag_ms=1)
    first, second = simulate(options, [two[0], two[1]._replace(at_us=50_000)]).served

    assert held_us(first) == 0
    assert second.arrival_us < first.first_us
    assert second.routed_us == pytest.approx(first.first_us + 1000, abs=10)


def test_without_holding_they_go_at_once() -> None:
    """Then engines make them wait, and longer."""
    at_once = run(hold_max_ms=0)

    assert {held_us(each) for each in at_once} == {0}
    assert sum(held_us(each) > 0 for each in run()) > len(ARRIVALS) // 4


def test_the_log_tells_who_is_held(tmp_path: Path) -> None:
    """As a real replica does: once, when it is held, and of nobody who goes at once; an explanation has how long."""
    found = {each.id: each for each in run(tmp_path / "log", replicas=2, lag_ms=20)}
    told = [each for each in said(tmp_path / "log", ROUTING) if isinstance(each.event, RequestQueued)]

    waited = {event.request: (owner, event) for _, owner, event in told if isinstance(event, RequestQueued)}
    assert len(waited) == len(told) > 20
    held = {each.id: each.declined for each in found.values() if held_us(each)}
    assert {each for each, declined in held.items() if not declined} <= waited.keys() <= held.keys()
    for name, (_, event) in waited.items():
        assert (event.why, event.now_ms - START_MS) == ("prefill", found[RequestId(name)].arrival_us // 1000)
    assert len({owner for owner, _ in waited.values()}) == 2
    assert max(event.depth for _, event in waited.values()) > min(event.depth for _, event in waited.values()) == 0
    with Recording.open(tmp_path / "log", KEY) as recording:
        longest = max((each for each in found.values() if not each.declined), key=held_us)
        (attempt,) = explain(recording, longest.id).attempts
        assert verify(recording).holds
    assert attempt.queued is not None
    assert attempt.queued.waited_ms == pytest.approx(held_us(longest) / 1000, abs=1)


def test_the_log_is_whole(tmp_path: Path) -> None:
    """Its chains and folds prove themselves, and each decision follows from it, what else was held included."""
    run(tmp_path / "log")
    with Recording.open(tmp_path / "log", KEY) as recording:
        found = verify(recording)

    assert found.proof.holds
    assert found.gaps == []
    assert (found.verified, found.different) == (len(ARRIVALS), 0)


def test_who_waited_for_a_place_may_be_held_then(tmp_path: Path) -> None:
    """The log tells of both, in that order, and the first makes the second no longer."""
    routing = RoutingSettings(policy="time", hold_max_ms=HOLD_MAX_MS, active_max=3)
    found = {each.id: each for each in run(tmp_path / "log", routing=routing)}
    told: dict[str, list[RequestQueued]] = {}
    for _, _, event in said(tmp_path / "log", ROUTING):
        if isinstance(event, RequestQueued):
            told.setdefault(event.request, []).append(event)

    both = {RequestId(name): each[1] for name, each in told.items() if len(each) > 1}
    assert len(both) > 10
    assert {each.why for each in both.values()} == {"prefill"}
    assert 0 < max(found[name].routed_us // 1000 + START_MS - each.now_ms for name, each in both.items()) <= HOLD_MAX_MS
    assert max(held_us(found[name]) for name in both) > 10 * HOLD_MAX_MS * 1000
