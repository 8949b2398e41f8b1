"""TensorRT-LLM's cache events, in the forms of its serializer and of its own tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.engines.engine import CacheChange, CacheCopied, CacheGap, CacheRemoved, CacheStored
from actors.engines.kv_events.trtllm_event_reader import TrtllmEventReader
from actors.kv_cache.cache_mirror import CacheMirror
from core.errors import Corrupt, EngineDead
from core.prompt import Prompt, hashes_from_bytes, tokens_to_bytes
from tests.fixtures.fake_trtllm_server import event, moved, removed, stored

SIZE = 4
SEED = 7
A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]


def read(reader: TrtllmEventReader, *events: dict[str, Any]) -> list[CacheChange]:
    return reader.read(json.dumps(events).encode()).changes


def hashes(*blocks: list[int]) -> set[int]:
    tokens = [token for block in blocks for token in block]
    return set(hashes_from_bytes(Prompt(tokens_to_bytes(tokens), SIZE, SEED).hashes()))


def test_the_life_of_blocks() -> None:
    """A chain is stored, goes to the host and back, and is removed from where it is; partial blocks are left out."""
    reader, mirror = TrtllmEventReader(SIZE), CacheMirror(SIZE, SEED)

    def apply(*events: dict[str, Any]) -> None:
        for change in read(reader, *events):
            mirror.apply(change)

    apply(
        event(0, {"type": "created", "num_blocks_per_cache_level": [8, 4]}),
        event(1, stored(None, (2**64 - 1, A), (12, B), (13, [9]))),
    )
    assert set(mirror.held("device")) == hashes(A, B)
    apply(event(2, stored(12, (14, C))), event(3, moved(14, 0, 1)))
    assert (set(mirror.held("device")), set(mirror.held("host"))) == (hashes(A, B), hashes(A, B, C) - hashes(A, B))
    apply(event(4, moved(14, 1, 0)), event(5, moved(12, 0, 1)))
    assert set(mirror.held("device")) == hashes(A), "the last one is out of reach on the device"
    apply(event(6, removed(13, 14, 12)))
    assert (set(mirror.held("device")), set(mirror.held("host"))) == (hashes(A), set())
    apply(event(7, removed(2**64 - 1)))
    assert (mirror.reported, mirror.strangers, reader.groups) == (0, 0, 1)


def test_a_block_is_held_once() -> None:
    """A block that is told again, with others behind it, has no second copy; blocks of two tiers are two changes."""
    reader = TrtllmEventReader(SIZE)
    read(reader, event(0, stored(None, (1, A))))
    again = stored(None, (1, A), (2, B))
    (change,) = read(reader, event(1, again))
    assert isinstance(change, CacheStored)
    assert (change.blocks, change.parent, change.tokens) == ((2,), 1, tuple(B))
    split = stored(2, (3, A), (4, B))
    split["blocks"][1]["cache_level"] = 1
    first, second = read(reader, event(2, split))
    assert isinstance(first, CacheStored)
    assert isinstance(second, CacheStored)
    assert (first.blocks, first.tier, second.blocks, second.tier, second.parent) == ((3,), "device", (4,), "host", 3)
    assert read(reader, event(3, removed(3, 4, 99))) == [CacheRemoved((3,), "device"), CacheRemoved((4,), "host")]


def test_moves() -> None:
    """A change of priority alone moves nothing, nor does one of a block that is not held."""
    reader = TrtllmEventReader(SIZE)
    read(reader, event(0, stored(None, (1, A))))
    priority = {"type": "updated", "block_hash": 1, "cache_level": None, "priority": {"new_value": 50, "old_value": 35}}
    assert read(reader, event(1, priority), event(2, moved(9, 0, 1)), event(3, moved(1, 1, 0))) == []
    assert read(reader, event(4, moved(1, 0, 2))) == [CacheCopied((1,), "disk"), CacheRemoved((1,), "device")]


def test_names_of_newer_servers_are_texts() -> None:
    """Digests in hexadecimal are names as numbers are."""
    reader = TrtllmEventReader(SIZE)
    first, second = read(reader, event(0, stored(None, ("ab" * 32, A))), event(1, stored("ab" * 32, ("cd" * 32, B))))
    assert isinstance(first, CacheStored)
    assert isinstance(second, CacheStored)
    assert (second.parent,) == first.blocks != second.blocks


@pytest.mark.parametrize(
    "fields",
    [
        {"mm_keys": [{"type": "mm_key", "hash": "ab", "start_offset": 0}]},
        {"tokens": [{"type": "unique_token", "token_id": 1, "token_extra_id": 5}] * SIZE},
    ],
)
def test_blocks_of_more_than_tokens(fields: dict[str, Any]) -> None:
    """Images and extra ids of tokens are not indexable."""
    (change,) = read(TrtllmEventReader(SIZE), event(0, stored(None, (1, A), **fields)))
    assert isinstance(change, CacheStored)
    assert not change.indexable


@pytest.mark.parametrize("field", ["window_size", "layer_group_id", "attention_dp_rank"])
def test_groups(field: str) -> None:
    """Windows, groups of layers and ranks are counted."""
    reader = TrtllmEventReader(SIZE)
    read(reader, event(0, stored(None, (1, A)), **{field: 1}), event(1, stored(None, (2, A)), **{field: 2}))
    assert reader.groups == 2


def test_gaps() -> None:
    """A number that is missing, and an event of an unknown kind, leave nothing known; later blocks are learned."""
    reader = TrtllmEventReader(SIZE)
    read(reader, event(5, stored(None, (1, A))))
    gap, change = read(reader, event(7, stored(None, (1, A))))
    assert (gap, isinstance(change, CacheStored)) == (
        CacheGap("cache events 6 to 6 were missed: dropped, or read by others"),
        True,
    )
    (unknown,) = read(reader, event(8, {"type": "melted"}))
    assert isinstance(unknown, CacheGap)
    assert read(reader, event(9, removed(1))) == [], "it is not known any more"
    with pytest.raises(EngineDead, match="started again"):
        read(reader, event(2, removed(1)))
    for wrong in (b"{", b'{"error": "none"}', b"[{}]"):
        with pytest.raises(Corrupt):
            reader.read(wrong)
