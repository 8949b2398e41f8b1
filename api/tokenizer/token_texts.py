"""What single tokens are as text and as bytes; tokens that are part of a character have bytes alone.

Half a surrogate pair is no text: an escape in JSON can say one alone, and no UTF-8 can hold it.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer

WORD_BEGINS = "\u2581"
"""How SentencePiece writes a space."""
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
        """Whether it stands for something that is no text."""
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
