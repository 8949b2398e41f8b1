"""Loads that follow the new choices are those of a run under the scenario, where caches do not depend on choices.

The same script (who asks what when, which first token and which end comes when, what caches hold) is played under two
settings. What-if over the record of the one must then choose what the other one really chose.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from core.events import BlocksStored, RequestRouted
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if
from tests.projections.facts import finished, joined, load, prefilled, prompt
from tests.replay.staged import KV, A, B, C, R, S, Stage

STEPS = 400
UNDER: tuple[dict[str, Any], ...] = (
    {"policy": "kv"},
    {"policy": "kv", "prefill_weight": 0.5, "request_weight": 3},
    {"policy": "kv", "decode_weight": 0, "pending_credit": 0.3},
    {"policy": "kv", "temperature": 0.7},
    {"policy": "least-loaded"},
    {"policy": "round-robin"},
    {"policy": "random"},
    {"policy": "time", "prefill_us_per_token": 400, "own_weight": 1},
    {"policy": "session", "prefill_us_per_token": 400, "session_wait_max_ms": 10},
    {"policy": "power-of-two"},
)


def played(settings: dict[str, Any], seed: int) -> tuple[Stage, list[RequestRouted]]:
    """The script of that seed under these settings; two replicas, which often do not know the other's latest."""
    dice, it = random.Random(seed), Stage()
    for name, worker in (("a", A), ("b", B), ("c", C)):
        it.say(KV, worker, joined(name))
        it.say(LOAD, worker, load())
    for replica in (R, S):
        it.replica(replica, replica[:2], RoutingSettings.parse(settings))
    made: list[RequestRouted] = []
    computing, answering = list[tuple[str, Any]](), list[tuple[str, Any]]()
    for step in range(STEPS):
        it.clock.advance(5)
        what = dice.random()
        whose, family, depth, lag = dice.choice((R, S)), dice.randrange(4), dice.randrange(1, 9), dice.randrange(60)
        if what < 0.45 or not computing + answering:
            asked = prompt(*range(family * 100, family * 100 + depth))
            seen = {ROUTING: lag if lag < 25 else 0}
            made.append(it.route(f"r{step}", asked, replica=whose, lag=seen, seed=dice.getrandbits(64)))
            computing.append((f"r{step}", whose))
        elif what < 0.65 and computing:
            request, whose = computing.pop(dice.randrange(len(computing)))
            answering.append((request, whose))
            it.tell(prefilled(request), replica=whose)
        elif what < 0.9:
            under_way = computing if not answering or (dice.random() < 0.2 and computing) else answering
            request, whose = under_way.pop(dice.randrange(len(under_way)))
            it.tell(finished(request), replica=whose)
        else:
            cached = prompt(*range(family * 100, family * 100 + depth))
            it.say(KV, dice.choice((A, B, C)), BlocksStored(hashes=cached.hashes()))
    return it, made


@pytest.mark.parametrize("seed", range(3))
def test_choices_are_those_of_a_run_under_the_scenario(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.whatif.whatif.FORGET_EVERY", 1)  # what a late view still shows must not be forgotten
    stage, recorded = played({"policy": "round-robin", "tie_margin": 2}, seed)
    asked = [Scenario.parse({"tie_margin": 0, **each}) for each in UNDER]
    with stage.recording(tmp_path / "log") as recording:
        outcomes = what_if(recording, asked)
    for each, outcome in zip(UNDER, outcomes, strict=True):
        _, wanted = played(each, seed)
        changed = {change.request: change.new_worker for change in outcome.changes}
        chosen = [changed.get(event.request, event.worker) for event in recorded]
        assert chosen == [event.worker for event in wanted], outcome.scenario.label
        cached = sum(event.predicted_cached_tokens for event in wanted)
        assert outcome.hit_rate_new == pytest.approx(cached / sum(event.prompt_tokens for event in wanted))
    assert sum(outcome.changed > 20 for outcome in outcomes) >= len(UNDER) - 1
