"""Logprobs as the answers of OpenAI and vLLM write them: of chat, of completions, and of prompts."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from math import isnan
from typing import Any

from api.tokenizer.token_texts import TokenTexts
from core.generation import TokenLogprobs

LOWEST = -9999.0
"""What stands for minus infinity, which JSON does not have."""


class TokenNames:
    """How tokens are named in one answer: by their text, or `token_id:5` if that was asked for."""

    def __init__(self, texts: TokenTexts, *, as_ids: bool) -> None:
        self.texts = texts
        self.as_ids = as_ids

    def __repr__(self) -> str:
        return f"<TokenNames {'ids' if self.as_ids else 'texts'}>"

    def name(self, token: int) -> str:
        """Part of a character is `\\x..`, as OpenAI's chats write it."""
        return self._named(token, "")

    def key(self, token: int) -> str:
        """The same, but part of a character is `bytes:\\x..`, as OpenAI's completions write it."""
        return self._named(token, "bytes:")

    def _named(self, token: int, bytes_begin: str) -> str:
        if self.as_ids:
            return f"token_id:{token}"
        raw = self.texts.raw(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return bytes_begin + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(entries: Sequence[TokenLogprobs], names: TokenNames, top: int) -> dict[str, Any]:
    """The `logprobs` of a chat's choice."""
    content = [
        {
            **_entry(entry.token, entry.logprob, names),
            "top_logprobs": [_entry(token, logprob, names) for token, logprob in entry.top[:top]],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _entry(token: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    return {"token": names.name(token), "logprob": max(logprob, LOWEST), "bytes": list(names.texts.raw(token))}


class CompletionLogprobs:
    """The `logprobs` of one choice of completions, piece by piece: offsets go on from piece to piece."""

    def __init__(self, names: TokenNames, top: int, *, special_tokens_shown: bool) -> None:
        self._names = names
        self._top = top
        self._special_tokens_shown = special_tokens_shown
        self._offset = 0
        # a character's place is that of its first byte, whichever tokens the others are in
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def __repr__(self) -> str:
        return f"<CompletionLogprobs at {self._offset}>"

    def piece(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """OpenAI's four lists for the next tokens."""
        return {
            "text_offset": [self._passed(entry.token) for entry in entries],
            "token_logprobs": [None if isnan(entry.logprob) else max(entry.logprob, LOWEST) for entry in entries],
            "tokens": [self._names.key(entry.token) for entry in entries],
            "top_logprobs": [self._likeliest(entry) for entry in entries],
        }

    def _passed(self, token: int) -> int:
        offset = self._offset
        if self._special_tokens_shown or not self._names.texts.is_special(token):
            self._offset += len(self._decoder.decode(self._names.texts.raw(token)))
        return offset

    def _likeliest(self, entry: TokenLogprobs) -> dict[str, float] | None:
        """The chosen token is always there, so it may be one more than was asked for."""
        if isnan(entry.logprob):
            return None
        shown = {**dict(entry.top[: self._top]), entry.token: entry.logprob}
        return {self._names.key(token): max(logprob, LOWEST) for token, logprob in shown.items()}


def prompt_logprobs(entries: Sequence[TokenLogprobs | None], names: TokenNames) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: for each token of the prompt but the first, its own and the likeliest."""
    return [None if entry is None else _ranked(entry, names) for entry in entries]


def _ranked(entry: TokenLogprobs, names: TokenNames) -> dict[str, Any]:
    told: dict[int, tuple[float, int | None]] = {entry.token: (entry.logprob, entry.rank or None)}
    told |= {token: (logprob, place + 1) for place, (token, logprob) in enumerate(entry.top)}
    return {
        str(token): {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": names.texts.text(token)}
        for token, (logprob, rank) in told.items()
    }
