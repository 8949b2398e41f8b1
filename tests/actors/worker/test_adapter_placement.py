"""Shares of adapters by rendezvous hashing: stable, without a gap, and the same on each worker."""

from __future__ import annotations

import pytest

from actors.membership.registration import Registration
from actors.worker.adapter_placement import Share, holders, share_of

WORKERS = [f"decode-{number}" for number in range(5)]
ADAPTERS = [f"adapter-{number}" for number in range(40)]


def registered(*, can: tuple[str, ...] = ("sql",), serves: tuple[str, ...] = ()) -> Registration:
    return Registration(
        "tiny", "host:1", "simulated", block_size=16, context_max=64, adapter_catalog=can, adapters_placed=serves
    )


@pytest.mark.parametrize("replicas", [1, 2, 9])
def test_a_worker_that_leaves_moves_only_its_own(replicas: int) -> None:
    """All other holders stay, and each adapter has its replicas again, as far as there are workers."""
    for adapter in ADAPTERS:
        before = holders(adapter, WORKERS, replicas)
        assert before == holders(adapter, WORKERS[::-1], replicas)
        assert len(set(before)) == min(replicas, 5)
        for gone in WORKERS:
            after = holders(adapter, [each for each in WORKERS if each != gone], replicas)
            assert set(before) - {gone} <= set(after)
            assert len(after) == min(replicas, 4)


def test_all_workers_have_some() -> None:
    """40 adapters on 5 workers."""
    assert {holders(adapter, WORKERS, 1)[0] for adapter in ADAPTERS} == set(WORKERS)


def test_an_adapter_moves_without_a_gap() -> None:
    """The old holder unloads it when the new one serves it, and not before."""
    new, old = holders("sql", ["a", "b"], 2)
    loading = {new: registered(), old: registered(serves=("sql",))}
    assert share_of(new, loading, (), 1) == Share(("sql",), ())
    assert share_of(old, loading, ("sql",), 1) == Share((), ())
    loaded = {new: registered(serves=("sql",)), old: registered(serves=("sql",))}
    assert share_of(new, loaded, ("sql",), 1) == Share((), ())
    assert share_of(old, loaded, ("sql",), 1) == Share((), ("sql",))


def test_only_workers_that_can_serve_it_count() -> None:
    """Another group's worker of the model has not got the files."""
    first, second = holders("sql", ["a", "b"], 2)
    workers = {first: registered(can=("law",)), second: registered()}
    assert share_of(second, workers, (), 1) == Share(("sql",), ())
    assert share_of(first, workers, ("law",), 1) == Share((), ())
