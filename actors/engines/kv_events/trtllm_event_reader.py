"""TensorRT-LLM's KV events as `/kv_cache_events` of `trtllm-serve` gives them: a JSON array of events.

1. Events are numbered. A number that is missing is a gap: the server dropped the event, or another reader took it. A
   number that returns is of another start of the server.
2. A block is stored once, and removed from all tiers at once; between these it moves from tier to tier. So this reader
   keeps the tier of each block that is held.
3. A prompt's last block may be partial. It can be reused as far as it goes, but no hit is predicted from it.
4. Neither the adapter nor the salt of a request is in its events: blocks under both look like plain ones. Blocks with
   images and the like have keys, or extra ids beside their tokens, and are not indexable.
5. Groups of layers are told apart by their window, and in newer servers by a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec

from actors.engines.engine import CacheChange, CacheCopied, CacheGap, CacheRemoved, CacheStored
from actors.engines.kv_events.kv_batch import KvBatch
from core.errors import Corrupt, EngineDead

LEVELS = ("device", "host", "disk")
"""Its cache levels, and our tiers."""
BEGAN_ANEW = "the server's cache events begin anew: it was started again"

_Name = int | str


class _Token(msgspec.Struct):
    token_id: int
    token_extra_id: int | None = None


class _Block(msgspec.Struct):
    block_hash: _Name
    tokens: list[_Token]
    cache_level: int = 0
    mm_keys: list[Any] | None = None


class _Created(msgspec.Struct, tag="created", tag_field="type"):
    pass


class _Stored(msgspec.Struct, tag="stored", tag_field="type"):
    blocks: list[_Block]
    parent_hash: _Name | None = None


class _Removed(msgspec.Struct, tag="removed", tag_field="type"):
    block_hashes: list[_Name]


class _Diff(msgspec.Struct):
    new_value: int


class _Updated(msgspec.Struct, tag="updated", tag_field="type"):
    block_hash: _Name
    cache_level: _Diff | None = None


class _Event(msgspec.Struct):
    event_id: int
    data: msgspec.Raw
    window_size: int | None = None
    layer_group_id: int | None = None
    attention_dp_rank: int | None = None


_events = msgspec.json.Decoder(list[_Event])
_data = msgspec.json.Decoder(_Created | _Stored | _Removed | _Updated)


class TrtllmEventReader:
    """Reads the events of one start of a server, in order; some 100 bytes for each block that it holds."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._next: int | None = None
        """The number of the next event; None before the first."""
        self._levels: dict[int, int] = {}
        """Of each block that is held, its tier; partial blocks are left out."""
        self._groups: set[tuple[int | None, int | None, int]] = set()

    def __repr__(self) -> str:
        return f"<TrtllmEventReader {len(self._levels)} blocks after {self._next} events>"

    @property
    def groups(self) -> int:
        """Groups of layers that stored blocks; above 1 the model mixes kinds of attention, or the server has several
        data-parallel ranks, which its API cannot choose."""
        return len(self._groups)

    def read(self, payload: bytes) -> KvBatch:
        """The changes of one answer; Corrupt if it is none. EngineDead if the server was started again."""
        try:
            events = _events.decode(payload)
        except msgspec.DecodeError as error:
            raise Corrupt(f"not KV events of TensorRT-LLM: {error}") from error
        return KvBatch(0.0, [change for event in events for change in self._changes(event)])

    def forget(self) -> None:
        """As of `KvBatchReader`."""
        self._levels.clear()

    def _changes(self, event: _Event) -> Iterator[CacheChange]:
        expected, self._next = self._next, event.event_id + 1
        if expected is not None and event.event_id != expected:
            if event.event_id < expected:
                raise EngineDead(BEGAN_ANEW)
            self.forget()
            yield CacheGap(f"cache events {expected} to {event.event_id - 1} were missed: dropped, or read by others")
        try:
            data = _data.decode(event.data)
        except msgspec.DecodeError as error:
            self.forget()
            yield CacheGap(f"the server sent an event of a kind that is not known here: {error}")
            return
        match data:
            case _Stored():
                self._groups.add((event.window_size, event.layer_group_id, event.attention_dp_rank or 0))
                yield from self._stored(data)
            case _Removed():
                yield from self._removed(data)
            case _Updated():
                yield from self._moved(data)

    def _stored(self, stored: _Stored) -> Iterator[CacheChange]:
        parent = None if stored.parent_hash is None else _number(stored.parent_hash)
        run: list[_Block] = []
        for block in stored.blocks:
            name = _number(block.block_hash)
            whole = len(block.tokens) == self._block_size
            if run and (not whole or name in self._levels or block.cache_level != run[0].cache_level):
                yield self._run(run, parent)
                parent, run = _number(run[-1].block_hash), []
            if not whole:
                return  # nothing is behind a partial block
            if name in self._levels:
                parent = name
                continue
            self._levels[name] = block.cache_level
            run.append(block)
        if run:
            yield self._run(run, parent)

    def _run(self, run: list[_Block], parent: int | None) -> CacheStored:
        """Whole blocks, each behind the one before it, in one tier."""
        return CacheStored(
            blocks=tuple(_number(block.block_hash) for block in run),
            parent=parent,
            tokens=tuple(token.token_id for block in run for token in block.tokens),
            block_size=self._block_size,
            tier=_tier(run[0].cache_level),
            adapter=None,
            cache_salt=None,
            indexable=not any(block.mm_keys or any(token.token_extra_id for token in block.tokens) for block in run),
        )

    def _removed(self, removed: _Removed) -> Iterator[CacheRemoved]:
        names: Iterable[int] = map(_number, removed.block_hashes)
        known = [name for name in names if name in self._levels]  # others are partial, or of before a gap
        for level, some in groupby(known, self._levels.__getitem__):
            yield CacheRemoved(tuple(some), _tier(level))
        for name in known:
            self._levels.pop(name, None)

    def _moved(self, updated: _Updated) -> Iterator[CacheChange]:
        name = _number(updated.block_hash)
        old = self._levels.get(name)
        if updated.cache_level is None or old in {None, updated.cache_level.new_value}:
            return
        self._levels[name] = new = updated.cache_level.new_value
        yield CacheCopied((name,), _tier(new))
        yield CacheRemoved((name,), _tier(old or 0))


def _number(name: _Name) -> int:
    return name if isinstance(name, int) else int.from_bytes(name.encode(), "big")


def _tier(level: int) -> str:
    return LEVELS[level] if 0 <= level < len(LEVELS) else f"level {level}"
