"""Values by digest: within one bound, each in its own scope, counted with all that they take, shared by threads."""

from __future__ import annotations

import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

from actors.prompt_cache.digest_store import ENTRY_BYTES, DigestStore
from actors.prompt_cache.hash_columns import PART_TOKENS
from api.config.schema import FrontendSection
from core.prompt import HASH_BYTES, TOKEN_BYTES

TALK_TOKENS = 100_000
SEGMENT_TOKENS = 333
BLOCK_SIZE = 16


def test_entries_stay_within_their_bound_and_the_used_ones_stay() -> None:
    """The one that is asked for again and again outlives the others."""
    store = DigestStore(10_000)
    digest = store.scope(b"of a test").digest
    store.put(digest(b"used"), b"used")
    for number in range(500):
        store.put(digest(b"%d" % number), bytes(400))
        assert store.find(digest(b"used")) == b"used"
        assert store.size <= 10_000
    assert store.find(digest(b"0")) is None
    assert store.find(digest(b"499")) == bytes(400)
    store.put(digest(b"long"), bytes(10_001))
    assert store.find(digest(b"long")) is None


def test_no_scope_has_the_digests_of_another() -> None:
    """Neither by other parts, nor by parts that are cut elsewhere; another process has other digests."""
    store = DigestStore()
    scopes = [store.scope(*parts) for parts in ((), (b"",), (b"ab",), (b"a", b"b"), (b"", b"ab"), (b"ab", b""))]
    assert len({scope.digest(b"text") for scope in (*scopes, DigestStore().scope())}) == len(scopes) + 1
    assert store.scope(b"a", b"b").digest(b"text") == scopes[3].digest(b"text")


def test_a_digest_goes_by_every_byte_and_by_what_stands_before() -> None:
    """Any change of a bit or of the length, and any other beginning, gives another digest."""
    digest = DigestStore().scope().digest
    data = random.Random(1).randbytes(300)
    changed = [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))]
    shorter = [data[:end] for end in range(len(data))]
    longer = [data + bytes(count) for count in range(1, 40)]
    before = [digest(data, each) for each in (digest(b""), digest(b"x"))]
    found = [digest(data), *map(digest, (*changed, *shorter, *longer)), *before]
    assert len(set(found)) == len(found)
    assert {len(each) for each in found} == {16}
    assert digest(memoryview(data)) == digest(data)


def test_the_count_is_at_least_what_entries_take() -> None:
    """Measured by the allocator, in entries of any size."""
    for value in (bytes(4), bytes(400), bytes(40_000)):
        store = DigestStore()
        digest = store.scope().digest
        tracemalloc.start()
        try:
            for number in range(2000):
                store.put(digest(b"%d" % number), bytes(bytearray(value)))
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken <= store.size <= 2 * taken + 2000 * ENTRY_BYTES


def test_the_default_bound_keeps_a_thousand_talks() -> None:
    """Of 100 000 tokens in 300 segments each, with their block hashes, beside all else that a process has in 1 GiB."""
    segments = TALK_TOKENS // SEGMENT_TOKENS * (SEGMENT_TOKENS * TOKEN_BYTES + ENTRY_BYTES)
    parts = TALK_TOKENS // PART_TOKENS * (PART_TOKENS // BLOCK_SIZE * HASH_BYTES + ENTRY_BYTES)
    assert 1000 * (segments + parts) <= FrontendSection().text_cache_bytes == DigestStore().bytes_max <= 2**29


def test_threads_keep_the_bound_and_the_count() -> None:
    """Threads fill a store that is always full: no call fails, and what is counted is what is kept."""
    store = DigestStore(20_000)
    digest = store.scope().digest
    values = [b"%0100d" % number for number in range(200)]

    def fill(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(4000):
            value = chance.choice(values)
            kept = store.find(digest(value))
            assert kept is None or kept == value
            if kept is None:
                store.put(digest(value), value)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fill, range(8)))
    kept = [value for value in values if store.find(digest(value)) is not None]
    assert store.size == sum(len(value) + ENTRY_BYTES for value in kept) <= 20_000
    assert kept
