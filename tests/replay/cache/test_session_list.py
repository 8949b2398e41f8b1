"""Sessions of a log: by hand, and a simulated one against a count of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from core.errors import CallerError
from replay.cache.session_list import list_sessions
from replay.explain.request_list import list_requests, turn_of
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY as SIMULATED_KEY
from replay.simulate.simulation import simulate
from tests.projections.facts import finished, prefilled, prompt, removed, stored
from tests.replay.cache.naive_count import NaiveCount
from tests.replay.cache.test_cache_losses import Scene, sums_of
from tests.replay.simulate.families import ENGINE, families
from tests.replay.staged import HASHES, A, B


def ask(
    it: Scene, name: str, session: str, parent: str = "", ttft_ms: int = 10, blocks: tuple[int, ...] = (9,)
) -> None:
    """One request of a session, with that wait for its first token."""
    event = it.stage.decided(name, prompt(*blocks))
    it.stage.clock.advance(5)
    it.stage.tell(msgspec.structs.replace(event, worker=A, session=session, session_parent=parent))
    it.stage.clock.advance(5)
    token = msgspec.structs.replace(prefilled(name, 0, 0), ttft_ms=ttft_ms)
    it.stage.tell(token, msgspec.structs.replace(finished(name, 0), ttft_ms=ttft_ms))
    it.stage.clock.advance(5)


def test_sub_agents_stand_under_their_parents(tmp_path: Path) -> None:
    """Also where the parent is the faster one, and where two name each other."""
    it = Scene()
    ask(it, "r1", "calm", ttft_ms=50)
    ask(it, "r2", "parent", ttft_ms=20)
    ask(it, "r3", "child", "parent", ttft_ms=90)
    ask(it, "r4", "grandchild", "child", ttft_ms=5)
    ask(it, "r5", "child", "parent", ttft_ms=30)
    ask(it, "r6", "left", "right", ttft_ms=3)
    ask(it, "r7", "right", "left", ttft_ms=2)
    ask(it, "r8", "orphan", "elsewhere", ttft_ms=1)
    with it.stage.recording(tmp_path / "log") as recording:
        found = list_sessions(recording)
    names = [each.name for each in found.sessions]
    assert names[:4] == ["parent", "child", "grandchild", "calm"]
    assert sorted(names[4:6]) == ["left", "right"]
    assert names[6:] == ["orphan"]
    assert found.depths == [0, 1, 2, 0, 0, 1, 0]
    child = found.sessions[1]
    assert (child.turns, child.first_tokens_ms, child.median_ms) == (2, [30, 90], 90)
    assert child.slowest is not None
    assert (child.slowest.request, child.slowest.turn, child.slowest.waited_ms) == ("r3", 1, 90)


def test_a_session_has_its_losses(tmp_path: Path) -> None:
    """By cause, with the turn that lost most; a range keeps the numbers of the turns."""
    it = Scene()
    it.say(A, stored(*HASHES))
    it.ask(A, session="hurt", cached=24)
    it.say(A, removed(*HASHES[3:]))
    worst = it.ask(A, session="hurt", cached=12)
    it.ask(B, session="calm", cached=8)
    with it.stage.recording(tmp_path / "log") as recording:
        found = list_sessions(recording, by_loss=True)
        late = list_sessions(recording, recording.requests.attempts(worst)[0].seq, by_loss=True)
    by_name = {each.name: each for each in found.sessions}
    assert by_name["hurt"].sums.evicted == 12
    for each in (by_name["hurt"], next(each for each in late.sessions if each.name == "hurt")):
        assert each.worst is not None
        assert (each.worst.request, each.worst.lost, each.worst_turn) == (worst, 12, 2)
    assert [each.turns for each in late.sessions if each.name == "hurt"] == [1]


def test_an_unnamed_talk_is_explained_by_its_name(tmp_path: Path) -> None:
    """By the id of its first request; another talk's turns are not among them."""
    it = Scene()
    ask(it, "r1", "", blocks=(1, 2))
    ask(it, "r2", "", blocks=(1, 5))
    ask(it, "r3", "", blocks=(1, 2, 3))
    ask(it, "r4", "named", blocks=(1, 2, 3, 4))
    with it.stage.recording(tmp_path / "log") as recording:
        found = {each.name: (each.turns, each.named) for each in list_sessions(recording).sessions}
        assert found == {"r1": (2, False), "r2": (1, False), "named": (1, True)}
        assert turn_of(recording, "r1", None, 2).request == "r3"
        assert [each.request for each in list_requests(recording, session="r1").requests] == ["r1", "r3"]
        assert turn_of(recording, "named", None, 1).request == "r4"
        for session, turn in (("r1", 3), ("r3", 1), ("nothing", 1)):
            with pytest.raises(CallerError):
                turn_of(recording, session, None, turn)


def test_a_simulated_log_is_the_naive_count(tmp_path: Path) -> None:
    """Losses by the naive count of blocks; turns and waits by the events themselves."""
    options = Options(
        workers=4, engine=replace(ENGINE, capacity_blocks=40), replicas=2, lag_ms=300, failures_per_hour=400, seed=4
    )
    arrivals = [
        each._replace(session=f"session-{number % 7}", tenant=f"t{number % 7 % 2}")
        for number, each in enumerate(families(240, every_us=150_000, output_tokens=100))
    ]
    simulate(options, arrivals, archive=tmp_path / "log")
    with Recording.open(tmp_path / "log", SIMULATED_KEY) as recording:
        found, naive = list_sessions(recording, by_loss=True), NaiveCount(recording).by_session()
        only = list_sessions(recording, tenants=["t1"])
        tries = list(recording.requests.between())
    assert {each.name: sums_of(each.sums) for each in found.sessions} == naive
    losses = [each.sums.lost for each in found.sessions]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 0
    assert any(each.pauses_ms for each in found.sessions)
    for each in found.sessions:
        own = [tried for tried in tries if tried.session == each.name]
        firsts = [tried.ttft_ms for tried in own if tried.ttft_ms >= 0 > tried.pause_ms]
        pauses = [tried.pause_ms for tried in own if tried.pause_ms >= 0]
        assert each.turns == len({tried.request for tried in own})
        assert (each.first_tokens_ms, each.pauses_ms) == (sorted(firsts), pauses)
        assert each.waited_ms == max(firsts + pauses)
    assert {each.tenant for each in only.sessions} == {"t1"}
    assert only.total.lost == sum(each.sums.lost for each in found.sessions if each.tenant == "t1")
