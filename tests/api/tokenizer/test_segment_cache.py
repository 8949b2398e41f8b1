"""Segments: long ones in the store, short ones as texts, each found in its own scope."""

from __future__ import annotations

import json

from actors.prompt_cache.digest_store import ENTRY_BYTES, DigestScope, DigestStore
from api.tokenizer.segment_cache import SHORT_MAX, SegmentCache
from api.tokenizer.text_encoder import TextEncoder
from tests.api.scripted import tokenizer


def put(cache: SegmentCache, text: str, tokens: bytes, scope: DigestScope) -> None:
    _, digest = cache.find(text, scope)
    cache.put(text, tokens, scope, digest)


def found(cache: SegmentCache, text: str, scope: DigestScope) -> bytes | None:
    return cache.find(text, scope)[0]


def test_segments_of_tenants_and_tokenizers_have_one_bound() -> None:
    """Each scope finds its own alone; long and short ones of all together are bounded."""
    cache = SegmentCache(store := DigestStore(10_000))
    other = cache.scope(b"tokenizer", "other")
    for number in range(500):
        scope = cache.scope(b"tokenizer", f"tenant {number % 7}")
        again, swapped = (
            cache.scope(b"another", f"tenant {number % 7}"),
            cache.scope(b"tokenizert", f"enant {number % 7}"),
        )
        for text, tokens in ((f"{number:0100d}", bytes(400)), (f"{number}", b"1234")):
            put(cache, text, tokens, scope)
            assert found(cache, text, scope) == tokens
            assert found(cache, text, other) is found(cache, text, again) is found(cache, text, swapped) is None
        assert store.size <= 10_000
        assert len(cache._short) <= SHORT_MAX
    for number in range(SHORT_MAX):
        put(cache, f"{number}", b"1234", cache.scope(b"tokenizer", f"tenant {number}"))
    assert len(cache._short) <= SHORT_MAX


def test_short_segments_are_kept_apart_and_forgotten_together() -> None:
    """They push out no long one, and are never more than a few."""
    cache, long = SegmentCache(DigestStore(1000)), "l" * 100
    scope = cache.scope(b"tokenizer", "")
    put(cache, long, b"long", scope)
    for number in range(SHORT_MAX):
        put(cache, f"user {number}", b"1234", scope)
    assert found(cache, "user 0", scope) == b"1234"
    put(cache, "one more", b"5678", scope)
    assert (found(cache, "user 0", scope), found(cache, "one more", scope)) == (None, b"5678")
    assert found(cache, long, scope) == b"long"


def test_models_with_one_tokenizer_share_their_segments_and_others_do_not() -> None:
    """A model whose files change under its name is another one."""
    store, made = DigestStore(), tokenizer()
    text = "a text that is long enough to be kept by its digest " * 3
    for changed in (False, True):
        description = json.loads(made.to_str())
        if changed:
            description["version"] = "other"
        expected = TextEncoder(made, description, store).encode(text, 10**6, add_special_tokens=False)
        before = store.size
        assert TextEncoder(made, description, store).encode(text, 10**6, add_special_tokens=False) == expected
        assert store.size == before == (1 + changed) * (len(expected) + ENTRY_BYTES)
