"""Word boundaries: where a text may be cut so that its pieces have the same tokens as the whole.

Byte-level BPE cuts a text into words by a pattern, and merges nothing across two of them. Under the usual patterns
(those of `word_cache.CUT_BY_SPACES`) a word ends wherever `_BOUNDARY` matches. So a long text is tokenized piece by
piece: each call to the library is short, and a request that is over ends between two of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE_BYTES = 32 * 1024
"""A piece ends at the first boundary behind so many bytes of UTF-8."""
WORD_BYTES_MAX = 96 * 1024
"""Longest text without a boundary, in UTF-8. The library takes up to 0.35 us for a byte of one word and cannot be
stopped meanwhile; a piece with such a word at its end takes it 45 ms."""
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
    """More than WORD_BYTES_MAX bytes without a boundary."""


def pieces(text: str, piece_bytes: int = PIECE_BYTES) -> Iterator[str]:
    """The text, cut at word boundaries, each piece some `piece_bytes` long in UTF-8. WordTooLong once such a word is
    reached. O(characters); a piece is looked for when it is asked for."""
    start = 0
    while start < len(text):
        behind = start + (piece_bytes if text[start : start + piece_bytes].isascii() else -(-piece_bytes // 3))
        end = _word_end(text, behind)
        yield text[start:end]
        start = end


def _word_end(text: str, behind: int) -> int:
    """The first boundary there, or the end of the text."""
    last = min(len(text), behind + WORD_BYTES_MAX + 1)
    end = last
    for start in range(behind, last, SEARCHED_AT_ONCE):
        # a boundary lies before the character that tells it
        found = _BOUNDARY.search(text, start, min(last, start + SEARCHED_AT_ONCE + 1))
        if found is not None:
            end = found.start()
            break
    if len(text[behind:end].encode()) > WORD_BYTES_MAX:
        raise WordTooLong
    return end


def every_word(text: str) -> list[str]:
    """The text, cut at each boundary."""
    return _BOUNDARY.split(text)
