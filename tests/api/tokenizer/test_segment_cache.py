"""Segments: within one bound, found by a digest in their own scope, and counted with all that they take."""

from __future__ import annotations

import json
import tracemalloc

from api.tokenizer.segment_cache import BYTES_MAX, ENTRY_BYTES, SHORT_MAX, SegmentCache, SegmentScope
from api.tokenizer.text_encoder import TextEncoder
from tests.api.scripted import tokenizer

GIB = 2**30
TALK_TOKENS = 100_000
SEGMENT_TOKENS = 333


def put(cache: SegmentCache, text: str, tokens: bytes, scope: SegmentScope) -> None:
    _, key = cache.find(text, scope)
    cache.put(text, tokens, scope, key)


def found(cache: SegmentCache, text: str, scope: SegmentScope) -> bytes | None:
    return cache.find(text, scope)[0]


def test_segments_stay_within_their_bound_and_keep_what_is_used() -> None:
    """The one that is asked for again and again outlives the others."""
    cache, used = SegmentCache(bytes_max=10_000), "u" * 100
    scope = cache.scope(b"tokenizer", "")
    put(cache, used, b"used", scope)
    for number in range(500):
        put(cache, f"{number:0100d}", bytes(400), scope)
        assert found(cache, used, scope) == b"used"
        assert cache.size <= 10_000
    assert found(cache, f"{0:0100d}", scope) is None
    assert found(cache, f"{499:0100d}", scope) == bytes(400)
    put(cache, "x" * 20_000, bytes(10_001), scope)
    assert found(cache, "x" * 20_000, scope) is None


def test_segments_of_tenants_and_tokenizers_have_one_bound() -> None:
    """Each scope finds its own alone; long and short ones of all together are bounded."""
    cache = SegmentCache(bytes_max=10_000)
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
        assert cache.size <= 10_000
        assert len(cache._short) <= SHORT_MAX
    for number in range(SHORT_MAX):
        put(cache, f"{number}", b"1234", cache.scope(b"tokenizer", f"tenant {number}"))
    assert len(cache._short) <= SHORT_MAX


def test_short_segments_are_kept_apart_and_forgotten_together() -> None:
    """They push out no long one, and are never more than a few."""
    cache, long = SegmentCache(bytes_max=1000), "l" * 100
    scope = cache.scope(b"tokenizer", "")
    put(cache, long, b"long", scope)
    for number in range(SHORT_MAX):
        put(cache, f"user {number}", b"1234", scope)
    assert found(cache, "user 0", scope) == b"1234"
    put(cache, "one more", b"5678", scope)
    assert (found(cache, "user 0", scope), found(cache, "one more", scope)) == (None, b"5678")
    assert found(cache, long, scope) == b"long"


def test_the_count_is_at_least_what_entries_take() -> None:
    """Measured by the allocator, in entries of any size."""
    for tokens in (bytes(4), bytes(400), bytes(40_000)):
        cache = SegmentCache()
        scope = cache.scope(b"tokenizer", "")
        tracemalloc.start()
        try:
            for number in range(2000):
                put(cache, f"{number:0100d}", bytes(bytearray(tokens)), scope)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken <= cache.size <= 2 * taken + 2000 * ENTRY_BYTES


def test_the_default_bound_keeps_a_thousand_talks() -> None:
    """Of 100 000 tokens in 300 segments each, beside all else that a process has within 1 GiB."""
    segments = TALK_TOKENS // SEGMENT_TOKENS
    assert 1000 * segments * (SEGMENT_TOKENS * 4 + ENTRY_BYTES) <= BYTES_MAX <= GIB // 2


def test_models_with_one_tokenizer_share_their_segments_and_others_do_not() -> None:
    """A model whose files change under its name is another one."""
    cache, made = SegmentCache(), tokenizer()
    text = "a text that is long enough to be kept by its digest " * 3
    for changed in (False, True):
        description = json.loads(made.to_str())
        if changed:
            description["version"] = "other"
        expected = TextEncoder(made, description, cache).encode(text, 10**6, add_special_tokens=False)
        before = cache.size
        assert TextEncoder(made, description, cache).encode(text, 10**6, add_special_tokens=False) == expected
        assert cache.size == before == (1 + changed) * (len(expected) + ENTRY_BYTES)
