"""Sets of workers as bit masks: right, shared, and bounded."""

from __future__ import annotations

import pytest

from core.ids import WorkerId
from projections.index import worker_sets
from projections.index.worker_sets import WorkerSets

WORKERS = [WorkerId(f"{number:016x}") for number in range(100)]


def test_a_mask_says_its_members_by_id() -> None:
    """Whatever order they joined in, and both ways."""
    it = WorkerSets()
    for worker in reversed(WORKERS):
        it.join(worker)
    some = tuple(WORKERS[10:70:3])
    assert it.members(it.mask(some)) == some
    assert it.members(0) == ()
    assert it.mask(()) == 0


def test_a_bit_that_is_retired_counts_for_nobody_until_it_is_free() -> None:
    """Then the next newcomer gets it; what was remembered of masks is forgotten with each of these."""
    it = WorkerSets()
    first, second = it.join(WORKERS[0]), it.join(WORKERS[1])
    assert it.join(WORKERS[0]) is first
    assert it.members(first | second) == (WORKERS[0], WORKERS[1])
    assert it.retire(WORKERS[0])
    assert not it.retire(WORKERS[0])
    assert (first | second) & it.live == second
    assert it.join(WORKERS[2]) not in {first, second}
    it.free(first)
    assert it.join(WORKERS[3]) == first
    assert it.members(first | second) == (WORKERS[1], WORKERS[3])


def test_equal_masks_are_one_object() -> None:
    """So a table of millions of entries holds few ints."""
    it = WorkerSets()
    wide = 1 << 90
    assert it.shared(wide | 5) is it.shared(5 | wide)


def test_what_is_remembered_of_masks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound everything is forgotten, and answers stay right."""
    monkeypatch.setattr(worker_sets, "MASKS_MAX", 10)
    monkeypatch.setattr(worker_sets, "MEMBERS_MAX", 10)
    it = WorkerSets()
    for worker in WORKERS:
        it.join(worker)
    for number in range(1, 100):
        mask = it.shared(number << 60)
        assert mask == number << 60
        assert len(it.members(mask)) == mask.bit_count()
        assert len(it._masks) <= 10
        assert len(it._members) <= 10
