"""A recording as a trace: what came, when, with which blocks, and how much it got."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.errors import CallerError, Corrupt
from core.events import RequestFinished, RequestRejected, RequestRouted
from core.events.routing import RequestQueued, RequestTurnedAway
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from replay.recording.recording import Recording
from replay.simulate.options import WORKERS, Options
from replay.simulate.setup import Setup
from replay.simulate.trace_file import BLOCK_SIZE, MOONCAKE, RECORDING, TraceFile
from replay.simulate.workload import Pace
from tests.projections.facts import finished, joined, load, prompt, routed
from tests.replay.simulate.talks import talks, written
from tests.replay.staged import ASKED, HASHES, KV, START_MS, A, B, C, R, S, Stage


@pytest.fixture
def stage() -> Stage:
    it = Stage()
    it.say(KV, A, joined("left"))
    it.say(LOAD, A, load())
    for replica in (R, S):
        it.replica(replica, settings=RoutingSettings())
    return it


def ended(request: str, attempt: int, output_tokens: int) -> RequestFinished:
    return msgspec.structs.replace(finished(request, attempt), output_tokens=output_tokens)


def queued(request: str, now_ms: int) -> RequestQueued:
    return RequestQueued(
        request=request, model="tiny", priority=0, tenant="", prompt_tokens=25, why="full", depth=0, now_ms=now_ms
    )


def chosen(request: str, now_ms: int, model: str = "tiny") -> RequestRouted:
    return routed(request, A, ASKED, model=model, now_ms=START_MS + now_ms)


def again(request: str, told: int, attempt: int = 1) -> RequestRouted:
    """A further attempt, with so much of the answer behind the prompt."""
    it = routed(request, A, ASKED, attempt=attempt)
    return msgspec.structs.replace(it, prompt_tokens=it.prompt_tokens + told)


def file(stage: Stage, tmp_path: Path, model: str = "", first: int = 0) -> TraceFile:
    return TraceFile(stage.archived(tmp_path / "log"), first=first, model=model)


def test_requests_come_as_they_came(stage: Stage, tmp_path: Path) -> None:
    """In the order of their times, whichever replica had them and whatever the order of the log."""
    stage.tell(msgspec.structs.replace(chosen("late", 70), tenant="acme", priority=3), replica=R)
    stage.tell(chosen("early", 20), replica=S)
    stage.tell(ended("late", 0, 7), replica=R)
    stage.tell(ended("early", 0, 9), replica=S)

    early, late = file(stage, tmp_path).read().arrivals(Pace(), 4)

    assert early == ("early", 0, ASKED.tokens, ASKED.hashes(), 9, "", "", 0)
    assert late == ("late", 50_000, ASKED.tokens, ASKED.hashes(), 7, "acme", "", 3)


def test_waiting_and_further_attempts_are_one_request(stage: Stage, tmp_path: Path) -> None:
    """It came when it began to wait; its answer is what all attempts made, and at least one token."""
    stage.tell(queued("one", START_MS), queued("gone", START_MS + 1))
    stage.tell(chosen("two", 5), chosen("one", 30))
    stage.tell(ended("one", 0, 4), again("one", 4), ended("one", 1, 6), ended("two", 0, 0))

    one, two = file(stage, tmp_path).read().asked

    assert (one.id, one.at_us, one.output_tokens) == ("one", 0, 10)
    assert (two.id, two.at_us, two.output_tokens) == ("two", 5000, 1)


def test_what_has_no_end_is_left_out(stage: Stage, tmp_path: Path) -> None:
    """If that is all, there is nothing to simulate."""
    stage.tell(chosen("open", 0))
    with pytest.raises(CallerError, match="nothing to simulate"):
        file(stage, tmp_path).read()

    stage.tell(chosen("done", 1), ended("done", 0, 1))
    assert [each.id for each in file(stage, tmp_path).read().asked] == ["done"]


@pytest.mark.parametrize("outcome", ["worker_lost", "declined"])
def test_the_end_of_an_earlier_attempt_is_no_end(stage: Stage, tmp_path: Path, outcome: str) -> None:
    """The answer would have gone on: the record ends with the next attempt under way. Nor is one declined an end when
    nothing follows."""
    stage.tell(chosen("done", 0), ended("done", 0, 1))
    first = msgspec.structs.replace(ended("open", 0, 2), outcome=outcome)
    stage.tell(chosen("open", 1), first, again("open", 2))
    stage.tell(chosen("last", 2), msgspec.structs.replace(ended("last", 0, 0), outcome="declined"))
    assert [each.id for each in file(stage, tmp_path).read().asked] == ["done"]


def test_an_answer_that_is_made_again_counts_once(stage: Stage, tmp_path: Path) -> None:
    """As one that depends on more than its tokens: the next attempt has the same prompt, and makes those anew that the
    client has."""
    stage.tell(chosen("one", 1), ended("one", 0, 4), again("one", 0), ended("one", 1, 9))
    stage.tell(chosen("two", 2), ended("two", 0, 4), again("two", 4), ended("two", 1, 0))
    assert [each.output_tokens for each in file(stage, tmp_path).read().asked] == [9, 4]


def test_the_first_wait_counts(stage: Stage, tmp_path: Path) -> None:
    """For a place, and then for its worker; in its own replica, and until it was refused."""
    rejected = RequestRejected(
        request="one", attempt=0, model="tiny", reason="overloaded", status=503, cursor={}, excluded={},
        settings_revision=0, now_ms=START_MS + 2,
    )  # fmt: skip
    away = RequestTurnedAway(request="one", model="tiny", reason="queue_wait", status=503, waited_ms=2)
    stage.tell(queued("one", START_MS + 5), replica=S)
    for end in (rejected, away):
        stage.tell(queued("one", START_MS), end)
    stage.tell(
        queued("one", START_MS + 10), queued("one", START_MS + 20_000), chosen("one", 20_500), ended("one", 0, 1)
    )
    stage.tell(chosen("zero", 0), ended("zero", 0, 1))
    assert [(each.id, each.at_us) for each in file(stage, tmp_path).read().asked] == [("zero", 0), ("one", 10_000)]


def test_two_replicas_may_have_one_name(stage: Stage, tmp_path: Path) -> None:
    """Each hears the end of its own; and a message that comes twice counts once."""
    stage.tell(chosen("same", 1), replica=R)
    stage.tell(chosen("same", 2), replica=S)
    stage.tell(ended("same", 0, 3), replica=S)
    payload = stage.sealed(ROUTING, R, ended("same", 0, 2), chosen("once", 3), ended("once", 0, 1))
    stage.store(ROUTING, R, payload)
    stage.store(ROUTING, R, payload)
    assert [(each.id, each.output_tokens) for each in file(stage, tmp_path).read().asked] == [
        ("same", 2),
        ("same-use-2", 3),
        ("once", 1),
    ]


def test_sessions_stay_together(stage: Stage, tmp_path: Path) -> None:
    """Requests of one session have one key in the simulation, those of another a different one, those of none none."""
    for number, session in enumerate(("s1", "s2", "", "s1")):
        stage.tell(msgspec.structs.replace(chosen(f"r{number}", number), session=session), ended(f"r{number}", 0, 1))
    log = file(stage, tmp_path)
    assert [each.session for each in log.read().asked] == ["s1", "s2", "", "s1"]
    engine = SimulatedSettings(block_size=4)
    Setup(log, Pace(), Options(workers=1, engine=engine)).run(lambda _done, _of: None, archive=tmp_path / "again")
    with Recording.open(tmp_path / "again") as again_:
        events = [event for _, message in again_.messages(ROUTING) for event in message.events]
    one, two, none, same = (event.session for event in events if isinstance(event, RequestRouted))
    assert (none, one) == ("", same)
    assert len({one, two, none}) == 3


def test_ids_that_are_used_again_stay_apart(stage: Stage, tmp_path: Path) -> None:
    """Each use is a request of its own."""
    for at_ms in (0, 1):
        stage.tell(chosen("same", at_ms))
        stage.tell(ended("same", 0, at_ms + 1))

    assert [(each.id, each.output_tokens) for each in file(stage, tmp_path).read().asked] == [
        ("same", 1),
        ("same-use-2", 2),
    ]


def test_larger_blocks_are_every_nth(stage: Stage, tmp_path: Path) -> None:
    """Smaller ones cannot be had; without a wish they stay as recorded."""
    stage.tell(chosen("one", 0), ended("one", 0, 1))
    wanted = file(stage, tmp_path)
    assert wanted.shape() == (4, 1)

    trace = wanted.read()
    (doubled,) = trace.arrivals(Pace(), 8)
    (whole,) = trace.arrivals(Pace(), 28)

    assert doubled.hashes == b"".join(hash_.to_bytes(8, "little") for hash_ in HASHES[1::2])
    assert whole.hashes == b""
    with pytest.raises(CallerError, match="give --block-size 4, or a multiple of it"):
        list(trace.arrivals(Pace(), 6))


def test_as_many_workers_as_there_were_at_a_time(stage: Stage, tmp_path: Path) -> None:
    """A worker that took the place of another one is no further one; refusals went to none."""
    for number, worker in enumerate((A, B, A, B, C, B)):
        stage.tell(routed(f"r{number}", worker, prompt(1, block_size=4)), ended(f"r{number}", 0, 1))
    assert file(stage, tmp_path).shape() == (4, 2)


def test_several_models(stage: Stage, tmp_path: Path) -> None:
    """One must be named, and be there."""
    stage.tell(chosen("a", 0), chosen("b", 1, "large"), ended("a", 0, 1), ended("b", 0, 1))

    with pytest.raises(CallerError, match=r"several models \(large, tiny\): name one with --model"):
        file(stage, tmp_path).read()
    assert [each.id for each in file(stage, tmp_path, "large").read().asked] == ["b"]
    with pytest.raises(CallerError, match="no request of the model 'huge'"):
        file(stage, tmp_path, "huge").read()


def test_several_block_sizes(stage: Stage, tmp_path: Path) -> None:
    """No fleet has both."""
    stage.tell(chosen("a", 0), routed("b", A, prompt(1, block_size=8)), ended("a", 0, 1), ended("b", 0, 1))

    with pytest.raises(CallerError, match=r"several sizes \(4, 8\)"):
        list(file(stage, tmp_path).read().arrivals(Pace(), 8))


def test_only_the_first(stage: Stage, tmp_path: Path) -> None:
    """By time."""
    stage.tell(chosen("b", 1), chosen("a", 0), ended("a", 0, 1), ended("b", 0, 1))

    assert [each.id for each in file(stage, tmp_path, first=1).read().asked] == ["a"]


def test_files_tell_their_format(stage: Stage, tmp_path: Path) -> None:
    """By what they hold; what is said counts more."""
    stage.tell(chosen("a", 0), ended("a", 0, 1))
    log, trace = file(stage, tmp_path), TraceFile(written(tmp_path / "trace", talks(count=2, turns=1)))

    assert [len(each.read().asked) for each in (log, trace)] == [1, 2]
    assert trace.shape() == (BLOCK_SIZE, WORKERS)
    assert len(log._replace(format=RECORDING).read().asked) == 1
    with pytest.raises(CallerError, match="no request in Mooncake's format"):
        log._replace(format=MOONCAKE).read()
    with pytest.raises(Corrupt):
        trace._replace(format=RECORDING).read()
    with pytest.raises(CallerError, match="cannot be read"):
        TraceFile(tmp_path / "none").read()
