"""Reasoning between `<think>` and `</think>`, as DeepSeek-R1, Qwen 3 and many others write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from api.openai.answers.said import NOTHING, Said
from api.openai.tools.reader import BLANK, overlap

OPENING = "<think>"
CLOSING = "</think>"
CALL = "<tool_call>"
"""Qwen 3 may call a tool in the midst of its reasoning, and that ends it."""


class Think:
    """An `Interpreter` that splits an answer in two: reasoning first, whether template, model or nobody opened it."""

    called = False

    def __init__(
        self, *, ended: bool = False, calls_end: bool = False, special: AbstractSet[str] = frozenset()
    ) -> None:
        """`ended`: the prompt has closed it already; `calls_end`: a call ends it; `special`: texts of special tokens,
        which are skipped unless they are needed."""
        self.keeps_special_tokens = not special.isdisjoint({OPENING, CLOSING})
        self._marks = (CLOSING, CALL) if calls_end else (CLOSING,)
        self._held = ""
        self._state: Callable[[str], Said] = self._after if ended else self._before

    def __repr__(self) -> str:
        return f"<Think {self._state.__name__}>"

    def push(self, text: str, tokens: Sequence[int]) -> Said:  # noqa: ARG002 - the text says it all
        """What the new text says for certain."""
        text, self._held = self._held + text, ""
        return self._state(text)

    def finish(self) -> Said:
        """What was held back: reasoning."""
        held, self._held = self._held, ""
        return Said(reasoning=held)

    def _before(self, text: str) -> Said:
        begun = text.lstrip(BLANK)
        if not begun or (len(begun) < len(OPENING) and OPENING.startswith(begun)):
            self._held = text
            return NOTHING
        self._state = self._inside
        return self._inside(begun.removeprefix(OPENING) if begun.startswith(OPENING) else text)

    def _inside(self, text: str) -> Said:
        found = min(((at, mark) for mark in self._marks if (at := text.find(mark)) >= 0), default=None)
        if found is None:
            held = max(overlap(text, mark) for mark in self._marks)
            self._held = text[len(text) - held :]
            return Said(reasoning=text[: len(text) - held])
        at, mark = found
        self._state = self._after
        return Said(text[at + len(mark) :] if mark == CLOSING else text[at:], text[:at])

    def _after(self, text: str) -> Said:
        return Said(text)
