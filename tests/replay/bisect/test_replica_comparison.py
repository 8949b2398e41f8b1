"""`bisect` between replicas, and between an index and a cache: where they part, and what was missed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.cli.renderer import render
from api.cli.replay.text.bisect_text import replicas_text
from core.block_spans import single
from core.errors import CallerError
from core.events import CacheCleared, DivergenceFound, Event, ReplicaLeft
from core.ids import ReplicaId, WorkerId
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from replay.bisect.cache_comparison import BlockEvent, _ReportedCache, compare_cache
from replay.bisect.replica_comparison import compare_replicas
from replay.verify.verify import verify
from tests.projections.facts import joined, load, prompt, removed, restated, stored
from tests.replay.staged import KV, A, B, R, S, Stage

ASKED = prompt(1, 2, 3)
T, U = ReplicaId("cc" * 8), ReplicaId("bb" * 8)
"""Later lives of the two."""


@pytest.fixture
def stage() -> Stage:
    it = Stage()
    for name, worker in (("left", A), ("right", B)):
        it.say(KV, worker, joined(name))
        it.say(LOAD, worker, load())
    it.replica(R, "r1", RoutingSettings(policy="kv"))
    it.replica(S, "r2", RoutingSettings(policy="kv"))
    return it


def both_report(stage: Stage) -> None:
    reports = [(replica, stage.report(replica)) for replica in (R, S)]
    for replica, each in reports:
        stage.tell(each, replica=replica)


def test_replicas_that_agree(stage: Stage, tmp_path: Path) -> None:
    """At every place that both told."""
    stage.route("one", ASKED)
    both_report(stage)
    stage.route("two", ASKED, replica=S)
    both_report(stage)
    with stage.recording(tmp_path / "log") as recording:
        found = compare_replicas(recording, "r1", "r2")
        assert not found.part
        assert {stream.stream: stream.compared for stream in found.streams} == {KV: 1, LOAD: 1, ROUTING: 2}
        assert found.replicas == {R: "r1", S: "r2"}
        with pytest.raises(CallerError, match="one and the same"):
            compare_replicas(recording, "r1", "r1")
        with pytest.raises(CallerError, match="no replica 'r3'"):
            compare_replicas(recording, "r1", "r3")


def test_of_several_lives_the_latest_are_judged(stage: Stage, tmp_path: Path) -> None:
    """However many places the earlier ones have in common; whether those part is told, and they can be named."""
    for turn in range(3):
        stage.route(f"early{turn}", ASKED)
        both_report(stage)
    stage.say(KV, A, stored(77))
    stage.seat(S).state.index.store(WorkerId(A), "device", single([5]))
    stage.say(KV, A, stored(78))
    both_report(stage)
    for replica in (R, S):
        stage.tell(ReplicaLeft(reason="restart"), replica=replica)
    stage.say(KV, A, stored(79))
    stage.say(LOAD, A, load())
    stage.replica(T, "r1", RoutingSettings(policy="kv"))
    stage.replica(U, "r2", RoutingSettings(policy="kv"))
    stage.route("late", ASKED, replica=T)
    with stage.recording(tmp_path / "silent") as recording:
        silent = compare_replicas(recording, "r1", "r2")
    for replica, each in [(replica, stage.report(replica)) for replica in (T, U)]:
        stage.tell(each, replica=replica)
    with stage.recording(tmp_path / "log") as recording:
        found = compare_replicas(recording, "r1", "r2")
        early = compare_replicas(recording, R, S)
    assert silent.replicas == found.replicas == {T: "r1", U: "r2"}
    assert (sum(stream.compared for stream in silent.streams), silent.others) == (0, found.others)
    assert not any(stream.first_different for stream in found.streams)
    (other,) = found.others
    assert (other.replicas, other.part) == ({R: "r1", S: "r2"}, True)
    assert other.compared == sum(stream.compared for stream in early.streams)
    assert found.part
    assert (early.part, early.others) == (True, [])
    page = render(replicas_text(found))
    assert page.startswith(f"r1 ({T}) and r2 ({U}) agree at all")
    assert f"r1 ({R}) and r2 ({S}) part, of {other.compared} places" in page
    assert f"--replicas {R} {S}" in page


def test_a_replica_whose_index_was_changed_behind_its_back(stage: Stage, tmp_path: Path) -> None:
    """The last equal place and the first different one, the messages between, who was wrong, what was found of it, and
    its first decision that does not follow."""
    both_report(stage)
    equal = len(stage.frames[KV])
    stage.route("fine", ASKED)
    touched = stage.say(KV, A, stored(77))
    stage.seat(R)
    stage.seat(S).state.index.store(WorkerId(A), "device", single([ASKED.key(depth) for depth in (1, 2, 3)]))
    stage.say(KV, A, stored(78))
    both_report(stage)
    stage.route("astray", ASKED, replica=S)
    told = DivergenceFound(
        stream=KV, epoch=1, seq=touched + 1, digest=1, refolded=2, other=R, verdict="replaced"
    )  # fmt: skip
    stage.tell(told, replica=S)
    with stage.recording(tmp_path / "log") as recording:
        found = compare_replicas(recording, "r1", "r2")
        assert found.part
        (kv,) = (stream for stream in found.streams if stream.stream == KV)
        assert (kv.last_equal, kv.first_different, kv.wrong, kv.history) == (equal, touched + 1, [S], False)
        assert [message.seq for message in kv.between] == [touched, touched + 1]
        assert kv.digests["log"] == kv.digests[R] != kv.digests[S]
        assert [(each.replica, each.other, each.verdict) for each in found.divergences] == [(S, R, "replaced")]
        assert found.departure is not None
        assert (found.departure.difference.request, found.departure.difference.term) == ("astray", "overlap")
        whole = verify(recording)
        assert (whole.different, whole.folds.different, whole.holds) == (1, 1, False)


# --- an index and a cache ----------------------------------------------------------------------------------------


def cached(stage: Stage, path: Path, *said: Event | Callable[[], None]) -> object:
    for each in said:
        if callable(each):
            each()
        else:
            stage.say(KV, A, each)
    with stage.recording(path / "log") as recording:
        (found,) = compare_cache(recording, "left")
    return found


def lose(stage: Stage) -> Callable[[], None]:
    """The worker's next message never reaches the log."""

    def lost() -> None:
        n, _ = stage._chains[KV, A]
        stage._chains[KV, A] = n + 1, bytes(16)

    return lost


def test_a_cache_that_is_what_was_said(stage: Stage, tmp_path: Path) -> None:
    """Nothing was missed, whatever was said before."""
    found = cached(
        stage, tmp_path, stored(1, 2, 3), removed(3), restated(0, 2, 1), restated(1, 2, 2),
        stored(9, tier="host"), CacheCleared(), stored(4), restated(0, 1, 4),
    )  # fmt: skip
    assert [each.blocks for each in found.restatements] == [2, 1]  # type: ignore[attr-defined]
    assert found.first is None  # type: ignore[attr-defined]


def test_a_removal_that_was_missed(stage: Stage, tmp_path: Path) -> None:
    """The index kept what the cache had lost; the message that said so is missing in the chain."""
    found = cached(stage, tmp_path, stored(1, 2), stored(3), lose(stage), joined("left"), restated(0, 1, 1, 2))
    first = found.first  # type: ignore[attr-defined]
    assert first is not None
    assert not first.index_known
    (stray,) = first.missed_removals
    assert (stray.tier, stray.blocks, stray.hashes, stray.said.n) == ("device", 1, [f"{3:016x}"], 2)
    assert first.missed_stores == []
    assert [gap.partition(" before")[0] for gap in first.gaps] == ["message 3"]


def test_a_store_that_was_missed(stage: Stage, tmp_path: Path) -> None:
    """The cache holds what nobody said: once because it had said that it was gone, once because nothing was said."""
    found = cached(stage, tmp_path, stored(1, 2), removed(2), restated(0, 1, 1, 2, 8))
    first = found.first  # type: ignore[attr-defined]
    assert first is not None
    assert first.index_known
    assert first.gaps == []
    assert first.missed_removals == []
    assert sorted((stray.hashes[0], stray.said and stray.said.event) for stray in first.missed_stores) == [
        (f"{2:016x}", "BlocksRemoved"),
        (f"{8:016x}", None),
    ]


class Counted(dict[int, BlockEvent]):
    """Knows how often somebody looked something up."""

    looks = 0

    def get(self, *key: Any) -> Any:
        """As ever."""
        self.looks += 1
        return super().get(*key)


def test_many_messages_are_gone_through_once() -> None:
    """However many of them said something of blocks that the cache lacks."""
    told = Counted({block: BlockEvent(seq=block, n=block, event="BlocksStored", time_ms=0) for block in range(500)})
    held: dict[str, dict[int, BlockEvent]] = {"device": told}
    strays = list(_ReportedCache(WorkerId(A), KV)._strays("device", held, set(), held))
    assert [stray.said and stray.said.seq for stray in strays] == list(range(500))
    assert told.looks == 500


def test_a_worker_that_nobody_knows(stage: Stage, tmp_path: Path) -> None:
    """Is an error of the caller."""
    with stage.recording(tmp_path / "log") as recording, pytest.raises(CallerError, match="no worker 'middle'"):
        compare_cache(recording, "middle")
