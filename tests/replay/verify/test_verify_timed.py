"""What policies that estimate times, draw two or follow sessions decided is made again bit for bit."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from api.cli.replay.text.verify_text import difference_lines
from bench import replay_log
from bench.replay_log import KEY, Scale, made
from core.events import RequestRouted
from core.events.routing import DECIDE_VERSION
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.snapshot import decode, encode
from projections.folds.state import State
from projections.policy.cost import ScoredCandidate
from projections.policy.rules import RULES
from replay.explain.explain import explain
from replay.playback.playback import Playback
from replay.recording.gaps import Gaps
from replay.recording.recording import Recording
from replay.verify.verify import verify
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if
from tests.actors import world as actors_world
from tests.actors.world import collect, request, world
from tests.projections.histories import prefills
from tests.replay.recorded import archived

SCALE = Scale(400, replicas=3, workers=5, prefixes=12, kept=20, report_every=100)
SETTINGS = (
    RoutingSettings(policy="time"),
    RoutingSettings(policy="session", session_wait_max_ms=20),
    RoutingSettings(policy="power-of-two"),
    RoutingSettings(policy="time", own_weight_m=1000, temperature_m=300),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three replicas behind each other, in virtual time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_log, "SETTINGS", SETTINGS)
        return made(tmp_path_factory.mktemp("timed") / "log", SCALE)


def test_every_decision_comes_out_again(path: Path) -> None:
    """Folds are equal too; and there was something to wait for."""
    with Recording.open(path, KEY) as recording:
        found = verify(recording)
        assert (found.holds, found.verified, found.not_judged) == (True, SCALE.decisions, {})
        assert found.folds.compared > 0
        events = [at.event for at in Playback(recording, gaps=Gaps())]
    waits = [event.wait_us for event in events if event.policy == "time"]
    assert 0 < sum(map(bool, waits)) < len(waits)
    assert {event.policy for event in events} == {each.policy for each in SETTINGS}
    assert len({event.worker for event in events}) == SCALE.workers


@pytest.mark.parametrize(
    ("policy", "unit", "thousand"),
    [
        ("time", "microseconds", "ms"),
        ("session", "microseconds", "ms"),
        ("power-of-two", "thousandths of a request", "requests"),
    ],
)
def test_differences_have_the_unit_of_their_policy(
    path: Path, policy: str, unit: str, thousand: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong cost is shown in microseconds where the policy estimates times, and in requests where it counts them."""
    right = RULES[DECIDE_VERSION].score

    def wrong(*given: Any) -> list[ScoredCandidate]:
        return [each._replace(cost=each.cost + 1000) for each in right(*given)]

    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=wrong))
    with Recording.open(path, KEY) as recording:
        found = verify(recording)
    shown = ["\n".join(difference_lines(it)) for it in found.differences if it.recorded.policy == policy]
    assert shown
    for text in shown:
        assert re.search(rf"first term that differs: cost of [\w-]+, in {unit} \(cost\)", text)
        assert re.search(rf"recorded   .* cost [\d.]+ {thousand}, digest", text)


def test_a_snapshot_taken_anywhere_goes_on_alike(path: Path) -> None:
    """What is outstanding, and since when, is in it."""
    seen = 0
    with Recording.open(path, KEY) as recording:
        for number, situation in enumerate(Playback(recording, gaps=Gaps())):
            if number % 40 == 39:
                state: State = situation.view.state
                again = decode(KEY.chain_key, b"".join(encode(state)))
                assert prefills(again.routing.in_flight_load) == prefills(state.routing.in_flight_load)
                seen += sum(map(len, again.routing.in_flight_load.prefills.values()))
    assert seen


def test_what_if_under_the_recorded_settings_changes_nothing(path: Path) -> None:
    """Outstanding prefills of a supposed history are the recorded ones where nothing is supposed."""
    with Recording.open(path, KEY) as recording:
        same, moved = what_if(recording, [Scenario(), Scenario.parse({"own_weight": 0.5})])
    assert (same.changed, same.regret_blocks, same.astray) == (0, 0, 0)
    assert moved.changed > 0


def test_explanations_add_up(path: Path) -> None:
    """The cost's parts sum up to it, folded anew or as recorded; the wait is the record's."""
    with Recording.open(path, KEY) as recording:
        events = [at.event for at in Playback(recording, gaps=Gaps()) if at.event.policy == "time"]
        event = max(events, key=lambda each: each.wait_us)
        for whole in (True, False):
            (attempt,) = explain(recording, event.request, whole=whole).attempts
            assert attempt.again == ("same" if whole else "not_made")
            for row in attempt.candidates:
                parts = row.prefill_cost + row.decode_cost + row.request_cost + row.wait_cost
                assert parts == pytest.approx(row.cost)
            chosen = next(row for row in attempt.candidates if row.chosen)
            assert chosen.wait_cost == event.wait_us / 1000 > 0


async def test_real_routers_decisions_come_out_again(tmp_path: Path) -> None:
    """Two replicas, real workers on an in-memory log; one asks as a session, prompts arrive at once."""
    settings = RoutingSettings(policy="time"), RoutingSettings(policy="session")
    async with world() as it:
        for name in "abc":
            await it.worker(name)
        routers = [await it.router(f"frontend-{at}", each) for at, each in enumerate(settings)]
        for router in routers:
            await it.ready(router, 3)
        asked = [request(range(number % 5 * 100, number % 5 * 100 + 90), max_tokens=3) for number in range(40)]
        await asyncio.gather(*(collect(routers[at % 2], each) for at, each in enumerate(asked)))
        for router in routers:
            await it.settled(router)
        events = await it.told(ROUTING, RequestRouted)
        path = await archived(it.log, actors_world.NAMESPACE, actors_world.KEY, tmp_path / "log")
    assert {event.policy for event in events} == {"time", "session"}
    assert any(event.wait_us for event in events)
    with Recording.open(path, actors_world.KEY) as recording:
        found = verify(recording)
        assert (found.holds, found.verified, found.not_judged) == (True, len(events), {})
