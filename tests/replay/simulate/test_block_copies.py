"""BlockCopies: of each block the first copy and the last one are told, in few events."""

from __future__ import annotations

from actors.engines.engine import CacheChange, CacheEmptied, CacheRemoved, CacheStored
from actors.kv_cache.cache_events import EVENT_HASHES_MAX
from core.events import BlocksRemoved, BlocksStored, CacheCleared
from core.prompt import hashes_to_bytes
from replay.simulate.simulated_worker import BlockCopies


def stored(*blocks: int, parent: int | None = None) -> CacheChange:
    return CacheStored(blocks, parent, (), 16, "device", None, None, indexable=True)


def removed(*blocks: int) -> CacheChange:
    return CacheRemoved(blocks, "device")


def told_stored(*blocks: int, parent: int | None = None) -> BlocksStored:
    return BlocksStored(hashes=hashes_to_bytes(blocks), parent=parent)


def told_removed(*blocks: int) -> BlocksRemoved:
    return BlocksRemoved(hashes=hashes_to_bytes(blocks))


def test_the_first_copy_is_told_and_the_last() -> None:
    """Whatever lies between is nobody's business."""
    copies = BlockCopies()
    assert copies.apply([stored(1, 2)]) == [told_stored(1, 2)]
    assert copies.apply([stored(1, 2, 3)]) == [told_stored(3, parent=2)]
    assert copies.apply([removed(2), removed(1)]) == []
    assert len(copies) == 3

    assert copies.apply([removed(3), removed(2), removed(1)]) == [told_removed(3, 2, 1)]
    assert len(copies) == 0


def test_runs_have_the_parent_before_them() -> None:
    """Also where a block in the middle was there already."""
    copies = BlockCopies()
    copies.apply([stored(3, parent=2)])

    assert copies.apply([stored(1, 2, 3, 4, parent=9)]) == [told_stored(1, 2, parent=9), told_stored(4, parent=3)]


def test_order_is_kept() -> None:
    """Removals that follow each other are one event; what was stored between them stays between them."""
    copies = BlockCopies()
    copies.apply([stored(1, 2)])

    said = copies.apply([removed(2), removed(1), stored(2), removed(2), stored(5)])

    assert said == [told_removed(2, 1), told_stored(2), told_removed(2), told_stored(5)]


def test_events_are_bounded() -> None:
    """What does not fit into one goes on in the next."""
    copies, many = BlockCopies(), range(1, EVENT_HASHES_MAX + 2)

    assert copies.apply([stored(*many)]) == [
        told_stored(*many[:-1]),
        told_stored(many[-1], parent=many[-2]),
    ]
    assert copies.apply([removed(*many)]) == [told_removed(*many[:-1]), told_removed(many[-1])]


def test_what_is_emptied_is_told_once() -> None:
    """After it, a block's copy is its first one again."""
    copies = BlockCopies()
    copies.apply([stored(1), stored(1)])

    assert copies.apply([CacheEmptied(), stored(1)]) == [
        CacheCleared(reason="the engine emptied it"),
        told_stored(1),
    ]
