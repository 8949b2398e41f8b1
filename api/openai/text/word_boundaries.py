"""Word boundaries: where a text may be cut so that its pieces have the same tokens as the whole.

Byte-level BPE cuts a text into words by a pattern, and merges nothing across two of them. Under the usual patterns
(those of `words.CUT_BY_SPACES`) a word ends wherever `_BOUNDARY` matches. So a long text is
tokenized piece by piece: each call to the library is short, and a request that is over ends between two of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE_CHARS = 32 * 1024
"""A piece ends at the first boundary behind so many characters; they take the library 10 ms, and at most 40."""
WORD_CHARS_MAX = 256 * 1024
"""Longest text without a boundary: the library takes 0.4 us for a character of one word, and holds a core meanwhile."""
SEARCHED_AT_ONCE = 8 * 1024
"""Characters; to search them takes 1 ms, and holds up all other threads."""

_BOUNDARY = re.compile(
    r"(?<=\S)(?=[ \t])"  # white space that is no line break is part of the word behind it, or of none
    r"|(?<=[\r\n])(?=[A-Za-z0-9])"  # a line break never is
    r"|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"
    r"|(?<=[A-Za-z0-9\u0400-\u0481\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3])"
    r"(?=[,.;:!?()\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
    # letters and digits, of blocks that every version of Unicode has, end before a mark; `'` begins a contraction
)


class WordTooLong(ValueError):
    """More than WORD_CHARS_MAX characters without a boundary."""


def pieces(text: str, piece_chars: int = PIECE_CHARS) -> Iterator[str]:
    """The text, cut at word boundaries, each piece some `piece_chars` characters long. WordTooLong once such a word is
    reached. O(characters); a piece is looked for when it is asked for."""
    start, end = 0, len(text)
    while end - start > piece_chars:
        behind = start + piece_chars
        cut = _boundary(text, behind)
        if cut is None:
            if end - behind > WORD_CHARS_MAX:
                raise WordTooLong
            break
        yield text[start:cut]
        start = cut
    yield text[start:]


def _boundary(text: str, behind: int) -> int | None:
    """The first one there, if the word before it is not too long."""
    end = min(len(text), behind + WORD_CHARS_MAX + 1)
    for start in range(behind, end, SEARCHED_AT_ONCE):
        # a boundary lies before the character that tells it
        found = _BOUNDARY.search(text, start, min(end, start + SEARCHED_AT_ONCE + 1))
        if found is not None:
            return found.start()
    return None


def every_word(text: str) -> list[str]:
    """The text, cut at each boundary."""
    return _BOUNDARY.split(text)
