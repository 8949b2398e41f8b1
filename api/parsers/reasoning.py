"""Reasoning between `<think>` and `</think>`, as DeepSeek-R1, Qwen 3 and many others write it.

`ThinkParser` finds it; `ChainedParser` hands the rest of the answer to a second parser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from api.parsers.output_parser import BLANK, EMPTY_DELTA, Delta, OutputParser, overlap

OPENING = "<think>"
CLOSING = "</think>"
CALL = "<tool_call>"
"""Qwen 3 may call a tool in the midst of its reasoning, and that ends it."""


class ThinkParser:
    """An `OutputParser` that splits an answer: reasoning first, opened by the template, by the model or not at all."""

    called = False

    def __init__(
        self, *, ended: bool = False, calls_end: bool = False, special: AbstractSet[str] = frozenset()
    ) -> None:
        """`ended`: the prompt has closed it already; `calls_end`: a call ends it; `special`: texts of special tokens,
        which are skipped unless they are needed."""
        self.keeps_special_tokens = not special.isdisjoint({OPENING, CLOSING})
        self._marks = (CLOSING, CALL) if calls_end else (CLOSING,)
        self._held = ""
        self._state: Callable[[str], Delta] = self._after if ended else self._before

    def __repr__(self) -> str:
        return f"<ThinkParser {self._state.__name__}>"

    def push(self, text: str, tokens: Sequence[int]) -> Delta:  # noqa: ARG002 - the text says it all
        """The delta that the new text makes certain."""
        text, self._held = self._held + text, ""
        return self._state(text)

    def finish(self) -> Delta:
        """The reasoning held back."""
        held, self._held = self._held, ""
        return Delta(reasoning=held)

    def _before(self, text: str) -> Delta:
        begun = text.lstrip(BLANK)
        if not begun or (len(begun) < len(OPENING) and OPENING.startswith(begun)):
            self._held = text
            return EMPTY_DELTA
        self._state = self._inside
        return self._inside(begun.removeprefix(OPENING) if begun.startswith(OPENING) else text)

    def _inside(self, text: str) -> Delta:
        found = min(((at, mark) for mark in self._marks if (at := text.find(mark)) >= 0), default=None)
        if found is None:
            held = max(overlap(text, mark) for mark in self._marks)
            self._held = text[len(text) - held :]
            return Delta(reasoning=text[: len(text) - held])
        at, mark = found
        self._state = self._after
        return Delta(text[at + len(mark) :] if mark == CLOSING else text[at:], text[:at])

    def _after(self, text: str) -> Delta:
        return Delta(text)


class ChainedParser:
    """An `OutputParser`: the first tells the reasoning apart, and what is text to it goes on to the second."""

    def __init__(self, first: OutputParser, second: OutputParser | None, *, include_reasoning: bool) -> None:
        """`include_reasoning`: False drops the reasoning; without a second, the rest is text."""
        self._first = first
        self._second = second
        self._include_reasoning = include_reasoning
        self.keeps_special_tokens = first.keeps_special_tokens or (second is not None and second.keeps_special_tokens)

    def __repr__(self) -> str:
        return f"<ChainedParser {self._first}, {self._second}>"

    @property
    def called(self) -> bool:
        """True once the rest has a call of a tool."""
        return self._second is not None and self._second.called

    def push(self, text: str, tokens: Sequence[int]) -> Delta:
        """The delta that the new text makes certain."""
        return self._read(self._first.push(text, tokens), tokens)

    def finish(self) -> Delta:
        """The delta of the text held back."""
        delta = self._read(self._first.finish(), ())
        if self._second is None:
            return delta
        last = self._second.finish()
        return Delta(delta.text + last.text, delta.reasoning, (*delta.tools, *last.tools))

    def _read(self, delta: Delta, tokens: Sequence[int]) -> Delta:
        reasoning = delta.reasoning if self._include_reasoning else ""
        if self._second is None or not delta.text:
            return Delta(delta.text, reasoning)
        return replace(self._second.push(delta.text, tokens), reasoning=reasoning)
