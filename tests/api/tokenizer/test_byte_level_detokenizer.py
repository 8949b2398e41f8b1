"""Text by bytes against the library's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from api.tokenizer.detokenizer import ByteLevelDetokenizer, TokenBytes, TokenTexts
from tests.api.tokenizer.test_text_encoder import SPECIAL, TOKENIZERS

GPT2: Tokenizer = TOKENIZERS["gpt2"]
TEXTS = TokenTexts(GPT2)
VOCABULARY = GPT2.get_vocab_size()


def pieces_of(tokens: list[int], step: int, *, skip_special_tokens: bool) -> list[str]:
    """What is said of them, so many at a time."""
    text = ByteLevelDetokenizer(TokenBytes(TEXTS, skip_special_tokens=skip_special_tokens))
    pieces = [text.push(tokens[start : start + step]) for start in range(0, len(tokens), step)]
    assert text.is_incomplete or not text.flush()
    return [*pieces, text.flush()]


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=40), st.integers(1, 7), st.booleans())
def test_any_tokens_are_the_librarys_text(tokens: list[int], step: int, skip_special_tokens: bool) -> None:
    """Also those that are no text: as many replacement characters at the same places."""
    expected = GPT2.decode(tokens, skip_special_tokens=skip_special_tokens)
    assert "".join(pieces_of(tokens, step, skip_special_tokens=skip_special_tokens)) == expected


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=40), st.integers(1, 5))
def test_no_piece_ends_within_a_character(text: str, step: int) -> None:
    """And together they are the text."""
    tokens = GPT2.encode(text, add_special_tokens=False).ids
    pieces = pieces_of(tokens, step, skip_special_tokens=False)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_special_tokens_are_text_only_where_asked_for(skip_special_tokens: bool) -> None:
    """And an id that no token has is none."""
    special = GPT2.token_to_id(SPECIAL[0])
    assert special is not None
    said = "".join(pieces_of([special, VOCABULARY + 7], 1, skip_special_tokens=skip_special_tokens))
    assert said == ("" if skip_special_tokens else SPECIAL[0])
