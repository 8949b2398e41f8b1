"""Tokens of one generation, each kept until its text has left: so logprobs and ids never run ahead of the text."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from core.generation import TokenLogprobs


class _Entry(NamedTuple):
    token: int
    logprobs: TokenLogprobs | None
    end: int
    """The answer's characters up to and including this token's."""


class Ledger:
    """Costs O(1) per token. A token whose character is incomplete waits for the token that completes it."""

    def __init__(self) -> None:
        self._incomplete: list[tuple[int, TokenLogprobs | None]] = []
        self._waiting: deque[_Entry] = deque()
        self._written = 0
        self._left = 0

    def __repr__(self) -> str:
        return f"<Ledger {len(self._incomplete) + len(self._waiting)} tokens waiting>"

    def add(self, token: int, logprobs: TokenLogprobs | None, piece: str, *, incomplete: bool) -> None:
        """The token came, and `piece` is the text that it completed: it may do so and leave another one incomplete,
        where what was to be a character turned out to be none."""
        self._incomplete.append((token, logprobs))
        if incomplete:
            self._written += len(piece)
        else:
            self.complete(piece)

    def complete(self, piece: str) -> None:
        """What was incomplete has become this text."""
        self._written += len(piece)
        self._waiting += [_Entry(token, logprobs, self._written) for token, logprobs in self._incomplete]
        self._incomplete.clear()

    def left(self, text: str) -> None:
        """This text has left."""
        self._left += len(text)

    def take(self, *, everything: bool) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]:
        """The tokens whose text has left, or all of them, and their logprobs; they are not kept."""
        if everything:
            self.complete("")
        taken: list[_Entry] = []
        while self._waiting and (everything or self._waiting[0].end <= self._left):
            taken.append(self._waiting.popleft())
        tokens = tuple([entry.token for entry in taken])
        return tokens, tuple([entry.logprobs for entry in taken if entry.logprobs is not None])
