"""vLLM's KV events as bytes, read into the cache changes of `actors.engines.engine`. No socket, no vLLM.

1. `extra_keys` says for each block what went into its hash beside the tokens, untagged, but each kind has a form of
   its own: the adapter's name first (text, if `lora_name` is set), `[identifier, offset]` for an image, the cache
   salt (text, only in the first block of a prompt), bytes for prompt embeddings. A block with anything else than
   adapter and salt is not indexable, nor is any after it in the event. Without `extra_keys` this is unknown: not
   indexable.
2. The cache salt stands only in the first block of a prompt. So `CacheStored.cache_salt` is the scope of a chain
   that starts here; where `parent` is set it is None, and the blocks are in their parent's scope. `adapter` is
   given always. Blocks behind a parent that is not indexable are not indexable either: only a mirror can tell.
3. A removal names group and block only, so the kind of each group is learned from what it stored.
4. Events of slower tiers come without `extra_keys`, and some without tokens and kind: what they say of tokens and scope
   is not taken. They name blocks, of which the device's events say the content: before, or afterwards where a block was
   loaded from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from actors.engines.engine import CacheChange, CacheCopied, CacheEmptied, CacheGap, CacheRemoved, CacheStored
from actors.engines.kv_events.kv_batch import BatchForm, BlockName, KvBatch, block_number

INDEXABLE_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Groups in which a block can be used only together with all blocks before it."""
DEVICE = "GPU"
"""vLLM names every device so."""
TIERS = {DEVICE: "device", "CPU": "host", "STORAGE": "disk"}


class _Stored(msgspec.Struct, tag="BlockStored", tag_field="type"):
    block_hashes: list[BlockName]
    parent_block_hash: BlockName | None = None
    token_ids: list[int] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", tag_field="type"):
    block_hashes: list[BlockName]
    medium: str | None = None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", tag_field="type"):
    pass


_FORM = BatchForm(_Stored, _Removed, _Cleared)


class KvEventReader:
    """Reads the batches of one vLLM engine, in order; remembers what kind each of its groups is."""

    def __init__(self) -> None:
        self._kinds: dict[int | None, str | None] = {}

    @property
    def groups(self) -> int:
        """Groups of layers that stored blocks; above 1 the model is a hybrid of several kinds of attention."""
        return len(self._kinds)

    def read(self, payload: bytes) -> KvBatch:
        """The changes of one batch; Corrupt if it is no batch."""
        made_s, events = _FORM.decode(payload)
        return KvBatch(made_s, [change for event in events for change in self._changes(event)])

    def forget(self) -> None:
        """As of `KvBatchReader`: it keeps nothing of blocks."""

    def _changes(self, event: _Stored | _Removed | _Cleared | CacheGap) -> Iterator[CacheChange]:
        match event:
            case _Stored():
                slower = event.medium in TIERS and event.medium != DEVICE
                if event.kv_cache_spec_kind is not None or not slower:
                    self._kinds[event.group_idx] = event.kv_cache_spec_kind
                if slower and event.extra_keys is None and self._kinds.get(event.group_idx) in INDEXABLE_KINDS:
                    yield CacheCopied(tuple(map(block_number, event.block_hashes)), _tier(event.medium))
                else:
                    yield from _stored(event)
            case _Removed():
                names = tuple(block_number(block) for block in event.block_hashes)
                known = self._kinds.get(event.group_idx) in INDEXABLE_KINDS
                yield CacheRemoved(names, _tier(event.medium), known)
            case _Cleared():
                yield CacheEmptied()
            case CacheGap():
                yield event


def _stored(event: _Stored) -> Iterator[CacheStored]:
    """One change, or two where blocks that are only tokens are followed by others."""
    plain, salt = _plain_blocks(event)
    names = tuple(block_number(block) for block in event.block_hashes)
    parent = None if event.parent_block_hash is None else block_number(event.parent_block_hash)
    tokens, size, tier = tuple(event.token_ids), event.block_size, _tier(event.medium)
    if plain:
        yield CacheStored(names[:plain], parent, tokens[: plain * size], size, tier, event.lora_name, salt, True)
        parent = names[plain - 1]
    if rest := names[plain:]:
        yield CacheStored(rest, parent, tokens[plain * size :], size, tier, event.lora_name, None, False)


def _plain_blocks(event: _Stored) -> tuple[int, str | None]:
    """The number of first blocks that are only tokens in a known scope, and the cache salt if it is given."""
    count = len(event.block_hashes)
    if (
        event.kv_cache_spec_kind not in INDEXABLE_KINDS
        or event.medium not in TIERS
        or event.extra_keys is None
        or len(event.extra_keys) != count
        or not event.token_ids
        or len(event.token_ids) != count * event.block_size
    ):
        return 0, None
    salt = None
    for index, keys in enumerate(event.extra_keys):
        rest = list(keys or ())
        if event.lora_name is not None and rest[:1] == [event.lora_name]:
            rest.pop(0)
        if index == 0 and event.parent_block_hash is None and rest and isinstance(rest[-1], str):
            salt = rest.pop()
        if rest:
            return index, salt
    return count, salt


def _tier(medium: str | None) -> str:
    return "unknown" if medium is None else TIERS.get(medium, medium.lower())
