"""Requests picked out of a log."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from core.errors import CallerError
from core.events import ReplicaLeft, RequestFinished, RequestPrefilled, RequestRejected
from core.subjects import ROUTING
from replay.explain.request_list import RequestListEntry, list_requests
from replay.recording.moment import AtTime
from tests.projections.facts import joined, prompt
from tests.replay.staged import KV, START_MS, A, B, S, Stage


@pytest.fixture
def stage() -> Stage:
    """Six requests a second apart: slow, wrong, failed, refused, under way, and left by a replica that ended."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.say(KV, B, joined("b"))
    it.replica()
    it.replica(S, "r2")
    served(it, "quick", ttft_ms=10, cached=0)
    served(it, "slow", ttft_ms=900, cached=0)
    served(it, "wrong", ttft_ms=50, cached=4, outcome="error")
    it.clock.advance(1000)
    refused = RequestRejected(
        request="refused", attempt=0, model="tiny", reason="no_workers", status=503, cursor={}, excluded={},
        settings_revision=0, now_ms=0, tenant="refused-team",
    )  # fmt: skip
    it.tell(refused)
    it.clock.advance(1000)
    it.route("left", prompt(50), replica=S)
    it.say(ROUTING, S, ReplicaLeft(reason="stop"))
    it.clock.advance(1000)
    it.route("open", prompt(60))
    return it


def served(stage: Stage, name: str, *, ttft_ms: int, cached: int, outcome: str = "stop") -> None:
    stage.clock.advance(1000)
    stage.route(name, prompt(len(name), 9))
    stage.tell(
        RequestPrefilled(request=name, attempt=0, cached_tokens=cached, ttft_ms=ttft_ms),
        RequestFinished(
            request=name,
            attempt=0,
            outcome=outcome,
            prompt_tokens=9,
            output_tokens=3,
            cached_tokens=cached,
            ttft_ms=ttft_ms,
            duration_ms=ttft_ms + 1,
        ),
    )


def names(listed: list[RequestListEntry]) -> list[str]:
    return [each.request for each in listed]


def test_lists_what_a_tenant_asked(stage: Stage, tmp_path: Path) -> None:
    """Also what was refused; requests of others and of none are left out."""
    event = stage.decided("theirs", prompt(70))
    stage.tell(msgspec.structs.replace(event, tenant="team"))
    with stage.recording(tmp_path / "log") as recording:
        assert [(each.request, each.tenant) for each in list_requests(recording, tenant="team")] == [("theirs", "team")]
        assert names(list_requests(recording, tenant="refused-team")) == ["refused"]
        assert list_requests(recording, tenant="nobody") == []


def test_lists(stage: Stage, tmp_path: Path) -> None:
    """By time, by slowness, by misprediction, by outcome, by worker and replica; the last ones if it is limited."""
    everything = ["quick", "slow", "wrong", "refused", "left", "open"]
    with stage.recording(tmp_path / "log") as recording:
        assert names(list_requests(recording)) == everything
        assert names(list_requests(recording, limit=2)) == ["left", "open"]
        assert names(list_requests(recording, slowest=2)) == ["slow", "wrong"]
        assert names(list_requests(recording, mispredicted=5)) == ["wrong"]
        assert names(list_requests(recording, outcome="error")) == ["wrong"]
        assert names(list_requests(recording, outcome="rejected")) == ["refused"]
        assert names(list_requests(recording, outcome="replica_lost", replica="r2")) == ["left"]
        assert names(list_requests(recording, outcome="under_way")) == ["open"]
        assert names(list_requests(recording, replica=S)) == ["left"]
        assert names(list_requests(recording, model="huge")) == []
        on_a, on_b = (names(list_requests(recording, worker=worker)) for worker in ("a", B))
        assert sorted(on_a + on_b) == sorted(set(everything) - {"refused"})
        start, end = AtTime(START_MS + 2000), AtTime(START_MS + 4000)
        assert names(list_requests(recording, start=start, end=end)) == ["slow", "wrong"]
        with pytest.raises(CallerError, match="no worker 'z' in this log; there are a, b"):
            list_requests(recording, worker="z")
        (wrong,) = list_requests(recording, outcome="error")
        assert (wrong.ttft_ms, wrong.duration_ms, wrong.output_tokens) == (50, 51, 3)
        assert (wrong.real_cached_tokens, wrong.predicted_cached_tokens) == (4, 0)
        (refused,) = list_requests(recording, outcome="rejected")
        assert (refused.worker, refused.prompt_tokens, refused.ttft_ms, refused.duration_ms) == ("", None, None, None)
        (left,) = list_requests(recording, replica="r2")
        assert (left.replica, left.real_cached_tokens) == (S, None)
        assert left.replica_name == "r2"
