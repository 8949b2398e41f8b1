"""BlockHashCache: contents and names of a prompt's full blocks, hashed once for all requests that begin alike.

A block's content is the hash of its tokens behind the content before it. Its name is the content, turned by the cache
salt: engines keep the caches of two salts apart, and memory does not. Both are numbers of 64 bits, and equal numbers
are taken for equal prefixes.

A talk sends its whole prompt each turn. So the hashes of a prompt's parts are kept, under a hash of the part's tokens
behind the name before it, and only new parts are hashed block by block.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import xxhash

from core.prompt import TOKEN_BYTES, scope_bytes

_NAME_SEED = 0x51
_CONTENT_SEED = 0x52
PART_BLOCKS = 64
"""Blocks of one part: a prompt's last blocks, up to so many, are hashed with each request."""


class BlockHashes(NamedTuple):
    """The full blocks of a prompt or of a part of one, in order."""

    contents: list[int]
    names: list[int]


class BlockHashCache:
    """The hashes of parts, within a bound; owned by one engine."""

    def __init__(self, block_size: int, blocks_max: int) -> None:
        """Parts of `blocks_max` blocks are kept, and of one part at least."""
        self._step = block_size * TOKEN_BYTES
        self._parts_max = max(1, blocks_max // PART_BLOCKS)
        self._kept: OrderedDict[int, BlockHashes] = OrderedDict()
        """In the order of their last use."""

    def __repr__(self) -> str:
        return f"<BlockHashCache {len(self._kept)} of {self._parts_max} parts>"

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, raw: bytes, root: int, turn: int) -> BlockHashes:
        """Contents and names of the full blocks of these token bytes; `root` stands before the first content, and
        `turn` makes names of contents."""
        view, part_bytes = memoryview(raw), PART_BLOCKS * self._step
        found, end = BlockHashes([], []), len(raw) // part_bytes * part_bytes
        for start in range(0, end, part_bytes):
            part = self._part(view[start : start + part_bytes], root, turn)
            found.contents.extend(part.contents)
            found.names.extend(part.names)
            root = part.contents[-1]
        rest = self._hashed(view[end:], root, turn)
        found.contents.extend(rest.contents)
        found.names.extend(rest.names)
        return found

    def _part(self, raw: memoryview, root: int, turn: int) -> BlockHashes:
        key = xxhash.xxh3_128_intdigest(raw, root ^ turn)
        part = self._kept.get(key)
        if part is None:
            part = self._kept[key] = self._hashed(raw, root, turn)
            if len(self._kept) > self._parts_max:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return part

    def _hashed(self, raw: memoryview, root: int, turn: int) -> BlockHashes:
        step, contents = self._step, list[int]()
        for start in range(0, len(raw) - step + 1, step):
            root = content_behind(root, raw[start : start + step])
            contents.append(root)
        return BlockHashes(contents, [content ^ turn for content in contents])


def name_turn(cache_salt: str | None) -> int:
    """The number that makes names of contents, by exclusive or. The adapter is in the contents."""
    return xxhash.xxh3_64_intdigest(scope_bytes(None, cache_salt), _NAME_SEED)


def content_root(vocab: int, block_size: int, adapter: str | None) -> int:
    """Root of the content hashes of a prompt's first block: an engine of another kind reads other content from the same
    bytes.

    A cache salt keeps names apart, and changes nothing in memory.
    """
    return xxhash.xxh3_64_intdigest(f"{vocab}/{block_size}".encode() + scope_bytes(adapter, None), _CONTENT_SEED)


def content_behind(parent: int, raw: bytes | memoryview) -> int:
    """The content of a block with exactly these tokens, computed behind the content before it."""
    return xxhash.xxh3_64_intdigest(raw, parent)
