"""Targets of a planner and answers to them, as each hand follows and gives them."""

from __future__ import annotations

import pytest

from actors.planning.fleet_target import (
    ACKNOWLEDGED_KEY,
    ERROR_CHARS_MAX,
    TARGET_KEY,
    FleetAcknowledgement,
    FleetTarget,
    TargetFollower,
)
from core.errors import PeerError, Unavailable
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from streams.registry import Change


def change(revision: int, fence: int, decision: int, workers: int, group: str = "decode") -> Change:
    return Change(TARGET_KEY, FleetTarget(fence, decision, group, workers).encode(), revision)


def test_the_newest_target_is_followed() -> None:
    """By fence, then by decision; those of other groups and other keys are none of ours."""
    follower = TargetFollower("decode", 3)
    taken = [
        follower.take(each)
        for each in (
            change(1, 5, 10, 2),
            change(2, 4, 11, 3),
            change(3, 5, 9, 3),
            change(4, 6, 1, 4),
            change(5, 7, 12, 9, "other"),
            Change("planner/settings", b"{}", 6),
            Change(TARGET_KEY, b"[]", 7),
        )
    ]

    assert taken == [True, False, False, True, False, False, False]
    assert follower.target == FleetTarget(6, 1, "decode", 4)
    assert follower.goal == 3


def test_a_fleet_ends_at_zero_where_it_may() -> None:
    """Else one worker stays, whatever the registry says."""
    zero, one = TargetFollower("decode", 3, 0), TargetFollower("decode", 3)
    assert zero.take(change(1, 5, 10, 0))
    assert one.take(change(1, 5, 10, 0))
    assert (zero.goal, one.goal) == (0, 1)


def test_a_registry_that_lost_its_data_counts_anew() -> None:
    """It is seen by the key that is gone; or, where the next target was there before its watcher, by the revision."""
    follower = TargetFollower("decode", 9)
    assert follower.take(change(100, 90, 7, 3))
    assert follower.take(change(9, 5, 8, 2))
    assert follower.target == FleetTarget(5, 8, "decode", 2)

    assert not follower.take(Change(TARGET_KEY, None, 10))
    assert follower.target is None
    assert follower.take(change(11, 1, 1, 1))


@pytest.mark.parametrize(
    "value",
    [b"", b"3", b"{}", b'{"fence": 1, "decision": 2, "workers": -1}', b'{"fence": 1, "decision": 2, "workers": 8193}'],
)
def test_an_answer_that_is_none_is_refused(value: bytes) -> None:
    """In one sentence."""
    with pytest.raises(PeerError, match="no acknowledgement of a target"):
        FleetAcknowledgement.parse(value)


def test_keys_of_later_versions_are_left_out() -> None:
    """An orchestrator may write what it likes beside; a long error is cut."""
    found = FleetAcknowledgement.parse(
        b'{"fence":1,"decision":2,"workers":3,"zone":"a","error":"' + b"e" * 9000 + b'"}'
    )
    assert found == FleetAcknowledgement(1, 2, 3, "e" * ERROR_CHARS_MAX)


async def test_an_answer_is_given_once() -> None:
    """And again after a registry was away, and when the answer is another one."""
    store, follower = MemoryRegistryStore(), TargetFollower("decode", 9)
    registry = MemoryRegistry(store)
    await follower.acknowledge(registry, 1)
    assert store.find(ACKNOWLEDGED_KEY) is None, "without a target there is nothing to answer"
    follower.take(change(1, 5, 10, 2))
    registry.away = True
    with pytest.raises(Unavailable):
        await follower.acknowledge(registry, 2)
    registry.away = False

    revisions = []
    for workers, error in ((1, "no room"), (1, "no room"), (2, ""), (2, "")):
        await follower.acknowledge(registry, workers, error)
        revisions.append(store.revision)

    assert revisions == [1, 1, 2, 2]
    found = store.find(ACKNOWLEDGED_KEY)
    assert found is not None
    assert found.value == b'{"fence":5,"decision":10,"workers":2,"error":""}'
