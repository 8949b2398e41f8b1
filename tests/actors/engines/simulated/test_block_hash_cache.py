"""Contents and names of a prompt's blocks: as if each block were hashed by itself, and hashed once."""

from __future__ import annotations

import random

import pytest

from actors.engines.simulated import block_hash_cache
from actors.engines.simulated.block_hash_cache import (
    PART_BLOCKS,
    BlockHashCache,
    BlockHashes,
    content_behind,
    content_root,
    name_turn,
)
from core.prompt import tokens_to_bytes

SIZE = 4
PART_TOKENS = PART_BLOCKS * SIZE
ROOT, TURN = content_root(900, SIZE, None), name_turn(None)


def block_by_block(raw: bytes, root: int, turn: int) -> BlockHashes:
    """The same without parts."""
    step, contents = SIZE * 4, list[int]()
    for start in range(0, len(raw) - step + 1, step):
        root = content_behind(root, raw[start : start + step])
        contents.append(root)
    return BlockHashes(contents, [content ^ turn for content in contents])


def prompts(dice: random.Random, count: int) -> list[bytes]:
    """Prompts that continue others, or begin as they do."""
    found = [[dice.randrange(900) for _ in range(dice.randrange(3 * PART_TOKENS))]]
    for _ in range(count - 1):
        before = dice.choice(found)
        shared = before[: dice.randrange(len(before) + 1)] if dice.random() < 0.3 else before
        found.append(shared + [dice.randrange(900) for _ in range(dice.randrange(2 * PART_TOKENS))])
    return [tokens_to_bytes(tokens) for tokens in found]


@pytest.mark.parametrize("parts_max", [1, 4, 1000])
def test_as_block_by_block(parts_max: int) -> None:
    """Whatever is kept, and however little of it, of all salts and adapters."""
    dice = random.Random(parts_max)
    hash_cache = BlockHashCache(SIZE, parts_max * PART_BLOCKS)
    kinds = [(content_root(900, SIZE, adapter), name_turn(salt)) for adapter in (None, "a") for salt in (None, "s")]
    for raw in prompts(dice, 40):
        root, turn = dice.choice(kinds)
        assert hash_cache.of(raw, root, turn) == block_by_block(raw, root, turn)
        assert len(hash_cache) <= parts_max


def test_a_block_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a turn that continues another one only the new parts are hashed, and the blocks behind the last part."""
    hashed = 0

    def counted(parent: int, raw: bytes | memoryview) -> int:
        nonlocal hashed
        hashed += 1
        return content_behind(parent, raw)

    monkeypatch.setattr(block_hash_cache, "content_behind", counted)
    hash_cache, dice = BlockHashCache(SIZE, 100 * PART_BLOCKS), random.Random(3)
    tokens = [dice.randrange(900) for _ in range(20 * PART_TOKENS + 5 * SIZE)]
    hash_cache.of(tokens_to_bytes(tokens), ROOT, TURN)
    assert hashed == 20 * PART_BLOCKS + 5
    hashed = 0
    tokens += [dice.randrange(900) for _ in range(PART_TOKENS)]
    hash_cache.of(tokens_to_bytes(tokens), ROOT, TURN)
    assert hashed == PART_BLOCKS + 5


def test_the_least_recently_used_go_first() -> None:
    """A prompt that is asked for again and again keeps its parts while others come and go."""
    hash_cache, dice = BlockHashCache(SIZE, 4 * PART_BLOCKS), random.Random(4)
    often, *others = (tokens_to_bytes(dice.randrange(900) for _ in range(2 * PART_TOKENS)) for _ in range(9))
    kept = hash_cache.of(often, ROOT, TURN).contents[0]
    for other in others:
        hash_cache.of(other, ROOT, TURN)
        assert hash_cache.of(often, ROOT, TURN).contents[0] is kept
    assert len(hash_cache) == 4


def test_a_salt_turns_names_and_not_contents() -> None:
    """An adapter changes both."""
    raw, hash_cache = tokens_to_bytes(range(2 * PART_TOKENS)), BlockHashCache(SIZE, 1000)
    plain, salted = hash_cache.of(raw, ROOT, TURN), hash_cache.of(raw, ROOT, name_turn("s"))
    adapted = hash_cache.of(raw, content_root(900, SIZE, "a"), TURN)
    assert plain.contents == salted.contents
    assert not set(plain.contents) & set(adapted.contents)
    names = [*plain.names, *salted.names, *adapted.names, *plain.contents]
    assert len(set(names)) == 4 * 2 * PART_BLOCKS
