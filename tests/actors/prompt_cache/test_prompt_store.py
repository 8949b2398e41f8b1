"""Prompts put together of parts that were kept: the prompt itself, or nothing."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from actors.prompt_cache.digest_store import DigestStore
from actors.prompt_cache.hash_columns import PART_TOKENS, HashColumns
from actors.prompt_cache.part_digests import PartDigests
from actors.prompt_cache.prompt_store import ENTRY_BYTES, PromptStore
from core.prompt import scope_bytes

KEY = b"key"
PART = 4 * PART_TOKENS
SCOPES = (b"", scope_bytes("adapter", None), scope_bytes(None, "salt"))


@given(data=st.data())
def test_the_whole_prompt_or_none(data: st.DataObject) -> None:
    """Turns of talks cut anywhere, with any number of parts left out, in any scope; little or much is kept."""
    bytes_max = data.draw(st.sampled_from((0, 3 * (PART + ENTRY_BYTES), 10**8)))
    store, columns = PromptStore(PartDigests(KEY), bytes_max), HashColumns(DigestStore(), 7, KEY)
    talks = [b""]
    for turn in range(6):
        before = data.draw(st.sampled_from(talks))
        news = random.Random(turn).randbytes(4 * data.draw(st.integers(PART_TOKENS, 3 * PART_TOKENS)))
        tokens = before[: 4 * data.draw(st.integers(0, len(before) // 4))] + news
        scope = data.draw(st.sampled_from(SCOPES))
        _, parts = columns.prompt_and_parts(tokens, data.draw(st.sampled_from((16, 48))), scope)
        assert parts is not None
        known = data.draw(st.integers(0, len(parts.digests)))
        rest = tokens[known * parts.size :]
        whole = store.whole(rest, parts.size, known, parts.before(known), parts.end, scope)
        assert whole in ({tokens} if not known else {tokens, None})
        assert store.size <= bytes_max
        again = store.whole(tokens, parts.size, 0, parts.start, parts.end, scope)
        assert again == tokens
        if bytes_max > 10**7:
            count = len(parts.digests)
            assert store.whole(tokens[count * parts.size :], parts.size, count, parts.before(count), parts.end, scope)
        talks.append(tokens)
    assert store.size == sum(len(part) + ENTRY_BYTES for _, part in store._kept.values())
