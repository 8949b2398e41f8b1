"""The state at a moment: what a replica that stopped there holds, by digest and by what it decides."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from actors.consistency.digest_checkpoints import DigestCheckpoints
from core.errors import CallerError
from core.event_json import hash_text
from core.events import LocalChanged, ReplicaReported, WorkerLost
from core.ids import LOST_SUFFIX, RequestId, StreamName, from_column
from core.prompt import hashes_from_bytes, tokens_to_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from replay.recording.moment import AtCursor, AtRequest, AtSequence, AtTime, parse_moment
from replay.recording.recording import Recording
from replay.state_at.route_prompt import PromptQuery, models, route_prompt
from replay.state_at.state_at import state_at, summary_at
from replay.state_at.state_diff import state_diff
from tests.actors.world import KEY as WORLD_KEY
from tests.actors.world import NAMESPACE
from tests.projections.facts import SEED, finished, joined, load, prefilled, prompt, removed, stored
from tests.replay.recorded import conversations, pair, recorded
from tests.replay.staged import ASKED, HASHES, KV, START_MS, A, B, R, S, Stage


@pytest.fixture
def stage() -> Stage:
    """Two workers, two replicas, a request under way of each."""
    it = Stage()
    it.say(KV, A, joined("a"), stored(*HASHES[:4]), stored(*HASHES[:2], tier="host"))
    it.say(KV, B, joined("b"))
    it.replica(settings=RoutingSettings(policy="kv", prefill_weight_m=2000))
    it.replica(S, "r2")
    it.clock.advance(1000)
    it.say(LOAD, A, load(3, draining=False))
    it.clock.advance(500)
    it.route("theirs", ASKED, replica=S)
    it.clock.advance(500)
    it.route("mine", prompt(50, 51))
    it.tell(prefilled("mine"))
    return it


async def test_at_any_cursor_it_is_what_a_replica_there_holds(tmp_path: Path) -> None:
    """Every digest that two live replicas said of a cursor is that of the state there, and so is the one that they hold
    when all is quiet; and what each believed at its last decision adds up."""
    async with pair() as (it, routers):
        milestones = [DigestCheckpoints(router.state) for router in routers]

        async def reports() -> None:
            """As each of them says every few seconds, only more often."""
            for _ in range(12):
                await asyncio.sleep(0.005)
                for router, passed in zip(routers, milestones, strict=True):
                    if (report := passed.report()) is not None:
                        router.publisher.publish(report)

        await asyncio.gather(conversations(routers, 6, 6), reports())
        for router in routers:
            await it.settled(router)
        recording = await recorded(it.log, NAMESPACE, WORLD_KEY, tmp_path / "log")
        live = [
            ({stream: position.seq for stream, position in router.state.cursor.items()}, hash_text(router.state.digest))
            for router in routers
        ]
    with recording:
        for cursor, digest in live:
            assert summary_at(recording, cursor).digest == digest
        told = [
            (stream, seq, digest)
            for _, message in recording.messages(ROUTING)
            for event in message.events
            if isinstance(event, ReplicaReported)
            for stream, points in event.points.items()
            for seq, digest in zip(points.seqs, hashes_from_bytes(points.digests), strict=True)
        ]
        assert len(told) > 10
        assert {stream for stream, _, _ in told} == {KV, LOAD, ROUTING}
        for stream, seq, reported in told:
            assert summary_at(recording, {StreamName(stream): seq}).digests[stream] == hash_text(reported)
        first = [each for each in recording.requests.between() if not each.attempt]
        for tried in first[::5]:  # a worker may decline it then
            held = summary_at(recording, AtRequest(RequestId(tried.request)), tried.replica)
            assert held.seat is not None
            assert (held.seat.request, held.seat.attempt, held.seat.seq) == (tried.request, tried.attempt, tried.seq)
            for worker in held.workers:
                flying = [each for each in held.in_flight if each.worker == worker.worker]
                assert len(flying) == worker.active_requests
                assert sum(each.blocks for each in flying) == worker.active_blocks
                assert sum(each.prefill_tokens for each in flying) == worker.prefill_tokens


def test_the_logs_own_state(stage: Stage, tmp_path: Path) -> None:
    """Workers with blocks per tier, load and its age, what is under way; replicas; settings."""
    stage.tell(LocalChanged(worker=B, reasons=("suspected",)))
    stage.clock.advance(250)
    with stage.recording(tmp_path / "log") as recording:
        held = summary_at(recording, AtTime(stage.clock.now_ms))
        assert held.digest == summary_at(recording, recording.end).digest
    a, b = held.workers
    assert (a.name, a.blocks, a.capacity_blocks, a.cache_known) == ("a", {"device": 4, "host": 2}, 1000, True)
    assert (a.active_requests, a.active_blocks, a.prefill_tokens) == (1, 7, 25 - 16)
    assert a.load is not None
    assert (a.load.waiting, a.load.draining, a.load.age_ms) == (3, False, 1250)
    assert (b.blocks, b.load, b.local) == ({}, None, {R: ["suspected"]})
    assert (b.active_requests, b.prefill_tokens) == (1, 0)
    assert [(each.name, each.in_flight, each.decisions) for each in held.replicas] == [
        ("r2", 1, {"tiny": 1}),
        ("r1", 1, {"tiny": 1}),
    ]
    assert held.settings_differ
    assert held.settings["prefill_weight"] == 2.0
    assert [(each.request, each.replica, each.worker) for each in held.in_flight] == [("theirs", S, A), ("mine", R, B)]
    assert held.seat is None
    assert msgspec.json.decode(msgspec.json.encode(held))["workers"][0]["blocks"] == {"device": 4, "host": 2}


def test_what_a_replica_believed(stage: Stage, tmp_path: Path) -> None:
    """At its newest decision by then: behind the log where it was, ahead of it by its own word."""
    stage.say(KV, B, stored(*HASHES))
    stage.tell(LocalChanged(worker=B, reasons=("failed",)))
    stage.clock.advance(100)
    stage.route("next", prompt(60), lag={KV: 1, ROUTING: 3})
    seq = len(stage.frames[ROUTING])
    stage.clock.advance(100)
    stage.route("theirs-2", prompt(61), replica=S)
    stage.clock.advance(100)
    with stage.recording(tmp_path / "log") as recording:
        held = summary_at(recording, AtTime(stage.clock.now_ms), "r1")
        assert held == summary_at(recording, AtTime(stage.clock.now_ms), R)
        assert held == summary_at(recording, AtSequence(ROUTING, seq), "r1")  # type: ignore[arg-type]
        assert held == summary_at(recording, AtRequest(RequestId("next")), "r1")
        earlier = summary_at(recording, AtSequence(ROUTING, seq - 1), "r1")  # type: ignore[arg-type]
        log = summary_at(recording, AtSequence(ROUTING, seq))  # type: ignore[arg-type]
    assert held.seat is not None
    assert (held.seat.name, held.seat.request, held.seat.seq) == ("r1", "next", seq)
    assert held.seat.ahead_events == 2  # it had not read back its own request, nor that its first token came
    a, b = held.workers
    assert (b.blocks, b.local) == ({}, {R: ["failed"]})
    assert (a.active_requests, b.active_requests, b.prefill_tokens) == (1, 1, 0)
    assert [each.request for each in held.in_flight] == ["theirs", "mine"]
    assert held.settings["prefill_weight"] == 2.0
    assert (log.workers[1].blocks, log.seat) == ({"device": 6}, None)
    assert earlier.seat is not None
    assert earlier.seat.request == "mine"


def test_a_replica_that_decided_nothing_by_then(stage: Stage, tmp_path: Path) -> None:
    """It is shown with the log's state; one that was not there is refused, with when it was."""
    with stage.recording(tmp_path / "log") as recording:
        held = summary_at(recording, AtTime(START_MS + 1200), "r1")
        assert held.seat is not None
        assert (held.seat.request, held.seat.name, held.seat.revision) == (None, "r1", 1)
        assert held.digest == summary_at(recording, AtTime(START_MS + 1200)).digest
        with pytest.raises(CallerError, match="was not there at that moment"):
            summary_at(recording, AtSequence(ROUTING, 1), "r2")  # type: ignore[arg-type]
        with pytest.raises(CallerError, match="no replica 'r3' in this log; there are r1, r2"):
            summary_at(recording, AtTime(START_MS), "r3")


def test_the_difference_of_two_moments(stage: Stage, tmp_path: Path) -> None:
    """Who came and went, blocks gained and lost, settings, requests; nothing between a moment and itself."""
    before = AtSequence(ROUTING, len(stage.frames[ROUTING]) + 1)  # type: ignore[arg-type]
    stage.clock.advance(1000)
    marker = stage.tell(finished("mine"))
    stage.say(KV, A, removed(*HASHES[2:4]), stored(7, 8, 9))
    stage.say(KV, B + LOST_SUFFIX, WorkerLost(by=R, reason="gone"), about=B)
    stage.say(KV, "cc" * 8, joined("c"))
    stage.settings(RoutingSettings(policy="kv", prefill_weight_m=3000))
    stage.route("new", prompt(70, 71))
    with stage.recording(tmp_path / "log") as recording:
        assert marker == before.seq
        one, other = state_at(recording, before), state_at(recording, recording.end)
        found = state_diff(one, other)
        assert state_diff(one, state_at(recording, before)).nothing
    assert not found.nothing
    assert [each.name for each in found.workers_joined] == ["c"]
    assert [each.name for each in found.workers_gone] == ["b"]
    changes = {change.name: change for change in found.workers}
    assert (changes["a"].blocks_gained, changes["a"].blocks_lost) == ({"device": 3}, {"device": 2})
    assert changes["b"].active_requests == (1, 0)
    assert [(each.name, each.settings) for each in found.replicas if each.settings] == [
        ("r1", {"prefill_weight": (2.0, 3.0)})
    ]
    assert ([each.request for each in found.started], [each.request for each in found.ended]) == (["new"], ["mine"])
    assert found.messages == {KV: 3, LOAD: 0, ROUTING: 3}


def test_a_prompt_asked_of_a_moment(stage: Stage, tmp_path: Path) -> None:
    """Asked with the tokens of a request that was routed, at its own moment, the answer is what was decided."""
    tokens = tokens_to_bytes([block for block in (1, 2, 3, 4, 5, 6) for _ in range(4)] + [0])
    event = stage.route("r", ASKED)
    with stage.recording(tmp_path / "log") as recording:
        here = state_at(recording, AtRequest(RequestId("r")), "r1")
        asked = route_prompt(here, PromptQuery(tokens, "tiny"), SEED)
        assert (asked.worker, asked.predicted_cached_tokens) == (event.worker, event.predicted_cached_tokens)
        costs = dict(zip(from_column(event.candidates), event.columns["cost"], strict=True))
        assert {row.worker: round(row.cost * 1000) for row in asked.candidates} == costs
        by_log = route_prompt(state_at(recording, AtRequest(RequestId("r"))), PromptQuery(tokens, "tiny"), SEED)
        assert by_log.settings["prefill_weight"] == 2.0
        other_scope = route_prompt(here, PromptQuery(tokens, "tiny", bytes(16)), SEED)
        assert max(row.overlap for row in other_scope.candidates) == 0 < max(row.overlap for row in asked.candidates)
        assert models(here) == ["tiny"]
        with pytest.raises(CallerError, match="no worker served the model 'huge' then; served were tiny"):
            route_prompt(here, PromptQuery(tokens, "huge"), SEED)


def test_cursors_are_moments(stage: Stage, tmp_path: Path) -> None:
    """As they are typed; a stream that is not named stands before its first message, none reaches beyond the end."""
    moment = parse_moment("kv:2, load:1,routing:3", 0)
    assert moment == AtCursor(((KV, 2), (LOAD, 1), (ROUTING, 3)))  # type: ignore[arg-type]
    assert parse_moment("kv_0:2", 0) == AtSequence(KV, 2)  # type: ignore[arg-type]
    with stage.recording(tmp_path / "log") as recording:
        assert recording.cursor(moment) == {KV: 2, LOAD: 1, ROUTING: 3}
        assert summary_at(recording, moment).cursor == {KV: 2, LOAD: 1, ROUTING: 3}
        assert summary_at(recording, {KV: 1}).cursor == {KV: 1, LOAD: 0, ROUTING: 0}
        assert summary_at(recording, {KV: 99}).cursor[KV] == 2
        assert [worker.name for worker in summary_at(recording, {KV: 1}).workers] == ["a"]
        with Recording.open(tmp_path / "log") as unproved:
            assert summary_at(unproved, moment) == summary_at(recording, moment)
