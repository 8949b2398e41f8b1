"""Why a worker was chosen by estimated time, by a session's order, or as one of two that were drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from core.prompt import Prompt
from core.settings import RoutingSettings
from core.subjects import LOAD
from replay.explain.explain import explain
from replay.explain.explanation import Explanation
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


def explain_stage(stage: Stage, tmp_path: Path, *, whole: bool = True) -> Explanation:
    with stage.recording(tmp_path / f"log {whole}") as recording:
        return explain(recording, "r", whole=whole)


@pytest.mark.parametrize("whole", [True, False])
def test_by_time(tmp_path: Path, whole: bool) -> None:
    """A score, term by term, in which only waits have a unit; and by how much shorter the wait would have had to be."""
    it = staged(policy="time", **WEIGHTS)
    assert it.route("x", prompt(*range(1, 5), *range(50, 75))).worker == A  # 101 ms, of which it computes 101
    it.clock.advance(1)
    assert it.route("r", ASKED).worker == B
    found = explain_stage(it, tmp_path, whole=whole)
    (attempt,) = found.attempts
    ours, theirs = attempt.candidates
    assert (ours.cost, ours.prefill_cost, ours.wait_cost) == (100, 100, 0)
    assert theirs.prefill_cost == pytest.approx(36)
    assert theirs.wait_cost == pytest.approx(1.05 * 101 - 1)
    assert attempt.why == (
        "b costs 42.5 less than a: it computes 16 tokens more (64), but waits 105 ms less, "
        "has 30 fewer active blocks (1.2) and holds up 0 requests, not 1 (0.27)"
    )
    assert attempt.runner_up is not None
    needs = {need.what: need for need in attempt.runner_up.needs}
    assert "wait_ms" in needs
    fixed = theirs.cost - theirs.wait_cost
    assert fixed + needs["wait_ms"].would_be == pytest.approx(100, abs=0.002)
    assert ours.timed is not None
    assert (ours.timed.tokens, ours.timed.own_ms, ours.timed.decode_tokens) == (25, 25, 0)
    text = render(explain_text(found))
    assert "= prefill" in text
    assert "a prefill lasts 0 ms and 1000 us per token that it computes, as set" in text


def test_by_session(tmp_path: Path) -> None:
    """The first in the order; where everybody is beyond the bound, the shortest wait, and what the next one lacked."""
    it = staged(policy="session", session_wait_max_ms=10)
    first = it.route("r", ASKED).worker
    (attempt,) = explain_stage(it, tmp_path).attempts
    name = {A: "a", B: "b"}[first]
    assert attempt.why.startswith(f"{name} is the first in the order of prompts that begin so")
    it.route("x", prompt(*range(50, 60)))
    it.route("y", prompt(*range(80, 99)))
    it.route("r", prompt(*range(1, 7), 9))
    (tmp_path / "log True").unlink()
    (attempt,) = explain_stage(it, tmp_path).attempts
    assert "beyond the bound" in attempt.why
    assert attempt.runner_up is not None
    assert [need.what for need in attempt.runner_up.needs] == ["wait_ms"]


def test_by_power_of_two(tmp_path: Path) -> None:
    """Who was drawn, how likely each was, and no runner-up: the draw decided who could win."""
    it = staged(policy="power-of-two")
    it.say(KV, C, joined("c"))
    it.say(LOAD, A, load(waiting=2))
    assert it.route("r", ASKED, seed=0).worker == B  # a and b were drawn
    (attempt,) = explain_stage(it, tmp_path).attempts
    assert attempt.why == "policy power-of-two drew a and b of 3: b had 0 requests, a had 2"
    assert attempt.drawn_two == [A, B]
    assert attempt.runner_up is None
    chances = {row.name: row.probability for row in attempt.candidates}
    assert chances == {"a": 0, "b": 0.5, "c": 0.5}
    recorded = staged(policy="power-of-two", candidates_recorded_max=2)
    recorded.say(KV, C, joined("c"))
    assert recorded.route("r", ASKED).worker == A
    (attempt,) = explain_stage(recorded, tmp_path, whole=False).attempts
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
    found = explain_stage(it, tmp_path)
    (attempt,) = found.attempts
    assert "has 6 of 6 full blocks of the prompt taken to be cached" in attempt.why
    assert attempt.reuse is not None
    assert (attempt.reuse.verdict, attempt.reuse.predicted_blocks, attempt.reuse.real_blocks) == ("believed", 6, 1)
    assert "a prompt that begins so was sent there" in attempt.reuse.text


@pytest.mark.parametrize(
    ("given", "chance", "why"),
    [
        ({"policy": "random"}, 1 / 3, "policy random looks at no cost: the seed gave "),
        ({"policy": "power-of-two"}, None, "policy power-of-two drew two of 3: "),
        ({"policy": "kv", "temperature": 0.5}, None, " was drawn of 3, of which the record holds the first; fold"),
    ],
    ids=["random", "power-of-two", "temperature"],
)
def test_a_draw_among_more_than_the_record_holds(
    tmp_path: Path, given: dict[str, float | str], chance: float | None, why: str
) -> None:
    """What of it can be told is told of all candidates, not of those recorded; the folded log tells all."""
    it = staged(**given, candidates_recorded_max=2)
    it.say(KV, C, joined("c"))
    it.route("r", ASKED, seed=1 << 60)
    (recorded,), (folded,) = (explain_stage(it, tmp_path, whole=whole).attempts for whole in (False, True))
    assert [row.probability for row in recorded.candidates] == [chance] * 2
    assert why in recorded.why
    assert sum(row.probability or 0 for row in folded.candidates) == pytest.approx(1)
    assert (recorded.runner_up is None) == (folded.runner_up is None)
    if recorded.runner_up is not None:
        assert " costs least of the others; the draw fell at 0.062" in recorded.runner_up.text
    assert render(explain_text(explain_stage(it, tmp_path, whole=False))).count("%") == 2 * (chance is not None)


def test_a_session_within_the_tie_margin(tmp_path: Path) -> None:
    """Its worker is the first in its order, though its wait is a little beyond the bound: others cost nothing."""
    it = staged(policy="session", session_wait_max_ms=100, tie_margin=50)
    asked = next(asked for asked in (prompt(*range(n, n + 6)) for n in range(1000, 2000, 10)) if goes(asked) == A)
    busy = next(big for big in (prompt(*range(n, n + 28)) for n in range(5000, 9000, 40)) if goes(big) == A)
    it.route("busy", busy)
    assert it.route("r", asked).worker == A
    (attempt,) = explain_stage(it, tmp_path).attempts
    assert attempt.candidates[0].cost > 0 == attempt.candidates[1].cost
    assert attempt.why.startswith("a is the first in the order of prompts that begin so")


def goes(asked: Prompt) -> str:
    """To whom the session's order leads where nobody has anything to do."""
    return staged(policy="session").decided("r", asked).worker


@pytest.mark.parametrize(
    ("given", "idle", "why"),
    [
        ({"prefill_weight": 0}, 4, ": 0 active blocks against 41"),
        ({"device_credit": 0, "decode_weight": 1}, 4, ": 0 active blocks against 41"),
        ({"decode_weight": 0, "prefill_weight": 0, "request_weight": 1}, 4, ": 0 active requests against 1"),
        ({"decode_weight": 0.01}, 4, ": it has 4 of 6 full blocks of the prompt cached, a has 0"),
        ({"prefill_weight": 0.1, "decode_weight": 0.01}, 0, ": 6.25 blocks to prefill against 46.5"),
    ],
)
def test_the_weightiest_term_is_named(tmp_path: Path, given: dict[str, float], idle: int, why: str) -> None:
    """Of those in which the chosen one is the cheaper: what the settings weigh nothing is no reason."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.say(KV, B, joined("b"), stored(*HASHES[:idle]))
    it.replica(settings=RoutingSettings.parse({"policy": "kv", **given}))
    it.route("x", prompt(*range(900, 940)))
    assert it.route("r", ASKED).worker == B
    (attempt,) = explain_stage(it, tmp_path).attempts
    assert attempt.why.endswith(why)
