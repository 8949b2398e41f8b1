"""The first sentence of an explanation names the cause; numbers are those of the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from core.events import Event, RequestFinished, RequestMigrated, RequestPrefilled
from core.events.routing import CACHED_UNKNOWN, RequestQueued, RequestTurnedAway
from core.generation import PrefillReport
from core.settings import RoutingSettings
from replay.explain.explain import explain
from replay.explain.summary import WAITED_FOR
from tests.projections.facts import prefilled, prompt, removed
from tests.replay.staged import ASKED, HASHES, KV, A, Stage


def first(name: str = "r", *, ttft_ms: int, attempt: int = 0, cached: int = 16) -> RequestPrefilled:
    return RequestPrefilled(request=name, attempt=attempt, cached_tokens=cached, ttft_ms=ttft_ms)


def ended(*, ms: int, attempt: int = 0, outcome: str = "stop", tokens: int = 11, ttft_ms: int = 0) -> RequestFinished:
    return RequestFinished(
        request="r", attempt=attempt, outcome=outcome, prompt_tokens=25, output_tokens=tokens, cached_tokens=16,
        ttft_ms=ttft_ms, duration_ms=ms,
    )  # fmt: skip


def queued(stage: Stage, why: str) -> Event:
    return RequestQueued(
        request="r", model="tiny", priority=0, tenant="", prompt_tokens=25, why=why, depth=4, now_ms=stage.clock.now_ms
    )


def summary(stage: Stage, tmp_path: Path) -> list[str]:
    """It stands on top of the text, too."""
    with stage.recording(tmp_path / "log") as recording:
        found = explain(recording, "r")
    lines = render(explain_text(found)).splitlines()
    assert lines[1 : 1 + len(found.summary)] == found.summary
    return found.summary


@pytest.mark.parametrize(("why", "since"), WAITED_FOR.items())
def test_it_waited_in_the_router(stage: Stage, tmp_path: Path, why: str, since: str) -> None:
    stage.tell(queued(stage, why))
    stage.clock.advance(70)
    stage.route("r", ASKED)
    stage.clock.advance(20)
    stage.tell(first(ttft_ms=90))
    stage.clock.advance(300)
    stage.tell(ended(ms=390, ttft_ms=90))
    doing = "held" if why == "prefill" else "waiting"
    assert summary(stage, tmp_path) == [
        f"First token after 90 ms, 78 % of it {doing} in the router, since {since}.",
        "It ended with stop after 390 ms: 11 tokens, one every 30.0 ms.",
    ]


def test_it_stood_behind_another_prefill(stage: Stage, tmp_path: Path) -> None:
    stage.route("one", prompt(60, 61))
    stage.route("r", ASKED)
    stage.clock.advance(100)
    stage.tell(prefilled("one"))
    stage.clock.advance(50)
    stage.tell(first(ttft_ms=151))
    assert summary(stage, tmp_path) == [
        "First token after 151 ms, 66 % of it behind a request on a, with 9 tokens to compute."
    ]


def test_without_one_cause_the_two_largest_are_named(stage: Stage, tmp_path: Path) -> None:
    stage.tell(queued(stage, "full"))
    stage.clock.advance(40)
    stage.route("one", prompt(60, 61))
    stage.route("r", ASKED)
    stage.clock.advance(35)
    stage.tell(prefilled("one"))
    stage.clock.advance(25)
    stage.tell(first(ttft_ms=100))
    assert summary(stage, tmp_path) == [
        (
            "First token after 100 ms: 40 % waiting in the router, since workers had all that they may have and 35 % "
            "behind a request on a, with 9 tokens to compute."
        )
    ]


def test_its_own_prefill_took_longer_than_was_estimated(stage: Stage, tmp_path: Path) -> None:
    """The price is 1 ms a token; others that came in the same moment are named."""
    stage.settings(RoutingSettings(policy="time", prefill_us_per_token_m=1_000_000))
    stage.route("r", ASKED)
    stage.route("beside", prompt(60, 61))
    stage.clock.advance(270)
    stage.tell(first(ttft_ms=270))
    with stage.recording(tmp_path / "before") as recording:
        (attempt,) = explain(recording, "r").attempts
        timed, phases = attempt.candidates[0].timed, attempt.phases
    assert timed is not None and timed.own_ms == 9 and phases is not None
    assert (phases.near_requests, phases.near_tokens) == (1, 9)
    assert summary(stage, tmp_path) == [
        (
            "First token after 270 ms, 100 % of it computing 9 tokens of its prompt on a, where 1 more was sent within "
            "20 ms (estimated 9.0 ms: 30 times off)."
        )
    ]


def test_an_engine_that_does_not_say_what_it_had(stage: Stage, tmp_path: Path) -> None:
    """It is believed to have computed what was predicted."""
    stage.route("r", ASKED)
    stage.clock.advance(300)
    stage.tell(first(ttft_ms=300, cached=CACHED_UNKNOWN))
    (cause,) = summary(stage, tmp_path)
    assert cause.startswith("First token after 300 ms, 100 % of it computing 9 tokens of its prompt on a")


def test_the_cache_had_less_than_was_predicted(stage: Stage, tmp_path: Path) -> None:
    stage.clock.advance(1000)
    stage.say(KV, A, removed(*HASHES[2:4]))
    stage.clock.advance(40)
    stage.route("r", ASKED, lag={KV: 1})
    stage.clock.advance(300)
    stage.tell(first(ttft_ms=300, cached=8))
    cause, cache = summary(stage, tmp_path)
    assert cause.startswith("First token after 300 ms, 100 % of it computing 17 tokens of its prompt on a ")
    assert cache.startswith("The cache had 8 of its 25 tokens, not 16: ")
    assert "removed 40 ms before the decision" in cache


def test_an_answer_that_moved_waited_in_its_pause(stage: Stage, tmp_path: Path) -> None:
    """The longer of both waits is the first sentence."""
    stage.route("r", ASKED)
    stage.clock.advance(30)
    stage.tell(first(ttft_ms=30))
    stage.clock.advance(70)
    stage.tell(
        ended(ms=100, outcome="worker_lost", tokens=9, ttft_ms=30),
        RequestMigrated(request="r", attempt=1, worker=A, told_tokens=9, reason="it broke off"),
    )
    stage.clock.advance(50)
    stage.route("r", prompt(1, 2, 3, 4, 5, 6, 7, 8), attempt=1)
    stage.clock.advance(20)
    stage.tell(first(ttft_ms=170, attempt=1))
    assert summary(stage, tmp_path) == [
        "The answer broke off, and went on after 70 ms, 71 % of it until it was sent to a.",
        "The client had its first token after 30 ms; the answer moved from a to a.",
    ]


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"outcome": "pulled", "worker": A, "wait_ms": 60, "pull_ms": 20}, "80 % of it for a to compute the prompt"),
        ({"outcome": "deadline", "wait_ms": 60}, "60 % of it waiting in vain for another to compute the prompt"),
    ],
)
def test_another_was_to_compute_the_prompt(stage: Stage, tmp_path: Path, report: dict[str, Any], said: str) -> None:
    stage.route("r", ASKED)
    stage.clock.advance(100)
    told = PrefillReport(
        remote=True, reason="long", uncached_tokens=9, queued=0, workers=1, min_tokens=4, queue_max=8, **report
    )
    stage.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=16, ttft_ms=100, prefill=told))
    assert said in summary(stage, tmp_path)[0]


def test_it_was_refused(stage: Stage, tmp_path: Path) -> None:
    stage.tell(queued(stage, "full"))
    stage.clock.advance(70)
    stage.tell(RequestTurnedAway(request="r", model="tiny", reason="queue_wait", status=503, waited_ms=71))
    assert summary(stage, tmp_path) == [
        "It was refused with 503 after 71 ms in the router: workers had all that they may have."
    ]


def test_it_is_under_way(stage: Stage, tmp_path: Path) -> None:
    stage.route("r", ASKED)
    assert summary(stage, tmp_path) == ["No first token is in the log: it was under way when the log ends."]
