"""Prompts: equal hash means equal prefix in equal scope, at every depth, streamed or at once."""

from __future__ import annotations

import struct

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import core.prompt
from core.prompt import (
    ONE_SHOT_BYTES_MAX,
    STATES_MAX,
    Prompt,
    hashes_from_bytes,
    hashes_to_bytes,
    salt_of_tenant,
    scope_bytes,
    tenant_of_salt,
    tokens_from_bytes,
    tokens_to_bytes,
)

tokens_lists = st.lists(st.integers(0, 2**32 - 1), max_size=70)
salts = st.none() | st.text(max_size=3)


@settings(deadline=None, max_examples=100)
@given(tokens_lists, st.integers(1, 9), st.integers(0, 2**64 - 1), salts, salts)
def test_a_key_is_the_hash_of_its_block(
    tokens: list[int], block_size: int, seed: int, adapter: str | None, salt: str | None
) -> None:
    """key(d) == hashes()[d - 1] == XXH3-64 of scope and the first d blocks, for every full block."""
    raw, scope = tokens_to_bytes(tokens), scope_bytes(adapter, salt)
    prompt = Prompt(raw, block_size, seed, scope)
    hashes = hashes_from_bytes(prompt.hashes())
    assert len(hashes) == prompt.blocks
    assert [prompt.key(depth) for depth in range(1, prompt.blocks + 1)] == hashes
    ends = [4 * block_size * depth for depth in range(1, prompt.blocks + 1)]
    assert hashes == [xxhash.xxh3_64_intdigest(scope + raw[:end], seed) for end in ends]


@settings(deadline=None, max_examples=50)
@given(tokens_lists, st.integers(1, 9))
def test_caps_follow_the_engine(tokens: list[int], block_size: int) -> None:
    """The last token is always computed; a block partly filled is held but never shared."""
    prompt = Prompt(tokens_to_bytes(tokens), block_size, 0)
    assert prompt.blocks == len(tokens) // block_size
    assert 0 <= prompt.blocks_to_hold - prompt.blocks <= 1
    assert prompt.blocks_to_hold * block_size >= len(tokens)
    assert prompt.blocks_reusable * block_size < max(len(tokens), 1)
    assert prompt.blocks_reusable in {prompt.blocks, prompt.blocks - 1, 0}


@settings(deadline=None, max_examples=50)
@given(tokens_lists, st.lists(st.integers(0, 2**64 - 1)))
def test_columns_read_back(tokens: list[int], hashes: list[int]) -> None:
    """Tokens and hashes are little-endian on every machine, and read back as they were."""
    assert tokens_from_bytes(tokens_to_bytes(tokens)) == tokens
    assert hashes_from_bytes(hashes_to_bytes(hashes)) == hashes
    assert tokens_to_bytes(tokens) == struct.pack(f"<{len(tokens)}I", *tokens)
    assert hashes_to_bytes(hashes) == struct.pack(f"<{len(hashes)}Q", *hashes)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_does_not_fit_is_an_error(token: int) -> None:
    """It is never wrapped around into another token."""
    with pytest.raises((ValueError, OverflowError)):
        tokens_to_bytes([token])


def test_scopes_keep_caches_apart() -> None:
    """Adapters, salts and plain prompts never share a hash, however the texts are cut."""
    scopes = [(None, None), ("a", None), (None, "a"), ("a", "b"), ("ab", None), ("", "ab"), ("b", "a"), (None, "b")]
    raw = tokens_to_bytes(range(8))
    assert len({Prompt(raw, 4, 0, scope_bytes(*scope)).key(1) for scope in scopes}) == len(scopes)
    assert scope_bytes("", None) == scope_bytes(None, "") == b""
    assert len(scope_bytes("a", None)) == 16


def test_deployments_keep_hashes_apart() -> None:
    """Another seed, another hash: one deployment's record tells another nothing."""
    raw = tokens_to_bytes(range(8))
    assert Prompt(raw, 4, 1).key(1) != Prompt(raw, 4, 2).key(1)


def test_hashes_are_fixed_for_ever() -> None:
    """XXH3-64 with the published vector for no input, and our own for one block: the log depends on both."""
    assert xxhash.xxh3_64_intdigest(b"") == 0x2D06800538D394C2
    scoped = Prompt(tokens_to_bytes([1, 2, 3, 4]), 4, 42, scope_bytes("adapter", "salt"))
    assert Prompt(tokens_to_bytes([1, 2, 3, 4]), 4, 42).key(1) == 0xCABC6CF291A3BA46
    assert scoped.key(1) == 0xE6886DCD7505FCC3


def test_a_prompt_shows_no_tokens() -> None:
    """Its repr is safe to log."""
    assert repr(Prompt(tokens_to_bytes([77] * 9), 4, 0)) == "<Prompt 9 tokens, 2 full blocks of 4>"


@settings(deadline=None, max_examples=50)
@given(st.data(), st.integers(1, 4), salts)
def test_keys_of_long_prompts_are_those_of_short_ones(data: st.DataObject, block_size: int, salt: str | None) -> None:
    """From whichever kept state a digest goes on, in any order of asking, it is that of the whole prefix."""
    raw, scope = tokens_to_bytes(range(200)), scope_bytes(None, salt)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core.prompt, "ONE_SHOT_BYTES_MAX", 64)
        patch.setattr(core.prompt, "STATES_MAX", 5)
        prompt = Prompt(raw, block_size, 1, scope)
        depths = data.draw(st.lists(st.integers(1, prompt.blocks), min_size=1))
        for depth in depths:
            end = 4 * block_size * depth
            assert prompt.key(depth) == xxhash.xxh3_64_intdigest(scope + raw[:end], 1)
        assert len(prompt._states) == len(prompt._ends) <= 5
        assert prompt._ends == sorted(prompt._ends)


def test_a_prompt_whose_hashes_are_known_keeps_no_states() -> None:
    """They are memory for nothing then; keys are read from the hashes."""
    prompt = Prompt(bytes(8 * ONE_SHOT_BYTES_MAX), 16, 0)
    for depth in range(1, prompt.blocks + 1, 7):
        prompt.key(depth)
    assert len(prompt._states) == STATES_MAX
    hashes = hashes_from_bytes(prompt.hashes())
    assert prompt._states == []
    assert [prompt.key(depth) for depth in range(1, prompt.blocks + 1)] == hashes
    assert prompt.hashes() is prompt.hashes()


@pytest.mark.parametrize(
    ("tenant", "given"), [("acme", ""), ("acme", "of its own"), ("acme", "other:more"), ("", ""), ("", "acme:")]
)
def test_a_salt_names_its_tenant_alone(tenant: str, given: str) -> None:
    """Clients choose what stands behind it. A salt without a tenant names none, whatever it is."""
    assert tenant_of_salt(salt_of_tenant(tenant, given)) == tenant
    assert tenant_of_salt(given.partition(":")[0]) == ""
