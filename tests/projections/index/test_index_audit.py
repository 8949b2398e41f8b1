"""Audits: memory that was changed behind the index's back is found, whatever goes on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.block_spans import single
from core.ids import WorkerId
from projections.index import block_table, index_audit
from projections.index.block_table import KEY_BITS, KEY_MASK
from projections.index.prefix_index import PrefixIndex
from tests.projections.index.index_model import HASHES, Change, Model, changes, documents

SLICE = 4
A, B = (WorkerId(f"{number:016x}") for number in range(2))


@pytest.fixture(autouse=True, scope="module")
def small_slices() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_audit, "AUDIT_ENTRIES_MAX", SLICE)
        patch.setattr(block_table, "SWEEP_ENTRIES_MAX", 3)
        yield


def audited(model: Model, meanwhile: list[Change]) -> list[WorkerId]:
    """The audit's answer, with one change after each slice."""
    found = None
    rest = iter(meanwhile)
    for found in model.index.audit():
        if found is None and (change := next(rest, None)):
            model.apply(change)
    assert found is not None
    return found


@settings(deadline=None, max_examples=100)
@given(st.lists(changes(), max_size=20), st.lists(changes(), max_size=40))
def test_changes_during_an_audit_are_no_difference(before: list[Change], meanwhile: list[Change]) -> None:
    """Whatever happens between the slices, drops and restarts too, nobody is accused."""
    model = Model()
    for change in before:
        model.apply(change)
    assert audited(model, meanwhile) == []


@settings(deadline=None, max_examples=100)
@given(st.lists(changes(), max_size=20), st.lists(changes(), max_size=30), documents, st.integers(0, 39))
def test_a_change_behind_its_back_is_found(
    before: list[Change], meanwhile: list[Change], document: int, place: int
) -> None:
    """A block given to a worker, or taken from it, without a word: that worker is named, and nobody else."""
    model = Model()
    model.index.store(A, "device", single([1, 2, 3]))
    model.index.store(B, "device", single([1, 2, 3]))
    for change in before:
        model.apply(change._replace(slot=2 + change.slot % 3))
    block = HASHES[document][place]
    shard, key = model.index._tables["device"].shards[block >> KEY_BITS], block & KEY_MASK
    found, bit = shard.get(key, 0), model.index._sets.bits[A]
    shard[key] = found ^ bit if isinstance(found, int) else (found[0] ^ bit, found[1])
    assert audited(model, [change._replace(slot=2 + change.slot % 3) for change in meanwhile]) == [A]


@pytest.mark.parametrize("kind", ["store", "remove", "clear", "restart", "nothing"])
def test_a_large_dictionary_that_changes_half_way_is_added_up_again(kind: str) -> None:
    """All blocks stand in one dictionary, which takes many slices; what happens in it meanwhile is no difference."""
    index, blocks = PrefixIndex(), list(range(20 * SLICE))
    heirs = [WorkerId(f"{number:016x}") for number in range(100, 200)]
    index.store(A, "device", single(blocks))
    index.store(B, "device", single(blocks[::2]))
    found = None
    for step, found in enumerate(index.audit()):
        if found is None and step == 7:
            match kind:
                case "store":
                    index.store(B, "device", single(blocks))
                case "remove":
                    index.remove(A, "device", single(blocks[::3]))
                case "clear":
                    index.drop(B)
                case "restart":
                    index.drop(B)
                    for heir in heirs:
                        index.store(heir, "host", single(blocks))
                case _:
                    pass
    assert step > 15 or kind != "nothing"
    assert found == []


def test_a_bit_given_out_again_half_way_is_nobody_elses() -> None:
    """A worker gone before the audit, swept during it: its heir holds nothing of what the slices saw."""
    index, blocks = PrefixIndex(), list(range(20 * SLICE))
    index.store(A, "device", single(blocks))
    index.store(B, "device", single(blocks))
    index.drop(A)
    heir, found = WorkerId("ff" * 8), [A]
    for step, said in enumerate(index.audit()):
        found = said or []
        if step == 3:
            while index.sweeping:
                index.store(B, "host", single([1]))
            index.store(heir, "host", single(blocks))
    assert index._sets.bits[heir] == 1
    assert found == []


def test_a_dictionary_that_a_sweep_exchanged_is_the_one_that_counts() -> None:
    """While the audit pauses before it, it is made anew, and changes."""
    index, first, second = PrefixIndex(), range(SLICE), [1 << KEY_BITS | key for key in range(1000)]
    index.store(A, "host", single([1]))
    index.store(B, "device", single(list(first)))
    index.store(B, "device", single(second))
    index.remove(B, "device", single(second[2:]))
    index.drop(A)
    shard, found = index._tables["device"].shards[1], [A]
    for said in index.audit():
        found = said or []
        while index.sweeping:
            index.store(B, "host", single([2]))
        index.store(B, "device", single(second[:4]))
    assert index._tables["device"].shards[1] is not shard
    assert found == []


def test_an_audit_stops_after_each_slice() -> None:
    """Between two chances for others it adds up at most the bound, or one dictionary."""
    index = PrefixIndex()
    for chain in HASHES:
        index.store(A, "device", single(chain))
    entries = sum(len(shard) for shard in index._tables["device"].shards)
    pauses = sum(found is None for found in index.audit())
    assert pauses >= entries // SLICE - 1


def test_an_audit_that_is_given_up_is_over() -> None:
    """Another can follow, and changes cost nothing more."""
    index = PrefixIndex()
    for chain in HASHES:
        index.store(A, "device", single(chain))
    audit = index.audit()
    next(audit)
    audit.close()  # type: ignore[attr-defined]  # a generator
    assert index._audit is None
    assert list(index.audit())[-1] == []
