"""Quantities as text."""

from __future__ import annotations

import pytest

from api.cli.quantities import bytes_text, count_text, ms_text, number_text, percent_text, plural, seconds_text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 requests"), (1, "1 request"), (2, "2 requests"), (1_234, "1,234 requests")],
)
def test_a_count_has_its_noun(count: int, text: str) -> None:
    """Singular for one alone."""
    assert count_text(count, "request") == text


def test_words_agree_with_their_count() -> None:
    """Nouns that end in s, irregular ones, and verbs; an unknown count is many."""
    assert (plural(1, "witness"), plural(2, "witness")) == ("witness", "witnesses")
    assert (plural(1, "copy", "copies"), plural(3, "copy", "copies")) == ("copy", "copies")
    assert (plural(1, "is", "are"), plural(0, "is", "are")) == ("is", "are")
    assert plural(None, "token") == "tokens"


def test_sizes_and_times_have_three_digits_that_count() -> None:
    """In the largest unit that fits; a question mark for what is not known."""
    assert [bytes_text(size) for size in (812, 2_048, 25_270_682, None)] == ["812 B", "2 KiB", "24.1 MiB", "?"]
    assert [seconds_text(s) for s in (0.352, 12, 12_600, 604_800, None)] == ["0.35s", "12s", "3.5h", "7d", "?"]
    assert [number_text(number) for number in (1_234.4, None)] == ["1,234", "?"]


def test_shares_and_milliseconds() -> None:
    """With the digits asked for; milliseconds from a hundred on have none."""
    assert (percent_text(0.1234), percent_text(0.1234, 2)) == ("12.3 %", "12.34 %")
    assert (ms_text(1.26), ms_text(1.255, 2), ms_text(1_234.4)) == ("1.3 ms", "1.25 ms", "1,234 ms")
