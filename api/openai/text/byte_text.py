"""Tokens to text where each stands for bytes of its own, whatever is before it: byte-level tokenizers.

A look into a table and Python's own decoder take an eighth of `Detokenizer`'s time, and give the library's text:
`tests/api/test_byte_text.py` holds them to it.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from api.openai.text.token_texts import TokenTexts


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


class ByteText:
    """One generation's text; as `Detokenizer`, but what can be no character is said at once."""

    __slots__ = ("_rest", "_token_bytes", "waits")

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._rest = b""
        """The beginning of a character."""
        self.waits = False
        """Whether a character is incomplete."""

    def __repr__(self) -> str:
        return f"<ByteText {len(self._rest)} bytes waiting>"

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
