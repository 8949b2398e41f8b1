"""Dumps: the index in a few groups, equal for equal contents, and the same index again from them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.block_spans import single
from core.ids import WorkerId
from core.prompt import hashes_from_bytes, hashes_to_bytes
from core.settings import TIERS
from projections.index import index_dump
from projections.index.index_dump import HolderGroup
from projections.index.prefix_index import PrefixIndex
from tests.projections.facts import stored_chain
from tests.projections.index.index_model import HASHES, Change, Model, changes

A, B, C = (WorkerId(f"{number:016x}") for number in range(3))


def loaded(dump: dict[str, list[HolderGroup]]) -> PrefixIndex:
    index = PrefixIndex()
    for tier, groups in dump.items():
        for holding in groups:
            index.load(tier, holding)
    return index


@settings(deadline=None, max_examples=100)
@given(st.lists(changes(), max_size=30), st.lists(changes(), max_size=10))
def test_an_index_comes_back_whole(before: list[Change], after: list[Change]) -> None:
    """Blocks, counts and digests are those of the index that was dumped, and it goes on from there."""
    model = Model()
    for change in before:
        model.apply(change)
    model.index = loaded(model.index.contents())
    model.check_sets()
    for change in after:
        model.apply(change)
        model.check_lookup(change.document, 80)
    model.check_sets()


def test_a_dump_says_who_holds_what() -> None:
    """By tier, a group per set of holders; ids and hashes ascend."""
    index = PrefixIndex()
    index.store(B, "device", single([3, 1, 2, 2**64 - 1]))
    index.store(A, "device", single([2, 3]))
    index.store(C, "host", single([1]))
    dump = index.contents()
    assert {tier: [(g.workers, hashes_from_bytes(g.hashes)) for g in groups] for tier, groups in dump.items()} == {
        "device": [((A, B), [2, 3]), ((B,), [1, 2**64 - 1])],
        "host": [((C,), [1])],
    }
    assert list(dump) == [tier for tier in TIERS if tier in dump]
    index.drop(C)
    index.drop(B)
    assert [(g.workers, hashes_from_bytes(g.hashes)) for g in index.contents()["device"]] == [((A,), [2, 3])]
    assert list(index.contents()) == ["device"]


def test_a_dump_can_stop_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most the bound is gone through between two pauses, or one dictionary; the answer is the same."""
    index = PrefixIndex()
    for chain in HASHES:
        index.store(A, "device", single(chain))
    monkeypatch.setattr(index_dump, "DUMP_ENTRIES_MAX", 5)
    entries, pauses, step = sum(map(len, index._tables["device"].shards)), 0, index.dumping()
    try:
        while True:
            next(step)
            pauses += 1
    except StopIteration as end:
        assert end.value == index.contents()
    assert pauses >= entries // 5 - 1


def test_a_worker_that_is_gone_is_in_no_run() -> None:
    """Its bit stands in the table until a sweep; the dump names the other holder alone."""
    index = PrefixIndex()
    for worker in (A, B):
        index.store(worker, "device", stored_chain(*range(100, 104)).blocks)
    index.drop(A)
    assert index.sweeping
    assert index.dump() == {"device": [HolderGroup((B,), hashes_to_bytes(range(100, 104)), bytes([4]))]}
