"""Token ids to text, piece by piece, never splitting a character.

`Detokenizer` decodes the last tokens together with some before them, because many tokenizers write a token differently
at the start of a text; a text that ends in U+FFFD waits for the bytes that are missing.

`ByteLevelDetokenizer` is for tokenizers whose tokens stand for bytes of their own, whatever is before them. A look into
a table and Python's own decoder take an eighth of `Detokenizer`'s time, and give the library's text:
`tests/api/tokenizer/test_byte_level_detokenizer.py` holds them to it.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from tokenizers import Tokenizer

from api.tokenizer.token_texts import TokenTexts

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
    def waits(self) -> bool:
        """Whether a character is incomplete."""
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
        """What waited for more; an incomplete character comes as U+FFFD."""
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

    __slots__ = ("_rest", "_token_bytes", "waits")

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._rest = b""
        """The beginning of a character."""
        self.waits = False
        """Whether a character is incomplete."""

    def __repr__(self) -> str:
        return f"<ByteLevelDetokenizer {len(self._rest)} bytes waiting>"

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete; empty while a character is incomplete."""
        known = self._token_bytes
        raw = known[tokens[0]] if len(tokens) == 1 else b"".join(map(known.__getitem__, tokens))
        if not self.waits and raw.isascii():
            return raw.decode("ascii")
        raw = self._rest + raw
        text, taken = utf_8_decode(raw, "replace", False)
        self._rest = raw[taken:]
        self.waits = bool(self._rest)
        return text

    def flush(self) -> str:
        """What waited for more; an incomplete character comes as U+FFFD."""
        text = self._rest.decode(errors="replace")
        self._rest, self.waits = b"", False
        return text
