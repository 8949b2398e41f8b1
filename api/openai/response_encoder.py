"""`ResponseEncoder`, the protocol of every API's encoder, and the parts that encoders share.

These are `CollectedChoice`, one choice of an answer that is not streamed, and logprobs as OpenAI and vLLM write them.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from itertools import groupby
from math import isnan
from typing import Any, Protocol

from msgspec import Struct, field

from api.openai.request.choice import Choice, ChoiceDelta
from api.server.errors import ApiError
from api.tokenizer.detokenizer import TokenTexts
from core.generation import TokenLogprobs


class CollectedCall(Struct):
    """One call of a tool."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class CollectedChoice(Struct):
    """All that one choice said, for an answer that is not streamed; adding is O(new)."""

    choice: Choice
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, CollectedCall] = field(default_factory=dict)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add(self, choice_delta: ChoiceDelta) -> None:
        """The delta follows what came before it."""
        self.text.append(choice_delta.delta.text)
        self.reasoning.append(choice_delta.delta.reasoning)
        for tool_delta in choice_delta.delta.tools:
            call = self.calls.setdefault(tool_delta.call, CollectedCall())
            call.id, call.name = call.id or tool_delta.id, call.name or tool_delta.name
            call.arguments.append(tool_delta.arguments)
        self.logprobs += choice_delta.logprobs
        self.tokens += choice_delta.tokens

    def mean_logprob(self) -> float:
        """Of the answer's tokens, an echoed prompt's not counted."""
        own = [entry.logprob for entry in self.logprobs[len(self.logprobs) - len(self.tokens) :]]
        return sum(own) / len(own) if own else 0.0


def best_choices(all_of_them: list[CollectedChoice], n: int) -> list[CollectedChoice]:
    """For each prompt the `n` choices with the likeliest tokens on average, in that order."""
    chosen: list[CollectedChoice] = []
    for _, same_prompt in groupby(all_of_them, key=lambda it: it.choice.prompt):
        # sorting keeps the order of equal ones
        chosen += sorted(same_prompt, key=lambda it: -it.mean_logprob())[:n]
    return chosen


class ResponseEncoder(Protocol):
    """Encodes one answer in an API's form: pieces of a stream as bytes, or all of it at its end."""

    def encode_opening(self) -> bytes:
        """The stream's first events, before those of the first delta."""

    def encode_delta(self, choice_delta: ChoiceDelta) -> bytes:
        """The events of one delta; kept for the whole answer too."""

    def encode_text(self, text: str) -> bytes:
        """The same of a delta of the only choice that is nothing but text."""

    def encode_ping(self) -> bytes:
        """An event for a stream in a long pause."""

    def encode_closing(self) -> bytes:
        """The stream's last events, behind those of the last delta."""

    def encode_error(self, error: ApiError) -> bytes:
        """The last event of a stream that cannot go on."""

    def encode_whole(self) -> bytes:
        """The answer that is not streamed, of all deltas that were encoded."""


LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class TokenNames:
    """Names of tokens in one answer: their text, or `token_id:5` if the request asked for ids."""

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
    ranked: dict[int, tuple[float, int | None]] = {entry.token: (entry.logprob, entry.rank or None)}
    ranked |= {token: (logprob, place + 1) for place, (token, logprob) in enumerate(entry.top)}
    return {
        str(token): {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": names.texts.text(token)}
        for token, (logprob, rank) in ranked.items()
    }
