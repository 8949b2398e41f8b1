"""Segment cache: token ids of texts that were tokenized before, for all models and tenants of a process.

A segment is a text between two special tokens. An entry is its token ids and nothing else: all talks, and all turns of
a talk, share it. Ids that an engine generated never come here: a text has the ids that the tokenizer gives it.

With 150 talks of 71 000 tokens, a turn's front end took 67 ms of CPU while 32 MiB of texts and ids were kept.
"""

from __future__ import annotations

from threading import Lock

from actors.prompt_cache.digest_store import DigestScope, DigestStore

CHARS_MIN = 64
"""A shorter text, mostly a template's own between messages, is kept beside the others, as a text."""
SHORT_MAX = 1024
"""Short texts that are kept; one more, and all of them are forgotten."""


class SegmentCache:
    """Text to its token ids by scope: long texts in the store, within its bound. Threads may share it."""

    def __init__(self, store: DigestStore) -> None:
        self._store = store
        self._short: dict[tuple[bytes, str], bytes] = {}
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<SegmentCache {len(self._short)} short texts, {self._store!r}>"

    def scope(self, tokenizer: bytes, tenant: str) -> DigestScope:
        """The texts of this tenant; `tokenizer` is a digest of its description."""
        return self._store.scope(b"tokens", tokenizer, tenant.encode("utf-8", "surrogatepass"))

    def find(self, text: str, scope: DigestScope) -> tuple[bytes | None, bytes]:
        """The text's token ids, None if they are not kept; and its digest for `put`, empty for a short text."""
        if len(text) < CHARS_MIN:
            return self._short.get((scope.name, text)), b""
        digest = scope.digest(text.encode("utf-8", "surrogatepass"))
        return self._store.find(digest), digest

    def put(self, text: str, tokens: bytes, scope: DigestScope, digest: bytes) -> None:
        """The token ids are kept under the digest that `find` gave, as far as the store has room."""
        if digest:
            self._store.put(digest, tokens)
            return
        with self._lock:
            if len(self._short) >= SHORT_MAX:
                self._short.clear()
            self._short[scope.name, text] = tokens
