"""A seal: each change of a file is found, by its reason."""

from __future__ import annotations

import random

import pytest

from actors.kv_blocks.block_seal import HEADER_BYTES, BlockSeal, block_name, engine_digest

KEY = b"k" * 32
PAYLOAD = memoryview(random.Random(3).randbytes(4096))
SEAL = BlockSeal(engine_digest(KEY, "weights", "layout"))
NAME = block_name(KEY, b"block")


def refusal(seal: BlockSeal, raw: bytes, name: bytes = NAME) -> str | None:
    payload = memoryview(raw[HEADER_BYTES:].ljust(len(PAYLOAD), b"\0")[: len(PAYLOAD)])
    return seal.refusal(name, raw[:HEADER_BYTES], payload, len(raw))


def test_a_whole_file_is_taken() -> None:
    raw = SEAL.header(NAME, PAYLOAD) + PAYLOAD
    assert HEADER_BYTES == 64
    assert refusal(SEAL, raw) is None


def test_each_flipped_bit_is_found() -> None:
    """Of the header, each; of the payload, one in each sixteenth byte."""
    raw = SEAL.header(NAME, PAYLOAD) + PAYLOAD
    reasons = set()
    for at in [*range(HEADER_BYTES), *range(HEADER_BYTES, len(raw), 16)]:
        for bit in range(8):
            changed = bytearray(raw)
            changed[at] ^= 1 << bit
            reason = refusal(SEAL, bytes(changed))
            assert reason is not None
            reasons.add(reason)
    assert reasons == {"seal", "stranger", "short", "checksum"}


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 100, HEADER_BYTES + 4095])
def test_a_short_file_is_found(size: int) -> None:
    assert refusal(SEAL, (SEAL.header(NAME, PAYLOAD) + PAYLOAD)[:size]) == "short"


def test_a_longer_file_is_found() -> None:
    assert refusal(SEAL, SEAL.header(NAME, PAYLOAD) + bytes(PAYLOAD) + b"x") == "short"


def test_another_engine_and_another_block_are_strangers() -> None:
    raw = SEAL.header(NAME, PAYLOAD) + PAYLOAD
    assert refusal(BlockSeal(engine_digest(KEY, "weights2", "layout")), raw) == "seal"
    assert refusal(BlockSeal(engine_digest(b"o" * 32, "weights", "layout")), raw) == "seal"
    assert refusal(SEAL, raw, block_name(KEY, b"other")) == "stranger"


def test_facts_are_not_confused() -> None:
    """Where one fact ends and the next begins is part of the digest."""
    assert engine_digest(KEY, "ab", "c") != engine_digest(KEY, "a", "bc")


def test_names_need_the_key() -> None:
    """A listing confirms a guessed prompt to no reader without the key."""
    assert block_name(KEY, b"block") != block_name(b"o" * 32, b"block")
