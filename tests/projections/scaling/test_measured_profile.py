"""The file of a measured profile, and the capacity that it gives."""

from __future__ import annotations

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.errors import CallerError
from core.events import CapacityLearned
from core.events.scale import MEASURED
from projections.scaling.measured_profile import MeasuredProfile, rising
from tests.projections.scaling.profiles import PROFILE, decode, noisy


def test_a_file_is_read_as_it_was_written() -> None:
    """It names its format, its version, the engine, the model, the block size and the date."""
    content = PROFILE.encode()

    assert MeasuredProfile.decode_file(content, "a.json") == PROFILE
    head = {key: value for key, value in orjson.loads(content).items() if not isinstance(value, list)}
    assert head == {
        "format": "contrail-profile",
        "version": 1,
        "engine": "tested",
        "model": "m",
        "block_size": 16,
        "measured": "2026-11-29T20:00:00.000Z",
        "seconds": 12.5,
        "room_tokens": 100_000,
        "slots": 64,
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "other"}, "is no profile of an engine: `contrail profile` writes one"),
        ({"version": 2}, "is a profile of version 2: this Contrail reads 1"),
        ({"prefill": []}, "is no profile of an engine"),
        ({"prefill": [{"tokens": 0, "us": 1, "repeats": 1}]}, "is no profile of an engine"),
        ({"more": 1}, "is no profile of an engine"),
        ({"decode": [{"requests": 2, "tokens": 1, "us": 1, "repeats": 1}]}, "no decode step of one request"),
    ],
)
def test_other_files_are_refused_with_a_sentence(change: dict[str, object], sentence: str) -> None:
    """The sentence names the file."""
    with pytest.raises(CallerError, match=f"a.json {sentence}|a.json .*{sentence}"):
        MeasuredProfile.decode_file(orjson.dumps(orjson.loads(PROFILE.encode()) | change), "a.json")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{" * 100_000, b"null"])
def test_garbage_is_refused(content: bytes) -> None:
    """Also deep one."""
    with pytest.raises(CallerError, match=r"a\.json is no profile"):
        MeasuredProfile.decode_file(content, "a.json")


def test_the_capacity_has_the_tables_from_one_token_on() -> None:
    """A step that was not measured takes that of fewer tokens, and four times the difference of a fourth of the
    requests: 6 500 us and 4 * 3 600 us."""
    found = PROFILE.capacity(devices=2)

    assert (found.origin, found.profile, found.devices, found.slots) == (MEASURED, PROFILE.digest, 2, 64)
    assert (found.pass_tokens, found.room_tokens) == (8_000, 100_000)
    assert found.prefill_tokens == (1, 100, 1_000, 8_000)
    assert found.prefill_us == (10_000, 10_000, 28_000, 168_000)
    assert found.decode_requests == (1, 4, 16)
    assert found.decode_tokens == (1, 100, 1_000)
    assert found.decode_us == (5_000, 5_000, 5_900)
    assert found.decode_rows_us == ((5_000, 5_000, 5_900), (5_300, 5_300, 8_900), (6_500, 6_500, 20_900))
    assert msgspec.json.decode(msgspec.json.encode(found), type=CapacityLearned) == found


def test_a_cache_of_unknown_size_has_room_for_what_was_measured() -> None:
    """The most tokens of a step."""
    assert replace(PROFILE, room_tokens=0).capacity().room_tokens == 4_000


def test_noise_makes_no_more_work_faster() -> None:
    """A duration below one before it and that one become their mean."""
    assert noisy(10_000, 14_000, 12_000, 20_000).capacity().prefill_us == (10_000, 10_000, 13_000, 13_000, 20_000)
    assert rising([[1, 2, 3], [2, 3, 4]]) == [[1, 2, 3], [2, 3, 4]]


@given(st.lists(st.lists(st.integers(1, 10**6), min_size=4, max_size=4), min_size=1, max_size=5))
def test_tables_rise_in_both_directions(rows: list[list[int]]) -> None:
    """Between the least and the greatest of them."""
    found = rising(rows)

    assert all(list(row) == sorted(row) for row in found)
    assert all(list(column) == sorted(column) for column in zip(*found, strict=True))
    assert min(map(min, rows)) <= found[0][0]
    assert found[-1][-1] <= max(map(max, rows))


def test_a_profile_that_was_measured_again_is_another_one() -> None:
    """By its content."""
    assert replace(PROFILE, seconds=13.0).digest != PROFILE.digest
    assert replace(PROFILE, decode=(*PROFILE.decode, decode(32, 100, 9_000))).digest != PROFILE.digest
