"""SGLang's KV events, read into the cache changes of `actors.engines.engine`. No socket, no SGLang.

1. Every event has tokens, and names each block by a hash of its prefix. Events have the salt of the request, and with
   `"format": "dynamo"` the adapter's name, and then names of blocks differ by both. Older servers send neither, as
   arrays; the names of blocks with a salt are then those of plain ones.
2. Blocks of a request with an `extra_key` look like plain ones in every form. So none is sent from here, and a server
   that others send one is claimed to hold plain prefixes which it does not.
3. With some kinds of speculative decoding the cache's key is a pair of tokens for each place: such blocks are not
   indexable. Nor are those of an adapter that is known by its number alone.
4. Tiers: GPU, CPU_PINNED, DISK. A block in EXTERNAL belongs to no worker and is not indexable.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from actors.engines.engine import CacheChange, CacheEmptied, CacheGap, CacheRemoved, CacheStored
from actors.engines.kv_events.kv_batch import BatchForm, BlockName, KvBatch, block_number

SGLANG_TIERS = {"GPU": "device", "CPU_PINNED": "host", "DISK": "disk", None: "device"}
"""By the medium; the first versions name none, and have the device alone."""


class _Stored(msgspec.Struct, tag="BlockStored", tag_field="type"):
    block_hashes: list[BlockName]
    parent_block_hash: BlockName | None = None
    token_ids: list[int | tuple[int, int]] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", tag_field="type"):
    block_hashes: list[BlockName]
    medium: str | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", tag_field="type"):
    pass


_FORM = BatchForm(_Stored, _Removed, _Cleared)


class SglangEventReader:
    """Reads the batches of one SGLang engine, in order."""

    groups = 1
    """Its events do not tell groups of layers apart."""

    def read(self, payload: bytes) -> KvBatch:
        """The changes of one batch; Corrupt if it is no batch."""
        made_s, events = _FORM.decode(payload)
        return KvBatch(made_s, [change for event in events for change in _changes(event)])

    def forget(self) -> None:
        """As of `KvBatchReader`: it keeps nothing of blocks."""


def _changes(event: _Stored | _Removed | _Cleared | CacheGap) -> Iterator[CacheChange]:
    match event:
        case _Stored():
            yield _stored(event)
        case _Removed():
            names = tuple(map(block_number, event.block_hashes))
            yield CacheRemoved(names, _tier(event.medium), event.medium in SGLANG_TIERS)
        case _Cleared():
            yield CacheEmptied()
        case CacheGap():
            yield event


def _stored(event: _Stored) -> CacheStored:
    names = tuple(map(block_number, event.block_hashes))
    tokens = [token if isinstance(token, int) else token[0] for token in event.token_ids]
    pairs = tokens != event.token_ids
    parent = None if event.parent_block_hash is None else block_number(event.parent_block_hash)
    plain = (
        len(event.token_ids) == len(names) * event.block_size > 0
        and event.medium in SGLANG_TIERS
        and not pairs
        and (event.lora_id is None or event.lora_name is not None)
    )
    return CacheStored(
        blocks=names,
        parent=parent,
        tokens=tuple(tokens),
        block_size=event.block_size,
        tier=_tier(event.medium),
        adapter=event.lora_name,
        cache_salt=event.cache_salt if parent is None else None,
        indexable=plain,
    )


def _tier(medium: str | None) -> str:
    return SGLANG_TIERS.get(medium) or str(medium).lower()
