"""Words of byte-level BPE: the cache of their tokens, and the boundaries at which a long text may be cut.

Byte-level BPE cuts a text into words by a pattern, and merges nothing across two of them. `WordCache` looks each word's
tokens up once and then remembers them: of a chat of 600 tokens, whose front end takes some 400 us, it saves 94 us.
A word that is looked up takes 2 us longer, so a tenant that must not know the texts of others has words of its own.

Under the usual patterns (those of `KNOWN_ALTERNATIVES`) a word ends wherever `_BOUNDARY` matches. So a long text is
tokenized piece by piece: each call to the library is short, and a request that is over ends between two of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any

from tokenizers import Tokenizer

from core.prompt import tokens_to_bytes

WORDS_MAX = 65_536
"""Words remembered, of all tenants; then those of the tenant with most are forgotten, and those in use come back."""
TENANTS_MAX = 1024
"""Tenants with words of their own; then the first of them has none any more."""
WORD_CHARS_MAX = 64
"""A longer one is not remembered."""
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern by which `ByteLevel` itself cuts words (tokenizers, pre_tokenizers/byte_level.rs)."""
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
KNOWN_ALTERNATIVES = {
    *GPT2.split("|"), _CONTRACTIONS, *_LETTERS, *(letters + _CONTRACTIONS + "?" for letters in _LETTERS),
    r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}", r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+",
}  # fmt: skip
"""Alternatives of patterns under which a word ends wherever `_BOUNDARY` matches: none of them goes on from another
character into a single space, and none looks further than its match, but for white space."""
PRINTABLE = range(33, 127)
_CATEGORY = re.compile(r"\\p\{(\w+)\}")
_ALTERNATIVE = re.compile(r"\|(?![^(]*\))")
"""Between two alternatives, in no parentheses."""


class WordCache(dict[str, bytes]):
    """Word to its tokens, found on the first use."""

    def __init__(
        self, tokenizer: Tokenizer, pattern: re.Pattern[str], keep: Callable[[WordCache, str, bytes], None]
    ) -> None:
        """`keep` may put a word and its tokens into the cache."""
        super().__init__()
        self._model = tokenizer.model
        self._find = pattern.findall
        self._keep = keep

    def tokens(self, text: str) -> bytes | None:
        """An ASCII text's tokens; None if the pattern leaves something of it out."""
        words = self._find(text)
        if len("".join(words)) != len(text):
            return None
        return b"".join(map(self.__getitem__, words))

    def __missing__(self, word: str) -> bytes:
        tokens = tokens_to_bytes([token.id for token in self._model.tokenize(word.translate(_BYTE_CHARS))])
        if len(word) <= WORD_CHARS_MAX:
            self._keep(self, word, tokens)
        return tokens


class WordCaches:
    """The words of each tenant, within one bound. Threads may share them."""

    def __init__(self, tokenizer: Tokenizer, pattern: re.Pattern[str], *, has_boundaries: bool) -> None:
        self._tokenizer = tokenizer
        self._pattern = pattern
        self.has_boundaries = has_boundaries
        """All of the pattern's alternatives are known: `pieces` may cut a text where `_BOUNDARY` matches."""
        self._caches: dict[str, WordCache] = {}
        self._count = 0
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<WordCaches {self._count} words of {len(self._caches)} tenants>"

    def of(self, tenant: str) -> WordCache:
        """The words of the tenant."""
        return self._caches.get(tenant) or self._made(tenant)

    def _made(self, tenant: str) -> WordCache:
        with self._lock:
            if tenant not in self._caches:
                while len(self._caches) >= TENANTS_MAX:
                    self._count -= len(self._caches.pop(next(iter(self._caches))))
                self._caches[tenant] = WordCache(self._tokenizer, self._pattern, self._keep)
            return self._caches[tenant]

    def _keep(self, cache: WordCache, word: str, tokens: bytes) -> None:
        with self._lock:
            if self._count >= WORDS_MAX:
                max(self._caches.values(), key=len).clear()
                self._count = sum(map(len, self._caches.values()))
            self._count += word not in cache
            cache[word] = tokens


def word_caches_of(tokenizer: Tokenizer, description: Mapping[str, Any]) -> WordCaches | None:
    """The words of a tokenizer that is byte-level BPE with a pattern that `re` knows; None for any other."""
    pattern = _pattern(description.get("pre_tokenizer") or {})
    model = description["model"]
    if pattern is None or model.get("type") != "BPE" or model.get("dropout") or not _is_identity(description):
        return None
    compiled = _compiled(pattern)
    return (
        None
        if compiled is None
        else WordCaches(tokenizer, compiled, has_boundaries=set(_ALTERNATIVE.split(pattern)) <= KNOWN_ALTERNATIVES)
    )


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
    """Byte-level BPE's letters for ASCII: codes that are not printable are shifted past 255, in order."""
    hidden = [code for code in range(256) if code not in PRINTABLE and not 161 <= code <= 172 and code < 174]
    return {code: 256 + place for place, code in enumerate(hidden) if code < 128}


_BYTE_CHARS = _byte_chars()
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
