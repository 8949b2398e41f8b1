"""A recording in hand: moments, the index of requests, names, states; and without the key the same folds."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from core.errors import CallerError
from core.events import RequestFinished, RequestPrefilled, RequestRouted
from core.ids import RequestId
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.folds.frozen_state import freeze
from replay.recording import messages
from replay.recording.messages import ChainHeads
from replay.recording.moment import AtCursor, AtRequest, AtSequence, AtTime
from replay.recording.recording import PROGRESS_EVERY, SEARCH_FIRST, Recording, last_messages
from replay.recording.request_history import PLACES, RequestHistory
from tests.projections.facts import finished, joined, load, prefilled, prompt, replica_restated, stored
from tests.replay.staged import KV, START_MS, A, B, R, S, Stage


@pytest.fixture
def stage() -> Stage:
    """Some forty requests of two replicas, many under way at a time."""
    it, random = Stage(), Random(3)
    it.say(KV, A, joined("a"))
    it.say(KV, B, joined("b"))
    it.replica(settings=RoutingSettings(policy="kv", prefill_weight_m=1500))
    it.replica(S, "r2")
    under_way = list[tuple[str, bool]]()
    for number in range(40):
        it.clock.advance(10)
        replica = R if random.random() < 0.5 else S
        it.route(f"r{number}", prompt(*range(random.randrange(1, 9))), replica=replica, lag={KV: random.randrange(3)})
        it.say(KV, random.choice([A, B]), stored(number))
        it.say(LOAD, A, load(number % 4))
        under_way.append((f"r{number}", replica == R))
        if len(under_way) > 5:
            name, ours = under_way.pop(random.randrange(5))
            it.tell(prefilled(name, cached=4), finished(name), replica=R if ours else S)
    return it


def test_moments(stage: Stage, tmp_path: Path) -> None:
    """Each kind has its place in every stream; a cursor is what stands before it."""
    with stage.recording(tmp_path / "log") as recording:
        r3 = recording.routed(RequestId("r3"))
        assert recording.position(ROUTING, AtRequest(RequestId("r3"))) == r3
        assert recording.position(ROUTING, AtSequence(ROUTING, r3)) == r3
        time_ms = START_MS + 40
        assert recording.position(KV, AtTime(time_ms)) == recording.position(KV, AtRequest(RequestId("r3")))
        assert recording.cursor(AtSequence(ROUTING, r3))[ROUTING] == r3 - 1
        at = AtCursor(((KV, r3), (ROUTING, r3)))
        assert recording.cursor(at) == {KV: r3, LOAD: 0, ROUTING: r3}
        with pytest.raises(CallerError, match="no request that this recording knows"):
            recording.routed(RequestId("r99"))


def test_the_history_has_what_the_events_say(stage: Stage, tmp_path: Path) -> None:
    """Of every attempt where its events stand, what they say, and what was under way beside it."""
    with stage.recording(tmp_path / "log") as recording:
        history, replicas = recording.requests, recording.replicas
        assert history is recording.requests
        assert len(history) == 40
        events = [(record.seq, event) for record, message in recording.messages(ROUTING) for event in message.events]
        for tried in history.between():
            own = [(seq, event) for seq, event in events if getattr(event, "request", "") == tried.request]
            (routed_seq, routed), *later = own
            assert isinstance(routed, RequestRouted)
            assert (tried.seq, tried.worker, tried.prompt_tokens) == (routed_seq, routed.worker, routed.prompt_tokens)
            assert (tried.blocks, tried.prefill_tokens) == (routed.blocks, routed.prefill_tokens)
            ends = [(seq, event) for seq, event in later if isinstance(event, RequestFinished)]
            firsts = [(seq, event) for seq, event in later if isinstance(event, RequestPrefilled)]
            assert (tried.ended_seq, tried.outcome) == ((ends[0][0], "stop") if ends else (0, ""))
            assert (tried.prefilled_seq, tried.cached_tokens) == ((firsts[0][0], 4) if firsts else (0, -1))
            state = recording.state_at({ROUTING: tried.seq - 1})
            busy = state.routing.in_flight_load.busy.get(tried.worker)  # type: ignore[call-overload]
            assert len(history.before(tried)) == (busy.requests if busy else 0)
            part = state.routing.replicas[tried.replica]  # type: ignore[index]
            flying = {(each.request, each.attempt) for each in history.own_under_way(tried.replica, tried.at)}
            assert flying == set(part.in_flight)
            assert history.newest(tried.replica, tried.seq) == tried
        assert replicas.settings(R, 1, 10) == RoutingSettings(policy="kv", prefill_weight_m=1500)
        assert (replicas.settings(R, 2, 10), replicas.settings(S, 0, 10)) == (None, RoutingSettings())
        assert recording.names.workers == {A: "a", B: "b"}
        assert recording.names.replicas == {R: "r1", S: "r2"}
        assert recording.names.streams == {A: KV, B: KV}


def test_what_a_restatement_does_not_name_is_not_under_way(stage: Stage, tmp_path: Path) -> None:
    """As in the fold: a replica that lost track says what it has, and the rest is void."""
    for number in range(3):
        stage.route(f"more{number}", prompt(number))
    seat = stage.seat(R)
    flying = list(seat.state.routing.replicas[R].in_flight.items())
    assert len(flying) > 2
    stage.tell(replica_restated(flying[:1]))
    stage.route("later", prompt(99))
    with stage.recording(tmp_path / "log") as recording:
        (later,) = recording.requests.attempts("later")
        mine = recording.requests.own_under_way(R, later.at)
        assert [(each.request, each.attempt) for each in mine] == [flying[0][0]]
        theirs = [each for each in recording.requests.before(later) if each.replica == R]
        assert {each.request for each in theirs} <= {flying[0][0][0]}


def test_states_from_keyframes_are_those_from_the_start(stage: Stage, tmp_path: Path) -> None:
    """A fold goes on from the newest state before it, says how far it has to go, and comes to the same."""
    with stage.recording(tmp_path / "log") as recording, Recording.open(tmp_path / "log") as unproved:
        middle = recording.cursor(AtRequest(RequestId("r20")))
        told = list[tuple[int, int]]()
        whole = recording.state_at(recording.end, lambda done, of: told.append((done, of)))
        assert told[-1] == (sum(recording.end.values()),) * 2
        assert recording.to_fold(recording.end) == sum(recording.end.values())
        recording.keep(middle, freeze(recording.state_at(middle)))
        assert recording.to_fold(recording.end) == sum(recording.end.values()) - sum(middle.values())
        assert recording.to_fold(middle) == 0
        assert recording.state_at(recording.end).digest == whole.digest
        assert unproved.state_at(unproved.end).digest == whole.digest
        before = {**recording.end, ROUTING: middle[ROUTING] - 1}
        assert recording.to_fold(before) == sum(before.values())  # the keyframe is behind it in one stream
        assert PROGRESS_EVERY > 0


def test_messages_that_the_log_no_longer_had_are_not_to_be_folded(stage: Stage, tmp_path: Path) -> None:
    """A log that retention cut far back is as quick to fold as the messages that it kept."""
    cut = {KV: 30, LOAD: 20, ROUTING: 10}
    with stage.recording(tmp_path / "log", cut) as recording:
        kept = sum(len(list(recording.frames(stream))) for stream in recording.streams)
        assert recording.to_fold(recording.end) == kept == sum(recording.end.values()) - sum(cut.values())


def test_without_the_key_digests_are_as_the_messages_name_them(stage: Stage, tmp_path: Path) -> None:
    """In whatever order they are asked for."""
    with stage.recording(tmp_path / "log") as recording, Recording.open(tmp_path / "log") as unproved:
        assert recording.proved
        assert not unproved.proved
        for start, end in ((30, 50), (1, 20), (60, None), (10, 70), (1, None)):
            for stream in recording.streams:
                proved = [frame.head for frame in recording.frames(stream, start, end)]
                assert [frame.head for frame in unproved.frames(stream, start, end)] == proved
                assert proved or start > recording.end[stream]


def test_digests_that_messages_name_are_not_kept_for_ever(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a few messages behind the reader are, for who reads beside; who jumps about gets the same."""
    monkeypatch.setattr(messages, "HEADS_KEPT", 8)
    with stage.recording(tmp_path / "log") as recording, Recording.open(tmp_path / "log") as unproved:
        proved = [frame.head for frame in recording.frames(ROUTING)]
        heads = ChainHeads(unproved.archive, ROUTING)
        frames, most = list(recording.frames(ROUTING)), 0
        for at in [*range(len(frames)), *range(0, len(frames), 7), *range(len(frames) - 1, -1, -5)]:
            frame = frames[at]
            assert frame.message is not None
            assert heads.of(frame.seq, frame.message.source, frame.message.n) == proved[at]
            most = max(most, len(heads._known))
        spoke, furthest = dict[str, int](), 0
        for frame in frames:
            furthest = max(furthest, frame.seq - spoke.get(frame.owner, frame.seq))
            spoke[frame.owner] = frame.seq
        assert most <= 8 + 1 + furthest < len(frames) / 2


def test_the_last_words_of_each(stage: Stage, tmp_path: Path) -> None:
    """The newest message of each source at or before a place, however far back it lies."""
    for number in range(3 * SEARCH_FIRST):
        stage.say(LOAD, B, load(number % 2))
    with stage.recording(tmp_path / "log") as recording:
        end = recording.end[LOAD]
        found = last_messages(recording.archive, LOAD, end, {A, B, "cc" * 8})
        assert {who: word.seq for who, word in found.items()} == {A: end - 3 * SEARCH_FIRST, B: end}
        assert last_messages(recording.archive, LOAD, 0, {A}) == {}
        assert last_messages(recording.archive, LOAD, 5, {A, B})[A].seq == 5


def test_an_event_that_cannot_be_read_hides_no_other(stage: Stage) -> None:
    """It keeps its place in the count; what is no message at all is passed over."""
    wrong, good = stage.decided("wrong", prompt(1)), stage.decided("good", prompt(2))
    payload = stage.sealed(ROUTING, R, wrong, good).replace(b"\xa7attempt\x00", b"\xa7attempt\xa10", 1)
    payloads = [b"\xc1 nothing", b"{broken", b"\x82\xa6source\xa1\xff\xa6events\x90", payload]
    history = RequestHistory()
    others = history.read([(seq, START_MS, R, payload) for seq, payload in enumerate(payloads, 1)])
    assert [other.event.type for other in others] == [""]
    assert [(tried.request, tried.seq, tried.at) for tried in history.between()] == [("good", 4, 4 * PLACES + 1)]
