"""Generations of the deployment's key: what the file says, and by which key a message is proved."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.codec import (
    CHAIN_START,
    GENERATION_MAX,
    decode_message,
    digest,
    encode_event,
    encode_message,
    encode_readable,
    generation_of,
    known_keys,
    newest_generation,
)
from core.errors import CallerError
from core.events import ReplicaLeft
from core.ids import SourceId
from core.keys import DeploymentKey

FIRST = DeploymentKey(bytes(range(32)))
SOURCE = SourceId("ab" * 8)


def sealed(generation: int, n: int = 0, prev: bytes = CHAIN_START) -> tuple[bytes, bytes]:
    """One message in both encodings."""
    event = ReplicaLeft(reason="done")
    packed = encode_message(SOURCE, n, prev, 7, [encode_event(event)], generation)
    return packed, encode_readable(SOURCE, n, prev, 7, [event], generation)


def test_a_new_generation_derives_anew_all_but_the_block_hashes() -> None:
    """The old generation stays to prove, and a file of it reads back; `repr` shows nothing."""
    second = FIRST.rotated()
    third = second.rotated()
    for key in (FIRST, second, third):
        assert DeploymentKey.parse(key.to_text()) == key
        assert "secret" not in repr(key)
        assert key.secret.hex() not in repr(key)
    assert len({key.link_key for key in (FIRST, second, third)}) == 3
    assert {key.hash_seed for key in (FIRST, second, third)} == {FIRST.hash_seed}
    assert FIRST.to_text() == f"{FIRST.secret.hex()}\n"
    assert third.chain_key == FIRST.chain_key + second.chain_key[32:] + third.chain_key[64:]
    assert third.older_reasoning_keys == [second.reasoning_key, FIRST.reasoning_key]


@pytest.mark.parametrize("generation", [0, 1, 2, GENERATION_MAX])
def test_a_message_names_its_generation(generation: int) -> None:
    """In both encodings, and readers that know of no generations read the same message."""
    packed, readable = sealed(generation)
    assert [generation_of(packed), generation_of(readable)] == [generation] * 2
    assert decode_message(packed) == decode_message(readable)


def test_the_first_generation_seals_as_ever() -> None:
    """No byte is another than before there were generations."""
    packed, readable = sealed(0)
    assert b"\xa1g" not in packed
    assert readable.startswith(b'{"v":1,"source":')
    assert digest(packed, FIRST.chain_key) == digest(packed, FIRST.rotated().chain_key)


def test_each_generation_proves_its_own_messages() -> None:
    """A key proves no message of another generation, and a removed one none at all."""
    second = FIRST.rotated()
    third = second.rotated()
    (old, _), (new, _), (newest, _) = sealed(0), sealed(1), sealed(2)
    assert digest(new, second.chain_key) == digest(new, third.chain_key)
    assert digest(new, second.chain_key) != digest(new, FIRST.chain_key)
    without = third.without(0)
    assert known_keys(without.chain_key) == known_keys(third.chain_key)[:2]
    assert newest_generation(without.chain_key) == 2
    assert digest(old, without.chain_key) != digest(old, third.chain_key)
    assert [digest(each, without.chain_key) for each in (new, newest)] == [
        digest(each, third.chain_key) for each in (new, newest)
    ]
    assert without.hash_seed == FIRST.hash_seed
    assert DeploymentKey.parse(without.to_text()) == without
    # nothing that an outsider can compute stands for a key that is missing
    assert digest(old, without.chain_key) not in {digest(old, b""), digest(old, bytes(32)), bytes(16)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "11" * 31,
        "11" * 33,
        "0 " + "11" * 31,
        "0 " + "11" * 32 + "\n0 " + "22" * 32,
        "100 " + "11" * 32,
        "blocks 0011223344556677",
        "blocks 00\n0 " + "11" * 32,
        "11" * 32 + "\n1 " + "22" * 32,
        "²".join(["0", "11" * 32]),
    ],
)
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    """One sentence, which shows no digit of it."""
    (tmp_path / "key").write_text(text)
    with pytest.raises(CallerError, match="is not a deployment key") as raised:
        DeploymentKey.load(tmp_path / "key")
    assert "1111" not in str(raised.value)


def test_generations_have_an_end_and_the_one_in_use_stays() -> None:
    """GENERATION_MAX is the last."""
    last = DeploymentKey(bytes(32), GENERATION_MAX)
    with pytest.raises(CallerError, match="begin a new deployment"):
        last.rotated()
    assert DeploymentKey(bytes(32), GENERATION_MAX - 1).rotated().generation == GENERATION_MAX
    with pytest.raises(CallerError, match="in use"):
        last.without(GENERATION_MAX)
    with pytest.raises(CallerError, match="no generation 3"):
        last.without(3)


def test_a_key_follows_its_earlier_generations() -> None:
    """A rotated key follows the one before, also without the secrets that were removed; no other key does."""
    second = FIRST.rotated()
    assert FIRST.follows(FIRST)
    assert second.follows(FIRST)
    assert second.without(0).follows(FIRST)
    assert second.without(0).follows(second)
    assert not FIRST.follows(second)
    assert not FIRST.rotated().follows(second)
    assert not DeploymentKey.generate().follows(FIRST)
