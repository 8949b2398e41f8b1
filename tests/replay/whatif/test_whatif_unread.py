"""What-if about what no recorded decision can tell: settings that none rests on, and times that were not learned."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from api.cli.renderer import render
from api.cli.replay.text.what_if_text import what_if_text
from core.events import RequestPrefilled
from core.settings import POLICIES, RoutingSettings
from projections.policy.decide import decide
from projections.policy.view import RouteRequest
from replay.whatif.outcome import Outcome
from replay.whatif.scenario import QUEUEING, UNREAD, Scenario
from replay.whatif.whatif import what_if
from tests.projections.facts import finished, joined, prompt
from tests.replay.staged import ASKED, KV, A, B, R, Stage


def staged(**given: float | str) -> Stage:
    """Two workers, and a replica with these settings that has decided six times."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.say(KV, B, joined("b"))
    it.replica(settings=RoutingSettings.parse(given))
    for number in range(6):
        it.route(f"r{number}", prompt(*range(100 * number, 100 * number + 6)))
        it.tell(RequestPrefilled(request=f"r{number}", attempt=0, cached_tokens=0, ttft_ms=10 + number))
    return it


def outcomes(stage: Stage, path: Path, *asked: dict[str, object]) -> list[Outcome]:
    with stage.recording(path / "log") as recording:
        return what_if(recording, [Scenario.parse(each) for each in asked])


def flat(page: str) -> str:
    """Without the breaks of its lines."""
    return " ".join(page.split())


class Watched:
    """Settings that know what was read of them."""

    def __init__(self, settings: RoutingSettings) -> None:
        self.read = set[str]()
        self._settings = settings

    def __getattr__(self, name: str) -> object:
        self.read.add(name.removesuffix("_m"))
        return getattr(self._settings, name)


def test_no_decision_reads_these_settings() -> None:
    """Under any policy, with a draw or without."""
    it = staged()
    request = RouteRequest(it.decided("r", ASKED).request, 0, "tiny", ASKED)  # type: ignore[arg-type]
    read = set[str]()
    for policy in POLICIES:
        for temperature_m in (0, 500):
            watched = Watched(RoutingSettings(policy=policy, temperature_m=temperature_m))
            decide(it.seat(R).view, request, cast("RoutingSettings", watched), it.clock.now_ms, 0)
            read |= watched.read
    assert {"own_weight", "prefill_weight", "session_wait_max_ms", "waiting_max"} < read
    assert not read & set(UNREAD)
    assert set(UNREAD) < {name.removesuffix("_m") for name in RoutingSettings.__struct_fields__}


@pytest.mark.parametrize("name", UNREAD)
def test_it_is_said_that_no_decision_rests_on_it(tmp_path: Path, name: str) -> None:
    """Instead of that nothing would have changed; only of what a closed loop goes by it is said that it tells more."""
    alone, beside, without, moved = outcomes(
        staged(policy="time"), tmp_path, {name: 1}, {name: 1, "own_weight": 3}, {name: 1, "without": "a"},
        {"own_weight": 3},
    )  # fmt: skip
    said = f"No decision depends on {name}: deciding again cannot show its effect."
    assert render(what_if_text([alone])).splitlines()[3] == said
    assert flat(render(what_if_text([alone]))).count(said) == 1
    for outcome in (beside, without):
        assert said not in render(what_if_text([outcome])).splitlines()
        assert f"- {said}" in flat(render(what_if_text([outcome])))
    assert "No decision rests" not in render(what_if_text([moved]))
    assert f"- {said}" in flat(render(what_if_text([alone, moved])))
    assert ("--closed-loop" in render(what_if_text([alone]))) == (name in QUEUEING)


@pytest.mark.parametrize(
    ("recorded", "given", "decisions"),
    [
        ({"policy": "kv"}, {"policy": "time"}, 6),
        ({"policy": "kv"}, {"policy": "session"}, 6),
        ({"policy": "kv"}, {"policy": "time", "prefill_us_per_token": 100}, 0),
        ({"policy": "kv"}, {"policy": "least-loaded"}, 0),
        ({"policy": "time"}, {"own_weight": 1}, 0),
    ],
)
def test_times_that_nobody_had_to_know_are_the_default(
    tmp_path: Path, recorded: dict[str, str], given: dict[str, object], decisions: int
) -> None:
    """That is said where a policy estimates and the recorded one did not, unless it is set."""
    (outcome,) = outcomes(staged(**recorded), tmp_path, given)
    assert outcome.unlearned == decisions
    said = "6 decisions were recorded under a policy that estimates nothing, and do not say how long prefills last"
    assert (said in flat(render(what_if_text([outcome])))) == bool(decisions)


def test_declined_decisions_are_no_fault_of_the_record(tmp_path: Path) -> None:
    """They are left out because others count in their place."""
    it = staged(policy="kv")
    it.route("d", ASKED)
    it.tell(replace(finished("d"), outcome="declined"))
    it.route("d", ASKED, attempt=1)
    (outcome,) = outcomes(it, tmp_path, {})
    page = flat(render(what_if_text([outcome])))
    said = "1 decision is left out: their workers declined them, and the next decisions on the same requests count."
    assert said in page
    assert "cannot be judged" not in page
