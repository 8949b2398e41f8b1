"""Stop strings in a text that comes in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from api.tokenizer.detokenizer import StopStrings

letters = st.text("ab", max_size=12)


def push_all(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    under_test = StopStrings(stops)
    text = "".join(under_test.push(piece) for piece in pieces)
    return text + ("" if under_test.found else under_test.flush()), under_test.found


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=4), st.lists(letters, max_size=6))
def test_how_a_text_is_cut_into_pieces_changes_nothing(stops: list[str], pieces: list[str]) -> None:
    """Any cutting gives the same text and the same stop as one letter at a time."""
    assert push_all(stops, pieces) == push_all(stops, list("".join(pieces)))


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=4), letters)
def test_no_stop_string_ever_leaves(stops: list[str], text: str) -> None:
    """What leaves is a beginning of the text without any stop string in it, all of it if none is there."""
    left, found = push_all(stops, [text])
    assert text.startswith(left)
    assert not any(stop in left for stop in stops)
    assert (found is None) == (left == text)


def test_what_cannot_become_a_stop_string_leaves_at_once() -> None:
    """Only a possible beginning is held back."""
    stops = StopStrings(["<end>"])
    assert [stops.push(piece) for piece in ("one", " <", "e", "x", "<end", ">more")] == ["one", " ", "", "<ex", "", ""]
    assert stops.found == "<end>"
