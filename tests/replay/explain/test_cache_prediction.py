"""Predicted against real reuse: the event that was missing or late is found, and named with its place and time."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from core.events import BlocksStored, CacheCleared, RequestFinished, WorkerLost
from core.events.routing import CACHED_UNKNOWN
from core.ids import LOST_SUFFIX, ReplicaId
from core.settings import RoutingSettings
from replay.explain.explain import explain
from replay.explain.explanation import AttemptExplanation, CachePrediction
from tests.projections.facts import finished, joined, prefilled, removed, restated, stored
from tests.replay.staged import ASKED, HASHES, KV, A, B, R, S, Stage

SIZE = ASKED.block_size
BY_TOKENS = RoutingSettings(prefill_us_per_token_m=20_500)
"""A prefill of few tokens is short: to wait for what is being computed is worth it."""


@pytest.fixture
def stage() -> Stage:
    """Worker `a` holds four blocks of the prompt, `b` none; a replica is there."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.say(KV, B, joined("b"))
    it.replica(settings=BY_TOKENS)
    it.replica(S, "r2", BY_TOKENS)
    it.clock.advance(1000)
    it.say(KV, A, stored(*HASHES[:4]))
    it.clock.advance(1000)
    return it


def explain_attempt(stage: Stage, tmp_path: Path, request: str = "r") -> AttemptExplanation:
    with stage.recording(tmp_path / "log") as recording:
        attempt = explain(recording, request).attempts[0]
        assert attempt.again == "same"
        recorded = explain(recording, request, whole=False).attempts[0]
        assert recorded.reuse == attempt.reuse  # needs no fold
        return attempt


def reuse(stage: Stage, tmp_path: Path) -> CachePrediction:
    found = explain_attempt(stage, tmp_path).reuse
    assert found is not None
    return found


def served(stage: Stage, blocks: int, after_ms: int = 50, request: str = "r") -> None:
    """Its first token came, with so many blocks from the cache."""
    stage.clock.advance(after_ms)
    stage.tell(prefilled(request, cached=blocks * SIZE))


def test_as_predicted(stage: Stage, tmp_path: Path) -> None:
    assert stage.route("r", ASKED).worker == A
    served(stage, 4)
    found = reuse(stage, tmp_path)
    assert (found.verdict, found.predicted_blocks, found.real_blocks, found.blocks) == ("as_predicted", 4, 4, 0)


@pytest.mark.parametrize(("real", "expected"), [(2, "a prompt that begins so was sent"), (5, "no more, or never")])
def test_an_assumed_cache(stage: Stage, tmp_path: Path, real: int, expected: str) -> None:
    """A wrong prediction of a worker whose cache is assumed is no fault of the log's."""
    stage.say(KV, A, replace(joined("a"), assumed=True))
    stage.route("r", ASKED)
    served(stage, real)
    found = reuse(stage, tmp_path)
    assert (found.verdict, found.predicted_blocks, found.real_blocks) == ("believed", 4, real)
    assert expected in found.text


def test_removed_before_and_not_seen(stage: Stage, tmp_path: Path) -> None:
    seq = stage.say(KV, A, removed(*HASHES[2:4]))
    stage.say(KV, B, stored(77))
    stage.clock.advance(40)
    stage.route("r", ASKED, lag={KV: 2})
    served(stage, 2)
    found = reuse(stage, tmp_path)
    assert (found.verdict, found.stream, found.seq, found.after_decision_ms) == ("removed_unseen", KV, seq, -40)
    assert (found.first_block, found.blocks) == (2, 2)
    assert found.text == "blocks 3 to 4 of the prompt: removed 40 ms before the decision, and not seen in time"


def test_removed_after_the_decision(stage: Stage, tmp_path: Path) -> None:
    stage.route("r", ASKED)
    stage.clock.advance(7)
    seq = stage.say(KV, A, removed(HASHES[3]))
    served(stage, 3)
    found = reuse(stage, tmp_path)
    assert (found.verdict, found.seq, found.after_decision_ms, found.blocks) == ("removed_later", seq, 7, 1)


def test_a_removal_of_other_blocks_or_workers_explains_nothing(stage: Stage, tmp_path: Path) -> None:
    """Nor does one that comes after the engine has computed the block itself."""
    stage.route("r", ASKED)
    stage.say(KV, A, removed(1, 2, 3))
    stage.say(KV, B, removed(*HASHES))
    stage.say(KV, A, stored(*HASHES[2:]))
    stage.say(KV, A, removed(*HASHES[2:]))
    served(stage, 2)
    found = reuse(stage, tmp_path)
    assert (found.verdict, found.stream, found.seq) == ("never_in_log", None, None)


def test_a_hash_is_found_at_its_place_only(stage: Stage, tmp_path: Path) -> None:
    """A column holds whole numbers: the same bytes across two of them are another block."""
    stage.route("r", ASKED)
    low, high = HASHES[3] & 0xFFFFFFFF, HASHES[3] >> 32
    stage.say(KV, A, removed(low << 32, high))
    served(stage, 3)
    assert reuse(stage, tmp_path).verdict == "never_in_log"


def test_cleared_and_restated(stage: Stage, tmp_path: Path) -> None:
    stage.route("r", ASKED)
    stage.clock.advance(3)
    stage.say(KV, A, CacheCleared(reason="out of step"))
    served(stage, 0)
    found = reuse(stage, tmp_path)
    assert (found.verdict, found.after_decision_ms) == ("cleared", 3)
    assert "out of step" in found.text


@pytest.mark.parametrize(("kept", "verdict"), [(2, "cleared"), (4, "never_in_log")])
def test_restated_in_parts(stage: Stage, tmp_path: Path, kept: int, verdict: str) -> None:
    """A cache that is said anew has a block if any of its parts has it."""
    stage.route("r", ASKED)
    stage.say(KV, A, restated(0, 2, *HASHES[:kept]), restated(1, 2, 99))
    served(stage, 2)
    assert reuse(stage, tmp_path).verdict == verdict


def test_the_worker_ended(stage: Stage, tmp_path: Path) -> None:
    stage.route("r", ASKED)
    stage.clock.advance(5)
    stage.say(KV, A + LOST_SUFFIX, WorkerLost(by=S, reason="no lease"), about=A)
    served(stage, 0)
    found = reuse(stage, tmp_path)
    assert (found.verdict, found.after_decision_ms) == ("ended", 5)


def test_stored_and_not_seen_yet(stage: Stage, tmp_path: Path) -> None:
    seq = stage.say(KV, A, stored(*HASHES[4:]))
    stage.clock.advance(20)
    stage.route("r", ASKED, lag={KV: 1})
    served(stage, 6)
    found = reuse(stage, tmp_path)
    assert (found.verdict, found.seq, found.after_decision_ms) == ("stored_unseen", seq, -20)
    assert (found.first_block, found.blocks) == (4, 2)


def test_stored_later_by_another(stage: Stage, tmp_path: Path) -> None:
    stage.route("r", ASKED)
    stage.clock.advance(8)
    seq = stage.say(KV, A, stored(*HASHES[4:]))
    served(stage, 6)
    found = reuse(stage, tmp_path)
    assert (found.verdict, found.seq, found.after_decision_ms) == ("stored_later", seq, 8)


def test_more_than_the_log_ever_told(stage: Stage, tmp_path: Path) -> None:
    stage.route("r", ASKED)
    served(stage, 6)
    assert reuse(stage, tmp_path).verdict == "never_in_log"


def test_an_unknown_cache_predicts_nothing(stage: Stage, tmp_path: Path) -> None:
    """After a gap in its messages a worker holds nothing for the index, whatever the engine has."""
    stage.say(KV, B, CacheCleared())
    n, head = stage._chains[KV, A]
    stage._chains[KV, A] = n + 1, head
    stage.say(KV, A, BlocksStored(hashes=b""))
    stage.say(KV, B + LOST_SUFFIX, WorkerLost(by=S, reason="gone"), about=B)
    event = stage.route("r", ASKED)
    assert (event.worker, event.predicted_cached_tokens) == (A, 0)
    served(stage, 4)
    assert reuse(stage, tmp_path).verdict == "unknown_cache"


@pytest.mark.parametrize("replica", [R, S])
def test_counted_on_a_request_that_was_computing_it(stage: Stage, tmp_path: Path, replica: ReplicaId) -> None:
    """Of this replica, ahead of the log, or of another, folded: it is named, with when its first token came."""
    stage.route("first", ASKED, replica=replica)
    stage.clock.advance(5)
    event = stage.route("r", ASKED)
    assert (event.worker, event.predicted_cached_tokens) == (A, 6 * SIZE)
    stage.clock.advance(30)
    stage.tell(prefilled("first", cached=4 * SIZE), replica=replica)
    served(stage, 4)
    found = reuse(stage, tmp_path)
    assert (found.verdict, found.request, found.first_block, found.blocks) == ("pending", "first", 4, 2)
    assert "its first token came 30 ms after the decision" in found.text


def test_counted_on_a_request_that_ended(stage: Stage, tmp_path: Path) -> None:
    stage.route("first", ASKED)
    stage.route("r", ASKED)
    stage.tell(finished("first"))
    served(stage, 4)
    assert "it ended without one: stop" in reuse(stage, tmp_path).text


def test_no_first_token(stage: Stage, tmp_path: Path) -> None:
    stage.route("r", ASKED)
    assert explain_attempt(stage, tmp_path).reuse is None
    stage.tell(
        RequestFinished(
            request="r",
            attempt=0,
            outcome="abort",
            prompt_tokens=1,
            output_tokens=0,
            cached_tokens=0,
            ttft_ms=-1,
            duration_ms=9,
        )
    )
    attempt = explain_attempt(stage, tmp_path)
    assert attempt.reuse is not None
    assert (attempt.reuse.verdict, attempt.outcome, attempt.ttft_ms) == ("no_first_token", "abort", None)


def test_an_engine_that_says_it_at_the_end_or_never(stage: Stage, tmp_path: Path) -> None:
    """Its count at the end is compared; without one there is no real reuse, and the text says so."""
    for request in ("late", "never"):
        assert stage.route(request, ASKED).worker == A
        stage.clock.advance(50)
        stage.tell(prefilled(request, cached=CACHED_UNKNOWN))
        cached = 4 * SIZE if request == "late" else CACHED_UNKNOWN
        stage.tell(replace(finished(request), cached_tokens=cached))
    late = explain_attempt(stage, tmp_path, "late")
    assert late.real_cached_tokens == 4 * SIZE
    assert late.reuse is not None
    assert late.reuse.verdict == "as_predicted"
    with stage.recording(tmp_path / "again") as recording:
        found = explain(recording, "never")
    (never,) = found.attempts
    assert (never.real_cached_tokens, never.ttft_ms) == (None, 1)
    assert never.reuse is not None
    assert never.reuse.verdict == "real_unknown"
    text = render(explain_text(found))
    assert "the engine did not say how many of" in text
    assert f"{4 * SIZE} predicted" in text
