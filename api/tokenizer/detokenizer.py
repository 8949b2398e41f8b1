"""Token ids to text, piece by piece, never splitting a character.

`Detokenizer` decodes the last tokens together with some before them, because many tokenizers write a token differently
at the start of a text; a text that ends in U+FFFD is_incomplete for the bytes that are missing.

`ByteLevelDetokenizer` is for tokenizers whose tokens stand for bytes of their own, in any context. A look into
a table and Python's own decoder take an eighth of `Detokenizer`'s time, and give the library's text:
`tests/api/tokenizer/test_byte_level_detokenizer.py` holds them to it.

`TokenTexts` is the text of single tokens. `StopStrings` holds back the text that may still become a stop string.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from collections.abc import Sequence

from tokenizers import Tokenizer

WORD_BEGINS = "\u2581"
"""SentencePiece's sign for a space."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class TokenTexts:
    """Every token of one model; some 2 us each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token: text.content for token, text in added.items()}
        self._special = frozenset(token for token, text in added.items() if text.special)
        # a decoder's state is its JSON: it may be one of a sequence
        state = b"" if tokenizer.decoder is None else bytes(tokenizer.decoder.__getstate__())
        self._bytes = _byte_chars() if b'"ByteLevel"' in state else None

    def __repr__(self) -> str:
        return f"<TokenTexts, {'byte-level' if self._bytes else 'pieces'}, {len(self._added)} added>"

    def is_special(self, token: int) -> bool:
        """True if the token stands for no text."""
        return token in self._special

    def raw(self, token: int) -> bytes:
        """Its bytes, empty for an id without a token."""
        added = self._added.get(token)
        if added is not None:
            return added.encode()
        text = self._tokenizer.id_to_token(token) or ""
        if self._bytes is not None and all(char in self._bytes for char in text):
            return bytes([self._bytes[char] for char in text])
        if single := _BYTE.fullmatch(text):
            return bytes([int(single[1], 16)])
        return text.replace(WORD_BEGINS, " ").encode()

    def text(self, token: int) -> str:
        """Its text; bytes that are no whole character are U+FFFD, as vLLM writes them."""
        return self.raw(token).decode(errors="replace")

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        """The text of many tokens, each seen in the place where it stands."""
        return self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)


def _byte_chars() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others from U+0100 on."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + place): byte for place, byte in enumerate(others)}


_LONE = re.compile("[\ud800-\udfff]")


def replace_lone_surrogates(text: str) -> str:
    """The text with U+FFFD for each of them: it can be tokenized, and sent."""
    return _LONE.sub("\ufffd", text)


HOLD_TOKENS_MAX = 16
"""So many tokens wait for the rest of a character at most; a character has four bytes, so then it is no text."""
INCOMPLETE = "\ufffd"


class Detokenizer:
    """One generation's text."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._context: list[int] = []
        self._context_text = ""
        self._waiting: list[int] = []

    def __repr__(self) -> str:
        return f"<Detokenizer {len(self._waiting)} tokens waiting>"

    @property
    def is_incomplete(self) -> bool:
        """True while a character is incomplete."""
        return bool(self._waiting)

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete; empty while a character is incomplete."""
        text = self._decode(self._context + self._waiting + list(tokens))
        if text.endswith(INCOMPLETE):
            # one by one, so that whole characters before the incomplete one leave now
            return "".join([self._push_one(token) for token in tokens])
        self._waiting += tokens
        return self._taken(text)

    def _push_one(self, token: int) -> str:
        self._waiting.append(token)
        text = self._decode(self._context + self._waiting)
        held = text.endswith(INCOMPLETE) and len(self._waiting) < HOLD_TOKENS_MAX
        return "" if held else self._taken(text)

    def flush(self) -> str:
        """The text of the waiting tokens; an incomplete character comes as U+FFFD."""
        return self._taken(self._decode(self._context + self._waiting)) if self._waiting else ""

    def _taken(self, text: str) -> str:
        new = text[len(self._context_text) :]
        # tokens without text (special ones, a first space) still shape the text of the next
        self._context = self._waiting if new else (self._context + self._waiting)[-HOLD_TOKENS_MAX:]
        self._context_text = self._decode(self._context)
        self._waiting = []
        return new

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=self._skip_special_tokens)


class TokenBytes(dict[int, bytes]):
    """Token to its bytes, looked up in the library once. With `skip_special_tokens` those have none."""

    def __init__(self, texts: TokenTexts, *, skip_special_tokens: bool) -> None:
        super().__init__()
        self._texts = texts
        self._skip_special_tokens = skip_special_tokens

    def __missing__(self, token: int) -> bytes:
        skipped = self._skip_special_tokens and self._texts.is_special(token)
        found = self[token] = b"" if skipped else self._texts.raw(token)
        return found


class ByteLevelDetokenizer:
    """One generation's text; as `Detokenizer`, but what can be no character is said at once."""

    __slots__ = ("_rest", "_token_bytes", "is_incomplete")

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._rest = b""
        """The beginning of a character."""
        self.is_incomplete = False
        """True while a character is incomplete."""

    def __repr__(self) -> str:
        return f"<ByteLevelDetokenizer {len(self._rest)} bytes waiting>"

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete; empty while a character is incomplete."""
        known = self._token_bytes
        raw = known[tokens[0]] if len(tokens) == 1 else b"".join(map(known.__getitem__, tokens))
        if not self.is_incomplete and raw.isascii():
            return raw.decode("ascii")
        raw = self._rest + raw
        text, taken = utf_8_decode(raw, "replace", False)
        self._rest = raw[taken:]
        self.is_incomplete = bool(self._rest)
        return text

    def flush(self) -> str:
        """The text of the waiting tokens; an incomplete character comes as U+FFFD."""
        text = self._rest.decode(errors="replace")
        self._rest, self.is_incomplete = b"", False
        return text


class StopStrings:
    """Pushes pieces in, takes text out; `found` is the stop string that ended it, None so far.

    `included` says that the stop string is part of the answer.
    """

    def __init__(self, stops: Sequence[str], *, included: bool = False) -> None:
        self._stops = tuple(stops)
        self.has_any = bool(self._stops)
        """True if there is a stop string."""
        self.included = included
        self._held = ""
        self.found: str | None = None

    def __repr__(self) -> str:
        found = self.found is not None
        return f"<StopStrings {len(self._stops)} strings, {len(self._held)} characters held, found {found}>"

    def push(self, piece: str) -> str:
        """The text that is now certain to stand before any stop string; nothing after one was found."""
        if not self._stops:
            return piece
        if self.found is not None:
            return ""
        text = self._held + piece
        start, self.found = _first(text, self._stops)
        if self.found is not None:
            self._held = ""
            return text[: start + len(self.found)] if self.included else text[:start]
        end = len(text) - _open_end(text, self._stops)
        self._held = text[end:]
        return text[:end]

    def flush(self) -> str:
        """The text held back; nothing more will come."""
        held, self._held = self._held, ""
        return held


def _first(text: str, stops: Sequence[str]) -> tuple[int, str | None]:
    """The position of the stop string that ends first, and that string."""
    found = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0]
    if not found:
        return len(text), None
    _, start, stop = min(found)
    return start, stop


def _open_end(text: str, stops: Sequence[str]) -> int:
    """The number of characters at the end that may be the beginning of a stop string."""
    return max(_overlap(text, stop) for stop in stops)


def _overlap(text: str, stop: str) -> int:
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start = text.find(stop[0], start + 1)
    return 0
