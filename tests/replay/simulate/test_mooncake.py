"""Mooncake's traces: prompts as hashes and as tokens, and lines that are none."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from core.errors import CallerError
from core.prompt import HASH_BYTES, Prompt
from replay.simulate.trace_file import LINE_BYTES_MAX, Vocabulary, block_hashes, read_mooncake, token_ids
from replay.simulate.workload import TraceRequest
from tests.replay.simulate.talks import talks, written

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
GOLDEN = "6966279105bc7429d9e42d37e64a4520"


def read(tmp_path: Path, *lines: dict[str, Any], first: int = 0) -> list[TraceRequest]:
    return list(read_mooncake(written(tmp_path / "trace.jsonl", list(lines)), first).asked)


def blocks(asked: TraceRequest, block_size: int) -> list[int]:
    return array("Q", block_hashes(asked, block_size)).tolist()


def common(left: list[int], right: list[int]) -> int:
    """How many they have in common at the start; no others may be."""
    same = sum(a == b for a, b in zip(left, right, strict=False))
    assert left[:same] == right[:same]
    assert not set(left[same:]) & set(right[same:])
    return same


def test_a_line_is_a_request(tmp_path: Path) -> None:
    """Times from the first one on; an answer has at least one token; further keys are passed over."""
    first, second = read(
        tmp_path,
        {**GOOD, "timestamp": 5000, "type": "chat"},
        {**GOOD, "timestamp": 5003.5, "output_length": 0, "tenant": "a", "session_id": "s", "priority": 2},
    )

    assert (first.id, first.at_us, first.prompt_tokens, first.output_tokens) == ("req-000001", 0, 600, 1)
    assert (second.id, second.at_us, second.output_tokens) == ("req-000002", 3500, 1)
    assert (second.tenant, second.session, second.priority) == ("a", "s", 2)


@pytest.mark.parametrize("block_size", [16, 64, 96, 512, 768])
def test_blocks_are_shared_as_far_as_ids_are(tmp_path: Path, block_size: int) -> None:
    """Full blocks only, whether or not they fit into the parts."""
    one, other, short = read(
        tmp_path,
        {**GOOD, "input_length": 2000, "hash_ids": [1, 2, 3, 4]},
        {**GOOD, "input_length": 1900, "hash_ids": [1, 2, 9, 8]},
        {**GOOD, "input_length": 700, "hash_ids": [1, 2]},
    )

    assert len(blocks(one, block_size)) == 2000 // block_size
    assert common(blocks(one, block_size), blocks(other, block_size)) == 1024 // block_size
    assert common(blocks(one, block_size), blocks(short, block_size)) == 700 // block_size


def test_an_id_behind_another_one_is_another_prefix(tmp_path: Path) -> None:
    """Also in traces whose ids stand for their own part alone."""
    one, other = read(tmp_path, {**GOOD, "hash_ids": [1, 2]}, {**GOOD, "hash_ids": [2, 2]})

    assert common(blocks(one, 64), blocks(other, 64)) == 0


@pytest.mark.parametrize("words", [Vocabulary(4096, 16), Vocabulary(200_000), Vocabulary(2)])
def test_tokens_are_shared_as_blocks_are(tmp_path: Path, words: Vocabulary) -> None:
    """What a live run sends has as many common blocks, and no token that the model lacks."""
    asked = read(tmp_path, *talks())
    prompts = [token_ids(each, words) for each in asked]

    assert all(len(tokens) == each.prompt_tokens for tokens, each in zip(prompts, asked, strict=True))
    assert all(words.token_min <= token < words.vocab for tokens in prompts for token in set(tokens))
    hashed = [array("Q", Prompt(tokens.tobytes(), 64, 0).hashes()).tolist() for tokens in prompts]
    for place in range(1, len(asked)):
        expected = common(blocks(asked[place], 64), blocks(asked[place // 2], 64))
        assert common(hashed[place], hashed[place // 2]) == expected


def test_a_vocabulary_of_one_word_tells_no_ids_apart(tmp_path: Path) -> None:
    """It is refused."""
    (asked,) = read(tmp_path, GOOD)

    with pytest.raises(CallerError, match="fewer than two tokens"):
        token_ids(asked, Vocabulary(17, 16))


def test_hashes_stay_as_they_are(tmp_path: Path) -> None:
    """Results of last year can be compared with this year's."""
    (asked,) = read(tmp_path, GOOD)

    assert len(asked.content) == 2 * HASH_BYTES
    assert block_hashes(asked, 256).hex() == GOLDEN


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"timestamp": -1}, "timestamp -1"),
        ({"timestamp": "soon"}, "Expected `float`"),
        ({"input_length": 0}, "input_length must be at least 1"),
        ({"output_length": -1}, "output_length must not be negative"),
        ({"hash_ids": [1]}, "600 tokens have 2 parts of 512, but hash_ids has 1"),
        ({"hash_ids": [1, -2]}, "whole numbers"),
        ({"hash_ids": [1, 2**64]}, "hash_ids"),
        ({"hash_ids": None}, "Expected `array`"),
        ({"priority": 2**31}, "priority must be from -2147483647 to 2147483647, not 2147483648"),
        ({"priority": -(2**31)}, "priority must be from"),
        ({"priority": 2**70}, "priority"),
    ],
)
def test_what_is_no_request_is_named_by_its_line(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    """And by what is wrong with it."""
    with pytest.raises(CallerError, match=r"trace\.jsonl, line 2: ") as refused:
        read(tmp_path, GOOD, {**GOOD, **change})

    assert why in str(refused.value)


def test_what_is_no_json_is_named_by_its_line(tmp_path: Path) -> None:
    """Blank lines are none, and count."""
    path = tmp_path / "trace.jsonl"
    path.write_text("\n{}\n")
    with pytest.raises(CallerError, match=r"line 2: no request in Mooncake's format: .*missing required field"):
        read_mooncake(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CallerError, match="line 1"):
        read_mooncake(path)


def test_a_line_without_end_is_not_read(tmp_path: Path) -> None:
    """Nor is all of it held."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b" " * LINE_BYTES_MAX + b"xx")

    with pytest.raises(CallerError, match="longer than"):
        read_mooncake(path)


def test_an_empty_or_missing_file_is_none(tmp_path: Path) -> None:
    """Each with its sentence."""
    (tmp_path / "empty").touch()
    with pytest.raises(CallerError, match="has no request"):
        read_mooncake(tmp_path / "empty")
    with pytest.raises(CallerError, match="cannot be read: No such file"):
        read_mooncake(tmp_path / "none")


def test_only_the_first_are_read(tmp_path: Path) -> None:
    """What follows may be broken."""
    assert len(read(tmp_path, GOOD, GOOD, {"broken": True}, first=2)) == 2
