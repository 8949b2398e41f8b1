"""Room of removed blocks: by worker and tier, the oldest first."""

from __future__ import annotations

from core.ids import WorkerId
from replay.cache.copy_fold import Copies
from replay.cache.freed_room import FreedRoom
from tests.replay.staged import A, B

HERE, THERE = WorkerId(A), WorkerId(B)
SCOPE = "tiny", 4


def copies(count: int, worker: WorkerId = HERE, tier: str = "device") -> Copies:
    return Copies(worker, SCOPE, tier, list(range(count)))


def test_the_room_of_the_first_goes_first() -> None:
    """To as many blocks as are stored; each once."""
    room: FreedRoom[str] = FreedRoom()
    room.free(copies(3), ["a", "b", "c"])
    assert room.fill(copies(2)) == ["a", "b"]
    room.free(copies(1), ["d"])
    assert room.fill(copies(5)) == ["c", "d"]
    assert room.fill(copies(5)) == []


def test_workers_and_tiers_are_apart() -> None:
    """The end of a cache leaves its room empty."""
    room: FreedRoom[str] = FreedRoom()
    room.free(copies(1), ["a"])
    room.free(copies(1, tier="host"), ["b"])
    room.free(copies(1, THERE), ["c"])
    assert room.fill(copies(9, tier="disk")) == []
    assert room.fill(copies(9, THERE, tier="host")) == []
    assert room.end(HERE) == ["a", "b"]
    assert room.fill(copies(9)) == []
    assert room.end_all() == ["c"]
    assert room.end_all() == []
