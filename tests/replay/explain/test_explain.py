"""Explanations of whole requests: what was known and how old it was, what came of it, and of a live run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from core.errors import CallerError
from core.event_json import time_text
from core.events import LocalChanged, RequestFinished, RequestMigrated, RequestPrefilled, RequestRejected
from core.events.routing import ROUTED_VERSION, RequestTurnedAway
from core.ids import RequestId, to_column
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from replay.explain.explain import explain
from replay.explain.explanation import AttemptExplanation
from replay.recording.recording import Recording
from tests.actors.world import KEY as WORLD_KEY
from tests.actors.world import NAMESPACE
from tests.projections.facts import finished, joined, load, prefilled, prompt, stored
from tests.replay.recorded import conversations, pair, recorded
from tests.replay.staged import ASKED, HASHES, KV, A, B, C, R, S, Stage


@pytest.fixture
def stage() -> Stage:
    """Two workers, of which `a` holds four blocks of the prompt, and a replica."""
    it = Stage()
    it.say(KV, A, joined("a"), stored(*HASHES[:4]))
    it.say(KV, B, joined("b"))
    it.say(LOAD, A, load())
    it.replica()
    return it


def attempt_of(stage: Stage, tmp_path: Path, request: str = "r", *, whole: bool | None = None) -> AttemptExplanation:
    with stage.recording(tmp_path / "log") as recording:
        return explain(recording, request, whole=whole).attempts[-1]


def test_how_old_what_the_index_knew_was(stage: Stage, tmp_path: Path) -> None:
    """Per candidate: its newest message that was read, how long before the decision that was, and what it had said
    since; by the log's clock, whatever the replica's own shows."""
    stage.clock.advance(300)
    seq = stage.say(KV, A, stored(90))
    stage.clock.advance(50)
    stage.say(KV, A, stored(91))
    stage.clock.advance(7)
    stage.say(KV, A, stored(92))
    stage.clock.advance(5)
    stage.route("r", ASKED, lag={KV: 2}, after_ms=20)
    stage.say(KV, A, stored(93))
    told = attempt_of(stage, tmp_path)
    by_name = {row.name: row.knowledge for row in told.candidates}
    assert by_name["a"].seq == seq
    assert (by_name["a"].age_ms, by_name["a"].unseen, by_name["a"].unseen_ms) == (62, 2, 12)
    assert by_name["a"].load_age_ms == 362
    assert (by_name["b"].age_ms, by_name["b"].unseen, by_name["b"].load_age_ms) == (362, 0, None)
    assert told.decided < told.time


@pytest.mark.parametrize("skew_ms", [-3_600_000, 3_600_000])
def test_a_replica_whose_clock_is_wrong(stage: Stage, tmp_path: Path, skew_ms: int) -> None:
    """It is an hour off: ages are those of the log all the same, and the decision is no later than its record."""
    stage.clock.advance(1000)
    stage.skew_ms = skew_ms
    stage.replica(S, "r2")
    stage.clock.advance(500)
    stage.route("r", ASKED, replica=S, after_ms=4)
    told = attempt_of(stage, tmp_path)
    assert {row.name: row.knowledge.age_ms for row in told.candidates} == {"a": 1500, "b": 1500}


def test_what_was_in_flight(stage: Stage, tmp_path: Path) -> None:
    """Requests of others as the log had them, its own ahead of the log, and what was to be prefilled."""
    stage.replica(S, "r2")
    stage.route("theirs", prompt(50, 51, 52), replica=S)
    stage.tell(prefilled("theirs"), replica=S)
    first = stage.route("mine", ASKED)
    assert first.worker == A
    stage.route("r", ASKED, lag={ROUTING: 1})
    told = attempt_of(stage, tmp_path)
    flying = {row.name: row.in_flight for row in told.candidates}
    assert (flying["a"].requests, flying["a"].blocks, flying["a"].ahead) == (1, 7, 1)
    assert flying["a"].prefill_tokens == first.prefill_tokens == 25 - 16
    assert (flying["b"].requests, flying["b"].blocks, flying["b"].prefill_tokens, flying["b"].ahead) == (1, 4, 0, 0)
    recorded_only = attempt_of(stage, tmp_path, whole=False)
    assert [row.in_flight.ahead for row in recorded_only.candidates] == [None, None]
    for one, other in zip(told.candidates, recorded_only.candidates, strict=True):
        assert msgspec.structs.replace(other, in_flight=one.in_flight) == one


def test_who_was_left_out_and_what_only_the_replica_knew(stage: Stage, tmp_path: Path) -> None:
    """Each with the reason, by name and id; settings that are not the defaults are named."""
    stage.settings(RoutingSettings(prefill_weight_m=2000, candidates_recorded_max=1))
    stage.say(KV, C, joined("c"))
    stage.say(LOAD, B, load(draining=True))
    stage.tell(LocalChanged(worker=C, reasons=("suspected",)))
    stage.route("r", ASKED)
    told = attempt_of(stage, tmp_path)
    assert told.excluded == {
        "draining": {"count": 1, "first": [f"b ({B})"]},
        "suspected": {"count": 1, "first": [f"c ({C})"]},
    }
    assert told.local == {f"c ({C})": ["suspected"]}
    assert told.settings_changed == {"prefill_weight": 2.0, "candidates_recorded_max": 1}
    assert told.why == "a was the only candidate"
    assert told.runner_up is None
    assert attempt_of(stage, tmp_path, whole=False) == msgspec.structs.replace(
        told,
        again="not_made",
        loads_adapter=None,
        candidates=[msgspec.structs.replace(row, in_flight=_unfolded(row.in_flight)) for row in told.candidates],
    )


def _unfolded(flying: msgspec.Struct) -> msgspec.Struct:
    return msgspec.structs.replace(flying, ahead=None, prefill_tokens=None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            RoutingSettings(policy="kv"),
            "a costs 4 less than b: it has 4 of 6 full blocks of the prompt cached, b has 0",
        ),
        (RoutingSettings(policy="round-robin"), "turn among 2, after 0 decisions of this replica"),
        (RoutingSettings(policy="random"), "policy random looks at no cost"),
        (RoutingSettings(policy="least-loaded"), "cost the same; the hash of request and worker decided"),
        (RoutingSettings(policy="kv", temperature_m=1000), "temperature 1 draws: "),
        (RoutingSettings(policy="kv", tie_margin_m=9000), "within the tie margin of 9"),
    ],
)
def test_why(stage: Stage, tmp_path: Path, settings: RoutingSettings, said: str) -> None:
    """Each policy says what it looked at, and a draw how likely it was."""
    stage.settings(settings)
    stage.route("r", ASKED, seed=1 << 62)
    told = attempt_of(stage, tmp_path)
    assert said in told.why
    assert (told.draw == 0.25) == bool(settings.temperature_m)
    assert all(
        (row.probability is not None) == (told.draw is not None or settings.policy == "random")
        for row in told.candidates
    )
    assert (told.runner_up is None) == (settings.policy in {"round-robin", "random"})


def test_the_time_to_the_first_token_is_taken_apart(stage: Stage, tmp_path: Path) -> None:
    """Attempts before it, those that were to be prefilled there before it, and the rest."""
    stage.route("one", prompt(60, 61), replica=R)
    stage.route("two", prompt(70, 71), replica=R)
    stage.say(KV, A, stored(*HASHES[4:]))
    event = stage.route("r", ASKED)
    there = [name for name in ("one", "two") if _worker(stage, name) == event.worker]
    stage.clock.advance(100)
    for name in ("one", "two"):
        stage.tell(prefilled(name))
    stage.clock.advance(50)
    stage.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=24, ttft_ms=151))
    phases = attempt_of(stage, tmp_path).phases
    assert phases is not None
    assert len(there) == 1
    assert (phases.before_ms, phases.behind_ms, phases.rest_ms, phases.ttft_ms) == (0, 100, 51, 151)
    assert (phases.behind_requests, phases.behind_tokens, phases.overlapped) == (1, 9, False)


def _worker(stage: Stage, request: str) -> str:
    events = (event for frame in stage.frames[ROUTING] if frame.message for event in frame.message.events)
    return next(event.worker for event in events if getattr(event, "request", "") == request)  # type: ignore[union-attr]


def test_an_answer_that_went_on_elsewhere(stage: Stage, tmp_path: Path) -> None:
    """Every attempt is told, with what the client had by then; it waited for the first token, and in the pause."""
    stage.route("r", ASKED)
    stage.clock.advance(30)
    stage.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=16, ttft_ms=30))
    stage.clock.advance(70)
    stage.tell(
        RequestFinished(
            request="r",
            attempt=0,
            outcome="worker_lost",
            prompt_tokens=25,
            output_tokens=9,
            cached_tokens=16,
            ttft_ms=30,
            duration_ms=100,
            detail="it broke off",
        ),
        RequestMigrated(request="r", attempt=1, worker=A, told_tokens=9, reason="it broke off"),
    )
    stage.route("r", prompt(1, 2, 3, 4, 5, 6, 7, 8), attempt=1)
    stage.clock.advance(20)
    stage.tell(RequestPrefilled(request="r", attempt=1, cached_tokens=16, ttft_ms=120))
    stage.tell(finished("r", attempt=1))
    with stage.recording(tmp_path / "log") as recording:
        first, second = explain(recording, "r").attempts
    assert (first.attempt, first.outcome, first.detail, first.told_tokens) == (0, "worker_lost", "it broke off", 0)
    assert (second.attempt, second.told_tokens, second.outcome) == (1, 9, "stop")
    assert second.phases is not None
    assert (second.phases.ttft_ms, second.phases.before_ms, second.phases.rest_ms) == (20, 0, 20)
    assert (first.first_token_ms, first.pause_ms, second.first_token_ms, second.pause_ms) == (30, None, 30, 20)


def test_an_id_that_was_used_again(stage: Stage, tmp_path: Path) -> None:
    """The last request of the id that was routed is explained; refusals before it are told too."""
    refusal = RequestRejected(
        request="r",
        attempt=0,
        model="tiny",
        reason="overloaded",
        status=503,
        cursor={},
        excluded={"overloaded": (2, to_column([A, B]))},
        settings_revision=0,
        now_ms=0,
    )
    stage.route("r", prompt(30, 31))
    stage.tell(finished("r"))
    stage.tell(refusal)
    stage.clock.advance(10)
    stage.route("r", ASKED)
    with stage.recording(tmp_path / "log") as recording:
        told = explain(recording, "r")
        assert recording.routed(RequestId("r")) == told.attempts[0].seq
        with pytest.raises(CallerError, match="knows no request 'nobody'"):
            explain(recording, "nobody")
    assert told.uses == 3
    assert [attempt.prompt_tokens for attempt in told.attempts] == [25]
    assert [(each.status, each.reason) for each in told.rejections] == [(503, "overloaded")]
    assert told.rejections[0].excluded == {"overloaded": {"count": 2, "first": [f"a ({A})", f"b ({B})"]}}


@pytest.mark.parametrize(
    "event",
    [
        RequestRejected(
            request="r", attempt=0, model="tiny", reason="no_workers", status=503, cursor={}, excluded={},
            settings_revision=0, now_ms=0, v=2,
        ),
        RequestTurnedAway(request="r", model="tiny", reason="queue_full", status=503, waited_ms=-1, v=2),
    ],
    ids=["rejected", "turned away"],
)  # fmt: skip
def test_a_refusal_that_a_newer_program_recorded(
    stage: Stage, tmp_path: Path, event: RequestRejected | RequestTurnedAway
) -> None:
    """What any program can read of it is told."""
    stage.say(ROUTING, R, event)
    with stage.recording(tmp_path / "log") as recording:
        told = explain(recording, "r")
        time = time_text(stage.clock.now_ms)
    assert [(each.status, each.reason, each.time, each.excluded) for each in told.rejections] == [
        (503, "unknown", time, {})
    ]
    assert f"{time}  rejected with 503: why, this program cannot read" in render(explain_text(told))


def test_attempts_that_a_newer_program_recorded(stage: Stage, tmp_path: Path) -> None:
    """Each is named beside those that can be read."""
    first = stage.decided("r", ASKED)
    stage.say(ROUTING, R, msgspec.structs.replace(first, v=ROUTED_VERSION + 1))
    stage.tell(finished("r"))
    stage.route("r", ASKED, attempt=1)
    with stage.recording(tmp_path / "log") as recording:
        told = explain(recording, "r")
    assert [attempt.attempt for attempt in told.attempts] == [1]
    assert told.unread == [
        f"attempt 0 went to a ({A}); why, routing:2 says in a form of a newer program, which this one cannot read"
    ]
    assert told.unread[0] in render(explain_text(told))


def test_a_record_that_cannot_be_made_again_is_told_as_it_is(stage: Stage, tmp_path: Path) -> None:
    """A decision that does not follow from the log (here: another choice) says so, and shows what was recorded."""
    event = stage.decided("r", ASKED)
    stage.tell(msgspec.structs.replace(event, digest="0" * 16))
    told = attempt_of(stage, tmp_path)
    assert (told.again, told.worker_name) == ("differs", "a")
    assert [row.name for row in told.candidates] == ["a", "b"]


async def test_of_a_live_run(tmp_path: Path) -> None:
    """Two real replicas under load: each decision is made again with the same result, those that a worker declined,
    too; it is told as the engines counted, and every difference of reuse has a reason in the log; without the key, the
    same is told."""
    async with pair() as (it, routers):
        await conversations(routers, 8, 5)
        for router in routers:
            await it.settled(router)
        cached = {event.request: event.cached_tokens for event in await it.told(ROUTING, RequestPrefilled)}
        recording = await recorded(it.log, NAMESPACE, WORLD_KEY, tmp_path / "log")
    with recording, Recording.open(tmp_path / "log") as unproved:
        assert len(cached) == 40
        for name, tokens in cached.items():
            told = explain(recording, name)
            *declined, attempt = told.attempts
            assert {each.outcome for each in declined} <= {"declined"}
            assert {each.again for each in told.attempts} == {"same"}
            assert attempt.real_cached_tokens == tokens
            assert attempt.reuse is not None
            assert (attempt.reuse.verdict == "as_predicted") == (attempt.predicted_cached_tokens == tokens)
            assert attempt.reuse.verdict != "never_in_log", attempt.reuse
            assert attempt.phases is not None
            assert attempt.ttft_ms is not None
            left_ms = attempt.ttft_ms - attempt.phases.before_ms
            assert attempt.phases.behind_ms + attempt.phases.rest_ms == max(0, left_ms)
            assert explain(unproved, name) == told
