"""Requests picked out of a log."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from core.errors import CallerError
from core.events import ReplicaLeft, RequestFinished, RequestMigrated, RequestPrefilled, RequestRejected
from core.keys import session_key
from core.subjects import ROUTING
from replay.explain.request_list import RequestList, list_requests, turn_of
from replay.recording.moment import AtTime
from replay.recording.recording import Recording
from tests.projections.facts import joined, prompt
from tests.replay.staged import KEY, KV, START_MS, A, B, S, Stage


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


def names(listed: RequestList) -> list[str]:
    return [each.request for each in listed.requests]


def test_lists_what_a_tenant_asked(stage: Stage, tmp_path: Path) -> None:
    """Also what was refused; requests of others and of none are left out."""
    event = stage.decided("theirs", prompt(70))
    stage.tell(msgspec.structs.replace(event, tenant="team"))
    with stage.recording(tmp_path / "log") as recording:
        found = list_requests(recording, tenant="team")
        assert [(each.request, each.tenant) for each in found.requests] == [("theirs", "team")]
        assert names(list_requests(recording, tenant="refused-team")) == ["refused"]
        assert list_requests(recording, tenant="nobody") == RequestList(requests=[], matched=0)


def test_lists(stage: Stage, tmp_path: Path) -> None:
    """By time, by slowness, by misprediction, by outcome, by worker and replica; the last ones if it is limited."""
    everything = ["quick", "slow", "wrong", "refused", "left", "open"]
    with stage.recording(tmp_path / "log") as recording:
        assert names(list_requests(recording)) == everything
        assert names(list_requests(recording, limit=2)) == ["left", "open"]
        assert list_requests(recording, limit=2).matched == len(everything)
        assert list_requests(recording, slowest=2).matched == 3
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
        (wrong,) = list_requests(recording, outcome="error").requests
        assert (wrong.ttft_ms, wrong.duration_ms, wrong.output_tokens) == (50, 51, 3)
        assert (wrong.real_cached_tokens, wrong.predicted_cached_tokens) == (4, 0)
        (refused,) = list_requests(recording, outcome="rejected").requests
        assert (refused.worker, refused.prompt_tokens, refused.ttft_ms, refused.duration_ms) == ("", None, None, None)
        (left,) = list_requests(recording, replica="r2").requests
        assert (left.replica, left.real_cached_tokens) == (S, None)
        assert left.replica_name == "r2"


def test_an_answer_that_went_on_is_as_slow_as_its_pause(stage: Stage, tmp_path: Path) -> None:
    """Its first token is that of the request, whichever attempt made it; before, the later attempt's counted from the
    request's arrival. An attempt in between that made no token belongs to the pause."""
    served(stage, "moved", ttft_ms=70, cached=0, outcome="worker_lost")
    stage.tell(RequestMigrated(request="moved", attempt=1, worker=A, told_tokens=3, reason="it broke off"))
    stage.clock.advance(9000)
    stage.route("moved", prompt(7, 9), attempt=1)
    lost = RequestFinished(
        request="moved", attempt=1, outcome="worker_lost", prompt_tokens=9, output_tokens=0, cached_tokens=0,
        ttft_ms=-1, duration_ms=9100,
    )  # fmt: skip
    stage.tell(lost)
    stage.route("moved", prompt(7, 9), attempt=2)
    stage.tell(RequestPrefilled(request="moved", attempt=2, cached_tokens=0, ttft_ms=9400))
    with stage.recording(tmp_path / "log") as recording:
        moved = [each for each in list_requests(recording).requests if each.request == "moved"]
        assert [(each.attempt, each.ttft_ms, each.pause_ms) for each in moved] == [
            (0, 70, None), (1, 70, None), (2, 70, 9400 - 71),
        ]  # fmt: skip
        slowest = list_requests(recording, slowest=3).requests
    assert [(each.request, each.attempt) for each in slowest] == [("moved", 2), ("slow", 0), ("moved", 0)]


def test_the_requests_of_a_session(stage: Stage, tmp_path: Path) -> None:
    """By the client's own id, which the deployment's key makes the log's, or by that; and each by its number. Two
    tenants may call a session the same."""
    for name, tenant, session in (("t1", "", "talk"), ("t2", "team", "talk"), ("t3", "", "talk"), ("t4", "", "other")):
        key = session_key(f"{tenant}/{session}", KEY.hash_seed)
        stage.tell(msgspec.structs.replace(stage.decided(name, prompt(80)), tenant=tenant, session=key))
    with stage.recording(tmp_path / "log") as recording:
        assert names(list_requests(recording, session="talk")) == ["t1", "t2", "t3"]
        assert names(list_requests(recording, session="talk", tenant="")) == ["t1", "t3"]
        assert names(list_requests(recording, session="talk", tenant="team")) == ["t2"]
        key = session_key("/other", KEY.hash_seed)
        (other,) = list_requests(recording, session=key).requests
        assert (other.request, other.session) == ("t4", key)
        assert turn_of(recording, "talk", "", 2).request == "t3"
        with pytest.raises(CallerError, match="session 'talk' has 2 requests in this log, and no turn 3"):
            turn_of(recording, "talk", "", 3)
        with pytest.raises(CallerError, match="the log knows no session 'nobody'"):
            list_requests(recording, session="nobody")
    with Recording.open(stage.archived(tmp_path / "log")) as recording:
        assert names(list_requests(recording, session=key)) == ["t4"]
        with pytest.raises(CallerError, match="without the deployment's key only keys of sessions are known"):
            list_requests(recording, session="talk")
