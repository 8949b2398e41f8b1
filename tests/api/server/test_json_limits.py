"""JSON that would hold up the loop is refused before it is decoded."""

from __future__ import annotations

from bisect import bisect_left

import msgspec
import pytest

from api.server.errors import ApiError
from api.server.json_limits import (
    CONTAINERS_MAX,
    STRINGS_MAX,
    STRUCTURE_MAX,
    UNTYPED,
    VALUES_MAX,
    check_json_size,
    finite_float,
    is_plainly_small,
)


def number(digits: int) -> bytes:
    """A list with one number of so many digits."""
    return b"[" + b"1" * digits + b"]"


def test_digits_and_marks_have_a_bound() -> None:
    """At it all is well; blanks are free, and ids may be as many as there may be values."""
    check_json_size(number(STRUCTURE_MAX - 2))
    check_json_size(b" " * STRUCTURE_MAX + number(STRUCTURE_MAX - 2))
    with pytest.raises(ApiError, match=f"or {STRUCTURE_MAX} digits and marks outside strings") as refused:
        check_json_size(number(STRUCTURE_MAX - 1))
    assert (refused.value.status, refused.value.code) == (413, "request_too_large")
    check_json_size(number(STRUCTURE_MAX - 1), None)


def test_what_stands_in_strings_is_free() -> None:
    """Digits, marks and escaped quotes in them."""
    check_json_size(msgspec.json.encode([r'"1,[{\\\", "' * 200_000]))
    inside = b'["' + b"7" * (STRUCTURE_MAX + 1) + b'"'
    check_json_size(inside + b"," + b"1" * (STRUCTURE_MAX - 9) + b"]")
    with pytest.raises(ApiError):
        check_json_size(inside + b"," + b"1" * STRUCTURE_MAX + b"]")


@pytest.mark.parametrize(
    ("unit", "most"), [(b"0", VALUES_MAX), (b"[]", CONTAINERS_MAX), (b'"0,"', STRINGS_MAX)], ids=["0", "[]", "strings"]
)
def test_values_have_bounds_beside_ids(unit: bytes, most: int) -> None:
    """Strings alone are counted once another bound may be exceeded."""
    if unit.startswith(b'"'):
        many = b'"' + b"," * VALUES_MAX + b'"'
        check_json_size(b"[" + b",".join([unit] * (most - 1)) + b"," + many + b"]", None)
        with pytest.raises(ApiError, match="or 250000 strings"):
            check_json_size(b"[" + b",".join([unit] * most) + b"," + many + b"]", None)
        return
    check_json_size(b"[" + b",".join([unit] * (most - 1)) + b"]", None)
    with pytest.raises(ApiError, match="the request holds more than"):
        check_json_size(b"[" + b",".join([unit] * (most + 2)) + b"]", None)


def test_numbers_are_those_of_json() -> None:
    """As without the hook; what no float can hold is refused."""
    assert UNTYPED.decode(b"[1.5,1e3,-0.0,17976931348623157081e289]") == [1.5, 1000.0, -0.0, 17976931348623157081e289]
    assert finite_float("1e308") == 1e308
    with pytest.raises(ValueError, match="out of range"):
        UNTYPED.decode(b"[1e999999]")


def test_what_is_plainly_small_is_within_the_bounds() -> None:
    """By length and brackets alone; text with many brackets has to be looked at."""
    text, pairs = b"x" * 400_000, b"[]," * 1000
    asked = [b'{"a":"' + text + b'"}', b"[" + pairs * 30 + b'"' + text + b'"]', b"[" + b"1," * 499_000 + b"1]"]
    for raw in asked:
        assert is_plainly_small(raw)
        check_json_size(raw)
    assert not is_plainly_small(b"[" + b",".join([b"[]"] * CONTAINERS_MAX) + b"]")
    assert not is_plainly_small(b"1" * (VALUES_MAX + 1))
    assert not is_plainly_small(b'{"a":"' + b"{" * 400_000 + b'"}')


@pytest.mark.parametrize("size", [CONTAINERS_MAX, 2 * CONTAINERS_MAX, 3 * CONTAINERS_MAX, VALUES_MAX])
def test_the_densest_json_that_is_plainly_small_is_within_the_bounds(size: int) -> None:
    """Lists within lists from the start on: as many as are plainly small, and one more than those is not."""
    nested = b"[" * 10 + b"]" * 10 + b","
    most = (size - 3) // len(nested)

    def dense(count: int) -> bytes:
        lists = b"[" + nested * count
        return lists + b" " * (size - len(lists) - 2) + b"1]"

    count = bisect_left(range(most), True, key=lambda count: not is_plainly_small(dense(count + 1)))
    check_json_size(dense(count))
    assert (count == most) == (size <= 2 * CONTAINERS_MAX)
    assert 10 * count > CONTAINERS_MAX // 4


class Unread(bytes):
    """Bytes that nothing is looked for in."""

    def count(self, *_: object) -> int:
        raise AssertionError("it was looked through")


def test_json_that_is_plainly_too_long_is_not_looked_through() -> None:
    """16 MiB take 11 ms of the loop, and a thread looks through them anyway."""
    assert not is_plainly_small(Unread(VALUES_MAX + 1))
    with pytest.raises(AssertionError, match="looked through"):
        is_plainly_small(Unread(VALUES_MAX))
