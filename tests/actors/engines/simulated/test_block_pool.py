"""The simulated engine's cache by itself: which block is taken next, whatever was used again meanwhile."""

from __future__ import annotations

import random

from actors.engines.engine import CacheEmptied, CacheRemoved, CacheStored
from actors.engines.simulated.block_pool import FREE_QUEUE_MAX, NEVER_WRITTEN, BlockPool, PoolBlock

CAPACITY = 12


def stored(pool: BlockPool, *names: int) -> list[PoolBlock]:
    """These were computed, into blocks of their own."""
    blocks = pool.take(len(names))
    pool.store(blocks, names, CacheStored(names, None, (), 4, "device", None, None, indexable=True))
    return blocks


def removed(pool: BlockPool) -> list[int]:
    """The names that were evicted, in order."""
    return [name for change in pool.changes if isinstance(change, CacheRemoved) for name in change.blocks]


def test_least_recently_used_first() -> None:
    """Blocks go in the order in which they were freed last, the tail of a sequence first; those in use stay."""
    pool = BlockPool(CAPACITY)
    first, second, third = (stored(pool, *names) for names in ((1, 2, 3), (4, 5, 6), (7, 8, 9)))
    for blocks in (first, second, third):
        pool.release(blocks)
    again = pool.find([1, 2, 3])
    assert again == first
    pool.share(again)
    pool.share(pool.find([4, 5]))
    pool.release(again)
    assert (pool.free, pool.used) == (10, 2)
    pool.take(3)
    assert removed(pool) == []
    pool.take(7)
    assert removed(pool) == [6, 9, 8, 7, 3, 2, 1]
    assert {name for name, _ in pool.named()} == {4, 5}


def test_the_nameless_first() -> None:
    """A block that nobody can find is taken before anything is evicted."""
    pool = BlockPool(4)
    blocks = [*stored(pool, 1, 2, 3), *pool.take(1)]
    pool.release(blocks)
    assert pool.take(1) == [blocks[3]]
    pool.take(1)
    assert removed(pool) == [3]


def test_blocks_are_made_when_they_are_taken() -> None:
    """A large cache costs nothing at its start. A freed block is taken before one that was never taken, and that before
    any is evicted; memory that was never taken has no content."""
    pool = BlockPool(10**6)
    assert pool._blocks == []
    first = pool.take(2)
    assert [block.id for block in first] == [0, 1]
    pool.release(first)
    assert [block.id for block in pool.take(3)] == [0, 1, 2]
    assert pool.contents([2, 3, 10**6]) == [NEVER_WRITTEN] * 3
    assert (pool.free, pool.used) == (10**6 - 3, 3)

    small = BlockPool(3)
    small.release(stored(small, 1))
    assert [block.id for block in small.take(3)] == [1, 2, 0]
    assert removed(small) == [1]


def test_copies() -> None:
    """Of two blocks with one name the older is found, and the other when that is gone."""
    pool = BlockPool(3)
    older, newer = stored(pool, 7), stored(pool, 7)
    pool.release(older)
    assert pool.find([7]) == older
    pool.take(2)
    assert removed(pool) == [7]
    assert pool.find([7]) == newer
    pool.forget()
    assert isinstance(pool.changes[-1], CacheEmptied)
    assert list(pool.named()) == []
    pool.release(newer)
    assert pool.take(1) == newer
    assert removed(pool) == [7]


def test_a_line_of_bounded_length() -> None:
    """However often blocks are used again without an eviction, the queue is at most FREE_QUEUE_MAX times the cache."""
    pool = BlockPool(CAPACITY)
    pool.release(stored(pool, *range(CAPACITY)))
    longest = 0
    for number in range(20 * CAPACITY):
        found = pool.find([number % 4, (number + 1) % 4])
        pool.share(found)
        pool.release(found)
        longest = max(longest, len(pool._free_queue))
    assert longest == FREE_QUEUE_MAX * CAPACITY
    pool.take(CAPACITY)
    assert removed(pool) == [*range(11, 3, -1), 1, 2, 0, 3]


def test_as_a_list_would_do_it() -> None:
    """The same blocks are evicted as if every block stood in a list by the time when it was freed last."""
    dice = random.Random(5)
    pool, line, used = BlockPool(CAPACITY), list[int](), list[list[PoolBlock]]()
    wanted: list[int] = []
    for number in range(3000):
        names = [dice.randrange(20) * 100 + place for place in range(dice.randrange(1, 4))]
        found = pool.find(names)
        new = [*names[len(found) :]]
        inside = [name for name in names[: len(found)] if name in line]
        if dice.random() < 0.4 or pool.free - len(inside) < len(new):
            if used:
                blocks = used.pop(dice.randrange(len(used)))
                pool.release(blocks)
                line += [block.name for block in reversed(blocks) if block.name is not None and not block.users]
            continue
        pool.share(found)
        line = [name for name in line if name not in inside]
        gone, line = line[: max(0, len(new) - len(pool._nameless))], line[max(0, len(new) - len(pool._nameless)) :]
        wanted += gone
        used.append([*found, *(stored(pool, *new) if new else [])])
        assert pool.used == len({block.id for blocks in used for block in blocks}), number
    assert removed(pool) == wanted
    assert len(wanted) > 300
