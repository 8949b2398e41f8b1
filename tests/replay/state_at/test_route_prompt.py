"""A prompt asked of a moment: by what was learned by then, and by a draw where one decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.renderer import render
from api.cli.replay.text.state_text import asked_text
from core.events import AdapterLoaded
from core.ids import RequestId
from core.prompt import Prompt, tokens_to_bytes
from core.settings import RoutingSettings
from projections.policy.decide import Decision, decide, record
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest
from replay.recording.moment import AtRequest, AtTime, Moment
from replay.state_at.route_prompt import PromptQuery, PromptRoute, route_prompt
from replay.state_at.state_at import state_at
from tests.projections.facts import SEED, joined, prompt, stored, worker_id
from tests.replay.staged import ASKED, HASHES, KV, A, B, R, S, Stage

TOKENS = tokens_to_bytes([block for block in (1, 2, 3, 4, 5, 6) for _ in range(4)] + [0])
SLOW = PrefillTime(0, 2_000_000)
"""2 ms a token."""
LATER = PrefillTime(0, 3_000_000)


def staged(**given: float | str) -> Stage:
    """Two workers, of which `a` holds a block of the prompt, and a replica with these settings."""
    it = Stage()
    it.say(KV, A, joined("a"), stored(*HASHES[:1]))
    it.say(KV, B, joined("b"))
    it.replica(settings=RoutingSettings.parse(given))
    return it


def decided(stage: Stage, name: str, asked: Prompt, time: PrefillTime | None, model: str = "tiny") -> Decision:
    """As the replica would, with what it has learned."""
    seat = stage.seat(R)
    return decide(seat.view, RouteRequest(RequestId(name), 0, model, asked, time=time), seat.settings, now(stage), 0)


def now(stage: Stage) -> int:
    return stage.clock.now_ms


def route(stage: Stage, name: str, asked: Prompt, time: PrefillTime | None = SLOW, model: str = "tiny") -> None:
    seat = stage.seat(R)
    request = RouteRequest(RequestId(name), 0, model, asked, time=time)
    stage.tell(record(decided(stage, name, asked, time, model), request, seat.settings, seat.revision))


def asked_at(stage: Stage, path: Path, moment: Moment, replica: str | None = None) -> tuple[PromptRoute, str]:
    """The answer, and the page."""
    with stage.recording(path) as recording:
        here = state_at(recording, moment, replica)
        found = route_prompt(here, PromptQuery(TOKENS, "tiny"), SEED)
        return found, render(asked_text(found, here.held()))


@pytest.mark.parametrize("policy", ["time", "session"])
@pytest.mark.parametrize("replica", ["r1", None])
def test_what_was_learned_counts(tmp_path: Path, policy: str, replica: str | None) -> None:
    """That of the replica, or by the log of whoever decided last, about the model: the costs are those that it would
    have come to, and the page says so."""
    it = staged(policy=policy, session_wait_max_ms=1)
    it.say(KV, "cc" * 8, joined("c", model="huge"))
    it.clock.advance(1000)
    route(it, "x", prompt(1, 80, 81))
    route(it, "z", prompt(90, 91))
    route(it, "other", prompt(92), LATER, "huge")
    expected = decided(it, "asked", ASKED, SLOW)
    route(it, "here", prompt(70), None)
    found, page = asked_at(it, tmp_path / "log", AtRequest(RequestId("here")), replica)
    assert found.estimates is not None
    assert (found.estimates.per_token_us, found.estimates.source) == (2000, "learned")
    costs = [(scored.candidate.worker, scored.cost / 1000) for scored in expected.ranked]
    assert [(row.worker, row.cost) for row in found.candidates] == costs
    if policy == "time":
        assert "a prefill lasts 0 ms and 2000 us per token that it computes, as was learned from first tokens" in page


def test_what_was_learned_later_does_not_count(tmp_path: Path) -> None:
    """Nor what another replica learned, if one is named; who decided nothing has learned nothing."""
    it = staged(policy="time")
    it.replica(S, "r2", RoutingSettings.parse({"policy": "time"}))
    it.clock.advance(1000)
    before = AtTime(now(it) - 500)
    route(it, "x", prompt(1, 80, 81))
    it.clock.advance(1000)
    first = AtTime(now(it) - 500)
    route(it, "y", prompt(90, 91), LATER)
    it.clock.advance(1000)
    times = {
        name: asked_at(it, tmp_path / "log", moment, replica)
        for name, moment, replica in (
            ("before", before, None), ("first", first, None), ("last", AtTime(now(it)), None),
            ("r1", first, "r1"), ("r2", AtTime(now(it)), "r2"), ("x", AtRequest(RequestId("x")), "r1"),
        )
    }  # fmt: skip
    assert {name: found.estimates and found.estimates.per_token_us for name, (found, _) in times.items()} == {
        "before": 20.5, "first": 2000, "last": 3000, "r1": 2000, "r2": 20.5, "x": 2000,
    }  # fmt: skip
    assert "by default: no decision by then says what was learned" in times["r2"][1]


def test_what_is_set_counts_before_what_was_learned(tmp_path: Path) -> None:
    """As for a replica."""
    it = staged(policy="time", prefill_us_per_token=1000)
    route(it, "x", prompt(1, 80, 81))
    found, page = asked_at(it, tmp_path / "log", AtTime(now(it) + 1))
    assert (found.estimates and found.estimates.source) == "set"
    assert "per token that it computes, as set" in page


@pytest.mark.parametrize(
    ("given", "workers", "drawn"),
    [
        ({"policy": "power-of-two"}, 3, True),
        ({"policy": "power-of-two"}, 1, False),
        ({"policy": "random"}, 2, True),
        ({"policy": "kv", "temperature": 0.5}, 2, True),
        ({"policy": "kv"}, 2, False),
        ({"policy": "round-robin"}, 2, False),
    ],
)
def test_whether_a_draw_decides(tmp_path: Path, given: dict[str, float | str], workers: int, drawn: bool) -> None:
    """Among several: then the worker is only that of one draw."""
    it = Stage()
    for number in range(workers):
        it.say(KV, worker_id(number + 1), joined(f"w{number}"))
    it.replica(settings=RoutingSettings.parse(given))
    found, page = asked_at(it, tmp_path / "log", AtTime(now(it) + 1))
    assert found.drawn == drawn
    assert ("the draw decides; one with seed 0 gives w" in page) == drawn


def test_an_adapter_leaves_out_workers_without_it(tmp_path: Path) -> None:
    """By its id; a name, as recordings of before have it, leaves out none."""
    it = staged()
    it.say(KV, B, AdapterLoaded(name="sql", digest="01", rank=8, loaded_ms=1))
    it.clock.advance(1000)
    route(it, "x", prompt(1))
    with it.recording(tmp_path / "log") as recording:
        here = state_at(recording, AtRequest(RequestId("x")))
        found = route_prompt(here, PromptQuery(TOKENS, "tiny", bytes(16), "sql@01"), SEED)
        assert (found.worker, [*found.excluded]) == (B, ["other_adapter"])
        assert route_prompt(here, PromptQuery(TOKENS, "tiny", bytes(16), "sql"), SEED).excluded == {}
