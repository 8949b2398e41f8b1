"""Columns out of parts that were kept: the hashes of the prompt itself, whatever was kept before."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actors.prompt_cache.hash_columns
from actors.prompt_cache.digest_store import DigestStore
from actors.prompt_cache.hash_columns import PART_TOKENS, HashColumns
from core.prompt import Prompt, chain_column, scope_bytes

SEED = 7
SCOPES = (b"", scope_bytes("adapter", None), scope_bytes(None, "salt"))


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_turns_of_talks_have_the_hashes_of_their_prompts(data: st.DataObject) -> None:
    """Each turn goes on from one before it, cut anywhere, in any scope and block size; little of them may be kept."""
    columns = HashColumns(DigestStore(data.draw(st.sampled_from((5_000, 10**6)))), SEED)
    talks = [b""]
    for turn in range(8):
        before = data.draw(st.sampled_from(talks))
        news = random.Random(turn).randbytes(4 * data.draw(st.integers(1, 2 * PART_TOKENS)))
        tokens = before[: 4 * data.draw(st.integers(0, len(before) // 4))] + news
        block_size, scope = data.draw(st.sampled_from((1, 16, 48, 5000))), data.draw(st.sampled_from(SCOPES))
        expected = Prompt(tokens, block_size, SEED, scope)
        prompt, parts = columns.prompt_and_parts(tokens, block_size, scope)
        assert parts == HashColumns(DigestStore(), SEED).prompt_and_parts(tokens, block_size, scope)[1]
        depths = range(1, expected.blocks + 1, 97)
        assert [prompt.key(depth) for depth in depths] == [expected.key(depth) for depth in depths]
        assert prompt.hashes() == expected.hashes()
        assert (prompt.tokens, prompt.blocks) == (expected.tokens, expected.blocks)
        talks.append(tokens)


def test_only_what_is_new_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A talk's next turn begins where the last whole part ended; a change of an early token makes all of it new, and so
    does another scope."""
    starts = list[int]()

    def counted(canonical: bytes, start: int, block_size: int, seed: int) -> bytes:
        starts.append(start)
        return chain_column(canonical, start, block_size, seed)

    monkeypatch.setattr(actors.prompt_cache.hash_columns, "chain_column", counted)
    columns, part = HashColumns(DigestStore(), SEED), 4 * PART_TOKENS
    tokens = random.Random(1).randbytes(5 * part)
    changed = bytes([tokens[0] ^ 1]) + tokens[1:]
    for asked in (tokens[: 3 * part + 64], tokens, tokens[:-4], changed):
        columns.prompt_and_parts(asked, 16)
    assert starts == [0, 3 * part, 4 * part, 0]
    columns.prompt_and_parts(tokens, 16, SCOPES[1])
    assert starts[4:] == [len(SCOPES[1])]
