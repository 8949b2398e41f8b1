"""Why a worker was chosen by estimated time, by a session's order, or as one of two that were drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.replaying.explained import explained
from core.settings import RoutingSettings
from core.subjects import LOAD
from replay.explaining.explain import explain
from replay.explaining.form import Explanation
from tests.projections.facts import finished, joined, load, prefilled, prompt, stored
from tests.replay.staged import ASKED, HASHES, KV, A, B, C, Stage

SLOW = {"prefill_base_us": 0, "prefill_us_per_token": 1000}
"""A millisecond a token."""
WEIGHTS = {"own_weight": 4, "own_request_weight": 0.03, "active_weight": 0.01}


def staged(**given: float | str) -> Stage:
    """Two workers, of which `a` holds four blocks of the prompt, and a replica with these settings."""
    it = Stage()
    it.say(KV, A, joined("a"), stored(*HASHES[:4]))
    it.say(KV, B, joined("b"))
    it.replica(settings=RoutingSettings.parse({**SLOW, **given}))
    return it


def told(stage: Stage, tmp_path: Path, *, whole: bool = True) -> Explanation:
    with stage.recording(tmp_path / f"log {whole}") as recording:
        return explain(recording, "r", whole=whole)


@pytest.mark.parametrize("whole", [True, False])
def test_by_time(tmp_path: Path, whole: bool) -> None:
    """Costs in milliseconds, term by term; and by how much shorter the wait would have had to be."""
    it = staged(policy="time", **WEIGHTS)
    assert it.route("x", prompt(*range(1, 5), *range(50, 75))).worker == A  # 101 ms, of which it computes 101
    it.clock.advance(1)
    assert it.route("r", ASKED).worker == B
    found = told(it, tmp_path, whole=whole)
    (attempt,) = found.attempts
    ours, theirs = attempt.candidates
    assert (ours.cost, ours.prefill_cost, ours.wait_cost) == (100, 100, 0)
    assert theirs.prefill_cost == pytest.approx(36)
    assert theirs.wait_cost == pytest.approx(1.05 * 101 - 1)
    assert attempt.why == (
        "b costs 42.5 ms less than a: it computes 16 tokens more (64 ms), but waits 105 ms less, "
        "has 30 fewer active blocks (1.2 ms) and holds up 0 requests, not 1 (0.27 ms)"
    )
    assert attempt.runner_up is not None
    needs = {need.what: need for need in attempt.runner_up.needs}
    assert "wait_ms" in needs
    fixed = theirs.cost - theirs.wait_cost
    assert fixed + needs["wait_ms"].would_be == pytest.approx(100, abs=0.002)
    assert ours.timed is not None
    assert (ours.timed.tokens, ours.timed.own_ms, ours.timed.decode_tokens) == (25, 25, 0)
    text = explained(found)
    assert "= prefill" in text
    assert "a prefill lasts 0 ms and 1000 us per token that it computes, as set" in text


def test_by_session(tmp_path: Path) -> None:
    """The first in the order; where everybody is beyond the bound, the shortest wait, and what the next one lacked."""
    it = staged(policy="session", session_wait_max_ms=10)
    first = it.route("r", ASKED).worker
    (attempt,) = told(it, tmp_path).attempts
    name = {A: "a", B: "b"}[first]
    assert attempt.why.startswith(f"{name} is the first in the order of prompts that begin so")
    it.route("x", prompt(*range(50, 60)))
    it.route("y", prompt(*range(80, 99)))
    it.route("r", prompt(*range(1, 7), 9))
    (tmp_path / "log True").unlink()
    (attempt,) = told(it, tmp_path).attempts
    assert "beyond the bound" in attempt.why
    assert attempt.runner_up is not None
    assert [need.what for need in attempt.runner_up.needs] == ["wait_ms"]


def test_by_power_of_two(tmp_path: Path) -> None:
    """Who was drawn, how likely each was, and no runner-up: the draw decided who could win."""
    it = staged(policy="power-of-two")
    it.say(KV, C, joined("c"))
    it.say(LOAD, A, load(waiting=2))
    assert it.route("r", ASKED, seed=0).worker == B  # a and b were drawn
    (attempt,) = told(it, tmp_path).attempts
    assert attempt.why == "policy power-of-two drew a and b of 3: b had 0 requests, a had 2"
    assert attempt.drawn_two == [A, B]
    assert attempt.runner_up is None
    chances = {row.name: row.probability for row in attempt.candidates}
    assert chances == {"a": 0, "b": 0.5, "c": 0.5}
    recorded = staged(policy="power-of-two", candidates_recorded_max=2)
    recorded.say(KV, C, joined("c"))
    assert recorded.route("r", ASKED).worker == A
    (attempt,) = told(recorded, tmp_path, whole=False).attempts
    assert attempt.why == "policy power-of-two drew two of 3: a had no more requests than the other"
    assert attempt.drawn_two == []


def test_by_what_was_sent_there(tmp_path: Path) -> None:
    """Under `approximate`: what was taken to be cached, and was not, is no fault of the log's."""
    it = staged(policy="approximate")
    first = it.route("first", ASKED)
    it.clock.advance(10)
    it.tell(prefilled("first"), finished("first"))
    it.clock.advance(10)
    assert it.route("r", ASKED).worker == first.worker
    it.clock.advance(10)
    it.tell(prefilled("r", cached=4))
    found = told(it, tmp_path)
    (attempt,) = found.attempts
    assert "has 6 of 6 full blocks of the prompt taken to be cached" in attempt.why
    assert attempt.reuse is not None
    assert (attempt.reuse.verdict, attempt.reuse.predicted_blocks, attempt.reuse.real_blocks) == ("believed", 6, 1)
    assert "a prompt that begins so was sent there" in attempt.reuse.text
