"""Word cache: byte-level BPE of ASCII text, each word's tokens looked up once and then remembered.

A pattern says where words end. Under the usual ones a word begins at every single space between two characters that
are none, whatever stands around: such a text is cut at its spaces, which is four times as fast as to match it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Tokenizer

from core.prompt import tokens_to_bytes

WORDS_MAX = 65_536
"""Words remembered; then all are forgotten, and those in use come back."""
WORD_CHARS_MAX = 64
"""A longer one is not remembered."""
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How `ByteLevel` cuts words when it does so itself (tokenizers, pre_tokenizers/byte_level.rs)."""
IDENTITIES = ("NFC", "NFD", "NFKC", "NFKD")
"""Normalizers that leave ASCII as it is."""
CLASSES = {
    "L": "A-Za-z", "Lu": "A-Z", "Ll": "a-z", "N": "0-9", "Nd": "0-9",
    "Lt": "", "Lm": "", "Lo": "", "M": "", "Nl": "", "No": "",
}  # fmt: skip
"""Unicode's categories as far as they lie in ASCII."""
_LETTERS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CUT_BY_SPACES = {
    *GPT2.split("|"), _CONTRACTIONS, *_LETTERS, *(letters + _CONTRACTIONS + "?" for letters in _LETTERS),
    r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}", r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+",
}  # fmt: skip
"""Alternatives that match a space only as their first character or among nothing but white space, and look no further
than what they match, but for white space: no match goes on from another character into a single space."""
PRINTABLE = range(33, 127)
_CATEGORY = re.compile(r"\\p\{(\w+)\}")
_ALTERNATIVE = re.compile(r"\|(?![^(]*\))")
"""Between two alternatives, in no parentheses."""


class BoundedCache(dict[str, bytes]):
    """Words to tokens, within a bound."""

    def kept(self, word: str, tokens: bytes) -> bytes:
        """The tokens, which are found here from now on, unless the word is a long one."""
        if len(self) >= WORDS_MAX:
            self.clear()
        if len(word) <= WORD_CHARS_MAX:
            self[word] = tokens
        return tokens


class WordCache(BoundedCache):
    """Word to its tokens, found on the first use."""

    def __init__(self, tokenizer: Tokenizer, pattern: re.Pattern[str], *, cut_by_spaces: bool) -> None:
        super().__init__()
        self._model = tokenizer.model
        self._find = pattern.findall
        self._space_split = SpaceSplitCache(self.matched) if cut_by_spaces else None
        self.cut_by_spaces = cut_by_spaces
        """Whether all of the pattern's alternatives are known."""

    def tokens(self, text: str) -> bytes | None:
        """An ASCII text's tokens; None if the pattern leaves something of it out."""
        found = None if self._space_split is None else self._space_split.tokens(text)
        return self.matched(text) if found is None else found

    def matched(self, text: str) -> bytes | None:
        """The same, by the pattern alone."""
        words = self._find(text)
        if len("".join(words)) != len(text):
            return None
        return b"".join(map(self.__getitem__, words))

    def __missing__(self, word: str) -> bytes:
        found = tokens_to_bytes([token.id for token in self._model.tokenize(word.translate(_BYTE_CHARS))])
        return self.kept(word, found)


class SpaceSplitCache(BoundedCache):
    """What stands between two spaces to its tokens, with the space before it."""

    def __init__(self, matched: Callable[[str], bytes | None]) -> None:
        super().__init__()
        self._matched = matched

    def tokens(self, text: str) -> bytes | None:
        """The text's tokens; None if it is to be matched as a whole, since a space has white space beside it."""
        first, *others = text.split(" ")
        if not others:
            return None
        last = others.pop()
        if not (first and last) or first[-1].isspace() or last[0].isspace():
            return None
        try:
            end = self._found(" " + last) if last[-1].isspace() else self[last]
            return b"".join((self._found(first), *map(self.__getitem__, others), end))
        except KeyError:
            return None

    def _found(self, text: str) -> bytes:
        found = self._matched(text)
        if found is None:
            raise KeyError(text)
        return found

    def __missing__(self, word: str) -> bytes:
        if not word or word[0].isspace() or word[-1].isspace():
            raise KeyError(word)
        found = self._found(" " + word)
        return self.kept(word, found)


def word_cache_of(tokenizer: Tokenizer, description: Mapping[str, Any]) -> WordCache | None:
    """The words of a tokenizer that is byte-level BPE with a pattern that `re` knows; None for any other."""
    pattern = _pattern(description.get("pre_tokenizer") or {})
    model = description["model"]
    if pattern is None or model.get("type") != "BPE" or model.get("dropout") or not _is_identity(description):
        return None
    compiled = _compiled(pattern)
    return None if compiled is None else WordCache(tokenizer, compiled, cut_by_spaces=_is_cut_by_spaces(pattern))


def _pattern(pre_tokenizer: Mapping[str, Any]) -> str | None:
    """The library's pattern for words."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return GPT2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
        case _:
            return None


def _is_identity(description: Mapping[str, Any]) -> bool:
    normalizer = description.get("normalizer") or {"type": "Sequence", "normalizers": []}
    parts = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    return all(part.get("type") in IDENTITIES for part in parts)


def _is_cut_by_spaces(pattern: str) -> bool:
    return set(_ALTERNATIVE.split(pattern)) <= CUT_BY_SPACES


def _compiled(pattern: str) -> re.Pattern[str] | None:
    """The pattern for ASCII text; None if Python does not know all of it."""
    out, in_class = [], False
    for piece in re.split(r"(\\p\{\w+\}|\\.|\[\^?|\])", pattern):
        category = _CATEGORY.fullmatch(piece)
        if category is not None:
            if category[1] not in CLASSES or not (in_class or CLASSES[category[1]]):
                return None
            out.append(CLASSES[category[1]] if in_class else f"[{CLASSES[category[1]]}]")
            continue
        in_class = (piece.startswith("[") or in_class) and piece != "]"
        out.append(piece)
    try:
        compiled = re.compile("".join(out), re.ASCII)
    except re.error:
        return None
    return compiled if compiled.groups == 0 else None


def _byte_chars() -> dict[int, int]:
    """How byte-level BPE writes ASCII: what is not printable is shifted past 255, in order."""
    hidden = [code for code in range(256) if code not in PRINTABLE and not 161 <= code <= 172 and code < 174]
    return {code: 256 + place for place, code in enumerate(hidden) if code < 128}


_BYTE_CHARS = _byte_chars()
