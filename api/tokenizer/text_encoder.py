"""Text to token ids, exactly as the tokenizers library gives them, and in a fraction of its time where that can be.

1. Special tokens cut a text: what stands between two of them is tokenized without regard to the rest. So the tokens of
   such a segment (a system prompt, an earlier turn) are kept and found again, in any surroundings
   (`segment_cache.py`): the next turn of a talk costs a digest of its text, and the tokenizing of its news.
2. Byte-level BPE cuts a segment into words by a pattern, and a word's tokens depend on nothing but the word. In ASCII
   text the pattern means the same to Python's `re`, so a word that was seen before costs a look into a dictionary.
3. Whether both hold is read from tokenizer.json, and tried on a sample; where they do not, the library does it all.
4. A long segment is tokenized in pieces that end with a word, if the pattern is a known one: so a text that does not
   fit is not tokenized to its end, and the work on a request that is over ends between two pieces. Words are looked up
   in pieces as well: 8 000 new tokens of a tool's output take 1.9 ms, and 8 ms in the library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from tokenizers import Tokenizer

from actors.prompt_cache.digest_store import DIGEST_BYTES, DigestStore
from api.tokenizer.segment_cache import SegmentCache
from api.tokenizer.word_cache import PIECE_BYTES, WordCache, WordCaches, every_word, pieces, word_caches_of
from core.prompt import TOKEN_BYTES, tokens_to_bytes

CHARS_PER_TOKEN = 4
"""About what a prompt in words has; of a text much longer than the context holds, so much is tokenized at first."""
PIECE_CHARS_MIN = 1024
"""A shorter piece costs more to begin than to tokenize."""
CUT_TOKENS_MAX = 256
"""So many tokens more than all of it may have a text that was cut in the middle of a word."""
WORDS_PIECE_CHARS = 8 * 1024
"""Words of so many characters are looked up in one step; other threads wait for it some 0.5 ms."""
NEW_WORDS_MAX = 512
"""After a piece with more new words, of some 1 500, the rest of its segment goes to the library, which is as fast for
new words, and lets other threads run meanwhile."""
WORDS_STEP_CHARS_MAX = 2 * WORDS_PIECE_CHARS
"""A longer piece, which has a word that cannot be cut, goes to the library."""
SAMPLE = "".join(chr(code) for code in range(9, 127)) + (
    " The quick brown fox's 3 jumps, they'LL over 12345 lazy dogs...\n\n\tdef f(x):\r\n    return  x+1  # ok?  \n "
    "don't  I'VE we'd [a]{b}<c> $9.99 100% e-mail@x.org http://a.b/c?d=e&f=g __init__ CamelCaseWords   end   "
)
"""Text on which words and library must agree before words are trusted."""


class TextEncoder:
    """One tokenizer's way from text to tokens; keeps words and segments that it saw, within bounds.

    A tenant has words and segments of its own: else times would tell it the texts of others.
    """

    def __init__(self, tokenizer: Tokenizer, description: Mapping[str, Any], texts: DigestStore | None = None) -> None:
        """`description` is tokenizer.json, parsed. Without a store, the encoder has one of its own."""
        self._tokenizer = tokenizer
        self._name = blake2b(msgspec.json.encode(description), digest_size=DIGEST_BYTES).digest()
        """Of two encoders with one name, each has the tokens of the other."""
        added = description.get("added_tokens") or []
        self._special = {token["content"]: tokens_to_bytes([token["id"]]) for token in added}
        self._cuts = _cuts(added) if _cuts_apart(description, added) else None
        self._words = self._trusted(word_caches_of(tokenizer, description)) if self._cuts is not None else None
        self._in_pieces = self._words is not None and self._words.has_boundaries and self._cut_alike()
        # byte-level BPE keeps every byte of a text in one of its tokens
        self._token_chars_max = max(map(len, tokenizer.get_vocab())) if self._words is not None else 0
        self._segment_cache = SegmentCache(texts or DigestStore())
        self._common = self._segment_cache.scope(self._name, "")
        """The scope where tenants share their texts."""
        self._frame = self._framed()

    def __repr__(self) -> str:
        way = "the library alone" if self._cuts is None else "segments" if self._words is None else "segments and words"
        return f"<TextEncoder by {way}, {self._segment_cache!r}>"

    def tokens_min(self, text: str) -> int:
        """A lower bound of the text's tokens by its length; 0 if the length gives none."""
        # normalizers compose at most four characters (a Greek letter with three marks) into one, which has two bytes
        return (
            (len(text) if text.isascii() else len(text) // 2) // self._token_chars_max if self._token_chars_max else 0
        )

    def encode(
        self,
        text: str,
        tokens_max: int,
        *,
        add_special_tokens: bool,
        proceed: Callable[[], None] = lambda: None,
        tenant: str = "",
    ) -> bytes:
        """The text's token ids as little-endian uint32; of a text with more than `tokens_max`, a beginning that has
        more than that too. `proceed` is called before each call to the library, and raises to end it.

        Texts are kept for the tenant, and looked up among its own.

        WordTooLong for a text with a word that is longer than WORD_BYTES_MAX.
        """
        if self._cuts is None or self._frame is None:
            return self._beginning(text, tokens_max, proceed, add_special_tokens=add_special_tokens)
        parts = [text] if not self._special else self._cuts.split(text)
        found, left = [], tokens_max * TOKEN_BYTES
        cache = self._segment_cache
        scope = cache.scope(self._name, tenant) if tenant else self._common
        for place, part in enumerate(parts):
            if place % 2:  # what the pattern found stands between two texts
                tokens = self._special[part]
            elif not part:
                continue
            else:
                known, key = cache.find(part, scope)
                tokens = self._tokens(part, left // TOKEN_BYTES, proceed, tenant) if known is None else known
                if known is None and len(tokens) <= left:  # else it may be a beginning
                    cache.put(part, tokens, scope, key)
            found.append(tokens)
            left -= len(tokens)
            if left < 0:
                break
        if add_special_tokens:
            before, after = self._frame
            return b"".join((before, *found, after))
        return b"".join(found)

    def _tokens(self, text: str, tokens_max: int, proceed: Callable[[], None], tenant: str) -> bytes:
        """A segment's tokens, or the first of them if they are more than `tokens_max`."""
        words = None if self._words is None else self._words.of(tenant)
        if words is not None and (tokens := _word_tokens(text, words)) is not None:
            return tokens
        if not self._in_pieces:
            return self._beginning(text, tokens_max, proceed, add_special_tokens=False)
        found, left = [], tokens_max * TOKEN_BYTES
        most = PIECE_BYTES if words is None else WORDS_PIECE_CHARS
        for piece in pieces(text, min(most, max(PIECE_CHARS_MIN, CHARS_PER_TOKEN * tokens_max))):
            proceed()
            tokens = None
            if words is not None:
                known = len(words)
                tokens = _word_tokens(piece, words)
                words = words if len(words) - known <= NEW_WORDS_MAX else None
            if tokens is None:
                tokens = tokens_to_bytes(self._library(piece, add_special_tokens=False))
            found.append(tokens)
            left -= len(tokens)
            if left < 0:
                break
        return b"".join(found)

    def _beginning(self, text: str, tokens_max: int, proceed: Callable[[], None], *, add_special_tokens: bool) -> bytes:
        """The same of a text that can be cut nowhere: the library takes some 500 bytes per token, so that a body of
        16 MiB would take gigabytes before it is refused."""
        end = max(PIECE_CHARS_MIN, CHARS_PER_TOKEN * tokens_max)
        while True:
            proceed()
            tokens = tokens_to_bytes(self._library(text[:end], add_special_tokens=add_special_tokens))
            if end >= len(text) or len(tokens) > (tokens_max + CUT_TOKENS_MAX) * TOKEN_BYTES:
                return tokens
            end *= 2

    def _library(self, text: str, add_special_tokens: bool) -> list[int]:
        # encode() holds the interpreter's lock while it works, encode_batch() does not
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def _trusted(self, words: WordCaches | None) -> WordCaches | None:
        """The words, if they agree with the library on the sample."""
        sample = tokens_to_bytes(self._library(SAMPLE, add_special_tokens=False))
        return None if words is None or words.of("").tokens(SAMPLE) != sample else words

    def _cut_alike(self) -> bool:
        """True if a sample that is cut at each boundary has the tokens of the whole."""
        whole = self._library(SAMPLE, add_special_tokens=False)
        return whole == [
            token for word in every_word(SAMPLE) for token in self._library(word, add_special_tokens=False)
        ]

    def _framed(self) -> tuple[bytes, bytes] | None:
        """The tokens that the tokenizer adds around a prompt of plain text; None if it changes more than that."""
        bare = self._library("a", add_special_tokens=False)
        whole = self._library("a", add_special_tokens=True)
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return tokens_to_bytes(whole[:start]), tokens_to_bytes(whole[start + len(bare) :])
        return None


def _word_tokens(text: str, words: WordCache) -> bytes | None:
    """The tokens of a short ASCII text by its words; None of any other."""
    return words.tokens(text) if len(text) <= WORDS_STEP_CHARS_MAX and text.isascii() else None


def _cuts_apart(description: Mapping[str, Any], added: list[dict[str, Any]]) -> bool:
    """True if added tokens cut a text into segments that are tokenized without regard to each other."""
    plain = all(not (token["single_word"] or token["lstrip"] or token["rstrip"]) for token in added)
    raw = description.get("normalizer") is None or not any(token["normalized"] for token in added)
    # the only steps that look at where in the whole text a segment stands
    return plain and raw and not any(part.get("prepend_scheme") == "first" for part in _parts(description))


def _parts(description: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    pre_tokenizer = description.get("pre_tokenizer") or {}
    return [pre_tokenizer, *pre_tokenizer.get("pretokenizers", ())]


def _cuts(added: list[dict[str, Any]]) -> re.Pattern[str]:
    """Matches any added token, the longest where several begin; as the library finds them."""
    names = sorted((token["content"] for token in added), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, names)) + ")")
