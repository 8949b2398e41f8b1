"""The parts of a request's course add up to its time, in the order in which they happened."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from core.events import RequestFinished, RequestMigrated, RequestPrefilled
from core.events.routing import RequestQueued
from core.generation import PrefillReport
from core.settings import RoutingSettings
from replay.explain.explain import explain
from replay.explain.explanation import Course, CoursePart
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulation import simulate
from tests.fixtures.passes import one_prompt_a_pass
from tests.projections.facts import prefilled, prompt
from tests.replay.simulate.families import ENGINE, families
from tests.replay.staged import ASKED, A, Stage

__all__ = ["one_prompt_a_pass"]


def course(stage: Stage, tmp_path: Path) -> Course:
    with stage.recording(tmp_path / "log") as recording:
        found = explain(recording, "r").course
    assert found is not None
    return found


def spans(parts: list[CoursePart]) -> list[tuple[str, int, float, float]]:
    return [(part.kind, part.attempt, part.from_ms, part.to_ms) for part in parts]


def queued(stage: Stage, why: str) -> RequestQueued:
    return RequestQueued(
        request="r", model="tiny", priority=0, tenant="", prompt_tokens=25, why=why, depth=4, now_ms=stage.clock.now_ms
    )


def ended(*, ms: int, ttft_ms: int, outcome: str = "stop", attempt: int = 0) -> RequestFinished:
    return RequestFinished(
        request="r", attempt=attempt, outcome=outcome, prompt_tokens=25, output_tokens=9, cached_tokens=16,
        ttft_ms=ttft_ms, duration_ms=ms,
    )  # fmt: skip


def test_it_is_queued_then_held_then_behind_another_prefill(stage: Stage, tmp_path: Path) -> None:
    stage.tell(queued(stage, "full"))
    stage.clock.advance(40)
    stage.tell(queued(stage, "prefill"))
    stage.clock.advance(20)
    stage.route("one", prompt(60, 61))
    stage.route("r", ASKED)
    stage.clock.advance(35)
    stage.tell(prefilled("one"))
    stage.clock.advance(25)
    stage.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=16, ttft_ms=120))
    stage.tell(ended(ms=400, ttft_ms=120))
    found = course(stage, tmp_path)
    assert spans(found.parts) == [
        ("queued", 0, 0, 40),
        ("held", 0, 40, 60),
        ("behind", 0, 60, 95),
        ("prefill", 0, 95, 120),
        ("decode", 0, 120, 400),
    ]
    assert {part.worker for part in found.parts} == {A}
    assert found.ended
    assert not found.pauses


def test_an_answer_breaks_off_and_goes_on(stage: Stage, tmp_path: Path) -> None:
    stage.route("r", ASKED)
    stage.clock.advance(30)
    stage.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=16, ttft_ms=30))
    stage.clock.advance(70)
    stage.tell(
        ended(ms=100, ttft_ms=30, outcome="worker_lost"),
        RequestMigrated(request="r", attempt=1, worker=A, told_tokens=9, reason="it broke off"),
    )
    stage.clock.advance(50)
    stage.route("r", prompt(1, 2, 3, 4, 5, 6, 7, 8), attempt=1)
    stage.clock.advance(20)
    stage.tell(RequestPrefilled(request="r", attempt=1, cached_tokens=16, ttft_ms=170))
    found = course(stage, tmp_path)
    assert spans(found.parts) == [
        ("prefill", 0, 0, 30),
        ("decode", 0, 30, 100),
        ("between", 1, 100, 150),
        ("prefill", 1, 150, 170),
    ]
    assert spans(found.pauses) == [("pause", 1, 100, 170)]
    assert not found.ended, "the log ends before it does"


def test_the_prompt_is_computed_by_another_worker(stage: Stage, tmp_path: Path) -> None:
    stage.route("r", ASKED)
    stage.clock.advance(100)
    report = PrefillReport(
        remote=True, reason="long", uncached_tokens=9, queued=0, workers=1, min_tokens=4, queue_max=8,
        outcome="pulled", worker=A, wait_ms=60, pull_ms=20,
    )  # fmt: skip
    stage.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=16, ttft_ms=100, prefill=report))
    assert spans(course(stage, tmp_path).parts) == [("remote", 0, 0, 80), ("prefill", 0, 80, 100)]


def test_an_attempt_ends_without_a_token(stage: Stage, tmp_path: Path) -> None:
    stage.route("r", ASKED)
    stage.clock.advance(100)
    stage.tell(ended(ms=100, ttft_ms=-1, outcome="worker_lost"))
    assert spans(course(stage, tmp_path).parts) == [("unanswered", 0, 0, 100)]


def test_the_estimate_is_that_of_the_decision(stage: Stage, tmp_path: Path) -> None:
    """1 ms a token: the prompt of the one before it, with what that weighs as held up, and 9 ms of its own."""
    stage.settings(RoutingSettings(policy="time", prefill_us_per_token_m=1_000_000))
    stage.route("one", prompt(60, 61))
    stage.route("r", ASKED)
    stage.clock.advance(270)
    stage.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=16, ttft_ms=270))
    with stage.recording(tmp_path / "log") as recording:
        found = explain(recording, "r")
    timed = found.attempts[0].candidates[0].timed
    assert found.course is not None and timed is not None and timed.outstanding_ms >= 9
    wait = timed.outstanding_ms
    assert spans(found.course.expected) == [("behind", 0, 0, wait), ("prefill", 0, wait, wait + 9)]


def test_a_log_that_begins_later_has_no_course(stage: Stage, tmp_path: Path) -> None:
    stage.route("r", ASKED, attempt=1)
    with stage.recording(tmp_path / "log") as recording:
        assert explain(recording, "r").course is None


def test_parts_add_up(tmp_path: Path) -> None:
    """Of every request of two workers under more than they can compute: to its whole time, with its hold in it."""
    log, held = tmp_path / "log", 0
    simulate(Options(workers=2, engine=ENGINE), families(120, every_us=5_000), archive=log)
    with Recording.open(log) as recording:
        for tried in recording.requests.between():
            found = explain(recording, tried.request)
            attempt = found.attempts[-1]
            assert found.course is not None
            parts = found.course.parts
            assert parts[0].from_ms == 0
            assert all(one.to_ms == two.from_ms for one, two in pairwise(parts))
            assert parts[-1].to_ms == attempt.duration_ms
            assert next(part.to_ms for part in parts if part.kind == "prefill") == attempt.ttft_ms
            waits = [part.to_ms - part.from_ms for part in parts if part.kind == "held"]
            assert sum(waits) == (attempt.hold.held_ms if attempt.hold and attempt.hold.held_ms else 0)
            held += bool(waits)
    assert held > 20
