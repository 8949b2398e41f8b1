"""The cache that a server is taken to have: the blocks of prompts and answers, by last use, as many as it holds."""

from __future__ import annotations

import random

from actors.engines.attached.assumed_cache import AssumedCache
from actors.engines.engine import CacheRemoved, CacheStored
from actors.kv_cache.cache_mirror import CacheMirror
from core.prompt import Prompt, hashes_from_bytes, scope_bytes, tokens_to_bytes

SIZE = 4
SEED = 11


def hashes(tokens: list[int], salt: str | None = None) -> list[int]:
    return hashes_from_bytes(Prompt(tokens_to_bytes(tokens), SIZE, SEED, scope_bytes(None, salt)).hashes())


def test_blocks_follow_each_other() -> None:
    """Whole blocks alone are kept, new ones are stored behind those that were there, and salts are scopes."""
    cache = AssumedCache(SIZE, 10)
    one = CacheStored((1, 2), None, (*range(8),), SIZE, "device", None, None, True)
    assert cache.add(tokens_to_bytes(range(11)), None) == [one]
    assert cache.add(tokens_to_bytes(range(13)), None) == [
        CacheStored((3,), 2, (8, 9, 10, 11), SIZE, "device", None, None, True)
    ]
    assert cache.add(tokens_to_bytes(range(12)), None) == []
    assert cache.add(tokens_to_bytes(range(4)), "salt") == [
        CacheStored((4,), None, (0, 1, 2, 3), SIZE, "device", None, "salt", True)
    ]
    assert cache.add(tokens_to_bytes(range(3)), None) == []


def test_the_least_recently_used_goes_first() -> None:
    """The last block of the oldest prompt; a prompt that was used again stays."""
    cache = AssumedCache(SIZE, 4)
    first, second = [*range(8)], [*range(50, 58)]
    cache.add(tokens_to_bytes(first), None)
    cache.add(tokens_to_bytes(second), None)
    cache.add(tokens_to_bytes(first), None)
    assert cache.add(tokens_to_bytes([9, 9, 9, 9]), None)[0] == CacheRemoved((4,), "device")
    assert cache.add(tokens_to_bytes([7, 7, 7, 7]), None)[0] == CacheRemoved((3,), "device")
    assert cache.add(tokens_to_bytes([6, 6, 6, 6]), None)[0] == CacheRemoved((2,), "device")


def test_a_prompt_longer_than_the_cache() -> None:
    """Its first blocks are kept, and everything else is gone."""
    cache = AssumedCache(SIZE, 3)
    cache.add(tokens_to_bytes([9] * 8), None)
    removed, stored = cache.add(tokens_to_bytes(range(40)), None)
    assert removed == CacheRemoved((2, 1), "device")
    assert isinstance(stored, CacheStored)
    assert stored.tokens == tuple(range(12))


def test_the_mirror_agrees() -> None:
    """Over random prompts the mirror of the changes holds what a plain model of the cache holds, within the bound, and
    a block never without those before it."""
    fresh, cache, mirror = random.Random(2), AssumedCache(SIZE, 12), CacheMirror(SIZE, SEED)
    used: list[int] = []
    trunks = [[fresh.randrange(50) for _ in range(fresh.randrange(1, 5) * SIZE)] for _ in range(4)]
    for _ in range(300):
        salt = fresh.choice([None, None, "salt"])
        tokens = fresh.choice(trunks) + [fresh.randrange(50) for _ in range(fresh.randrange(4 * SIZE))]
        for change in cache.add(tokens_to_bytes(tokens), salt):
            mirror.apply(change)
        chain = hashes(tokens, salt)[::-1]
        used = ([each for each in used if each not in chain] + chain)[-12:]
        assert set(mirror.held("device")) == set(used)
    assert (mirror.strangers, mirror.orphans) == (0, 0)
