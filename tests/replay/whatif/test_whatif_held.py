"""What-if over requests that were held in the router, and over those that a worker declined."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from core.events import RequestPrefilled
from core.events.routing import CACHED_UNKNOWN, HELD, RequestQueued, RequestTurnedAway
from core.settings import RoutingSettings
from core.subjects import LOAD
from replay.whatif.first_token_fit import first_token_fits
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if
from tests.fixtures.passes import one_prompt_a_pass
from tests.projections.facts import finished, joined, load, prompt, routed
from tests.replay.staged import ASKED, KV, A, B, R, Stage

__all__ = ["one_prompt_a_pass"]

MS_PER_TOKEN = 3
MODEL = "tiny"


@pytest.fixture
def stage() -> Stage:
    it = Stage()
    for name, worker in (("a", A), ("b", B)):
        it.say(KV, worker, joined(name))
        it.say(LOAD, worker, load())
    it.replica(R, settings=RoutingSettings())
    return it


def test_what_a_worker_declined_is_judged_where_it_was_served(stage: Stage, tmp_path: Path) -> None:
    """Each request counts once, with its last decision; the other is left out by name, whatever the scenario."""
    for number in range(3):
        name, asked = f"r{number}", prompt(*range(10 * number, 10 * number + 5))
        stage.route(name, asked)
        stage.tell(replace(finished(name), outcome="declined"))
        stage.route(name, asked, attempt=1)
        stage.tell(finished(name, attempt=1))
    with stage.recording(tmp_path / "log") as recording:
        for outcome in what_if(recording, [Scenario(), Scenario.parse({"policy": "round-robin"})]):
            assert (outcome.decisions, outcome.left_out) == (3, {"declined": 3})
            assert sum(outcome.requests_recorded.values()) == sum(outcome.requests_new.values()) == 3
            assert {change.attempt for change in outcome.changes} <= {1}


def test_the_time_in_the_router_is_no_time_of_an_engine(stage: Stage, tmp_path: Path) -> None:
    """Each waits longer than the one before, some for a place and then for their worker, and takes so long by its
    tokens; one that was turned away, and whose id another request has later, leaves nothing."""
    for number in range(40):
        name, asked = f"r{number}", prompt(*range(100 * number, 100 * number + 1 + number % 8))
        if number == 20:
            stage.tell(queued(stage, name, HELD), gone(name))
            stage.clock.advance(5_000)
        elif number:
            for why in ("full", HELD) if number % 2 else (HELD,):
                stage.tell(queued(stage, name, why))
                stage.clock.advance(7 * number)
        stage.route(name, asked)
        waited_ms = 0 if number == 20 else 7 * number * (1 + number % 2)
        own_ms = MS_PER_TOKEN * asked.tokens
        stage.clock.advance(own_ms)
        stage.tell(RequestPrefilled(request=name, attempt=0, cached_tokens=0, ttft_ms=waited_ms + own_ms))
        stage.tell(finished(name))
    with stage.recording(tmp_path / "log") as recording:
        found = first_token_fits(recording.requests)[MODEL]
    assert found.samples == 40
    assert found.error_ms == pytest.approx(0, abs=1e-6)
    assert found.base_ms == pytest.approx(0, abs=1e-6)
    assert found.per_token_ms == pytest.approx(MS_PER_TOKEN)


def test_the_line_goes_by_predictions_where_engines_do_not_tell(stage: Stage, tmp_path: Path) -> None:
    """Each prompt has as many blocks as another; what is predicted to be cached makes the difference."""
    for number in range(40):
        name, asked, predicted = f"r{number}", prompt(*range(100 * number, 100 * number + 8)), 4 * (number % 8)
        stage.tell(routed(name, A, asked, predicted=predicted))
        ttft_ms = MS_PER_TOKEN * (asked.tokens - predicted)
        stage.tell(RequestPrefilled(request=name, attempt=0, cached_tokens=CACHED_UNKNOWN, ttft_ms=ttft_ms))
        stage.tell(replace(finished(name), cached_tokens=CACHED_UNKNOWN))
    with stage.recording(tmp_path / "log") as recording:
        assert first_token_fits(recording.requests)[MODEL].per_token_ms == pytest.approx(MS_PER_TOKEN)


def test_real_hits_are_those_that_engines_told(stage: Stage, tmp_path: Path) -> None:
    """One engine of two does not say what its cache had: neither its prompt nor a count of it is in the share."""
    for name, cached in (("told", 9), ("untold", CACHED_UNKNOWN)):
        asked = stage.route(name, ASKED)
        stage.tell(RequestPrefilled(request=name, attempt=0, cached_tokens=cached, ttft_ms=9))
        stage.tell(replace(finished(name), cached_tokens=cached))
    with stage.recording(tmp_path / "log") as recording:
        (outcome,) = what_if(recording, [Scenario()])
    assert outcome.hit_rate_real == 9 / asked.prompt_tokens


def queued(stage: Stage, request: str, why: str) -> RequestQueued:
    """It waits from now on."""
    now_ms = stage.clock.now_ms
    return RequestQueued(
        request=request, model=MODEL, priority=0, tenant="", prompt_tokens=9, why=why, depth=0, now_ms=now_ms
    )


def gone(request: str) -> RequestTurnedAway:
    """Its client went away."""
    return RequestTurnedAway(request=request, model=MODEL, reason="client_gone", status=499, waited_ms=0, tenant="")
