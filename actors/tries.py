"""Tries: how often a request may be tried on another worker; bounded, so that one request cannot end a fleet."""

from __future__ import annotations

from core.models import GenerationFailed, NoWorkers

ATTEMPTS_MAX = 3
"""Workers in a row that a request is tried on before its first token."""
BEGUN_ATTEMPTS_MAX = 5
"""Workers in a row, the one that broke off first included, without a new token of an answer that was begun: more than
before the first token, because its client loses more."""
LEAVING_MAX = 8
"""Workers in a row, without a new token, that left in good order: these were not harmed, and cost next to no time."""
LOST_MAX = 32
"""Workers that one answer may lose, whatever it got from each: one that ends its engine every few tokens is stopped."""


class Tries:
    """One request's."""

    def __init__(self) -> None:
        self._told = 0
        self._broken = 0
        self._leaving = 0
        """Of each kind, since the client got a token."""
        self._lost = 0

    def __repr__(self) -> str:
        return f"<Tries {self._broken} broken off and {self._leaving} left in a row, {self._lost} lost in all>"

    def failed(self, told_tokens: int, why: str, *, leaving: bool = False, repeating: bool = False) -> None:
        """An attempt broke off when the client had so many tokens; returns if the request may be tried again.

        `leaving` if its worker ends in good order; `repeating` if it was making tokens again that another one had made
        without harm. NoWorkers if the client has no token, GenerationFailed if it has some.
        """
        if told_tokens > self._told:
            self._told, self._broken, self._leaving = told_tokens, 0, 0
        self._leaving += leaving and not repeating
        self._broken += not leaving and not repeating
        self._lost += told_tokens > 0 and (repeating or not leaving)
        in_row, broken_max = self._broken + self._leaving, BEGUN_ATTEMPTS_MAX if told_tokens else ATTEMPTS_MAX
        if self._lost > LOST_MAX:
            raise GenerationFailed(f"more than {LOST_MAX} workers broke off, the last one: {why}")
        if self._broken < broken_max and self._leaving < LEAVING_MAX:
            return
        if told_tokens:
            raise GenerationFailed(f"{in_row} workers broke off, the last one: {why}")
        raise NoWorkers(f"{in_row} workers failed before the first token")
