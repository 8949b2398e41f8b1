"""The protocol of all output parsers, and the base of those that find calls of tools: a state machine over the text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from msgspec import Struct

from api.parsers.tool_calls import ToolCallCollector, ToolDelta


class Delta(Struct, frozen=True):
    """New text, reasoning and calls of one choice."""

    text: str = ""
    reasoning: str = ""
    tools: tuple[ToolDelta, ...] = ()

    def then(self, other: Delta) -> Delta:
        """Both as one."""
        tools, more = self.tools, other.tools
        if tools and more and tools[-1].call == more[0].call:
            last = tools[-1]._replace(arguments=tools[-1].arguments + more[0].arguments)
            tools, more = (*tools[:-1], last), more[1:]
        return Delta(self.text + other.text, self.reasoning + other.reasoning, tools + more)


EMPTY_DELTA = Delta()


class OutputParser(Protocol):
    """Reads one choice's text as it comes."""

    @property
    def keeps_special_tokens(self) -> bool:
        """True if the parser needs special tokens in the text: then they are not skipped."""

    @property
    def called(self) -> bool:
        """True once a call of a tool was found: then the choice ends with `tool_calls` instead of `stop`."""

    def push(self, text: str, tokens: Sequence[int]) -> Delta:
        """The delta that the new text makes certain; `tokens` are the tokens of that text."""

    def finish(self) -> Delta:
        """The delta of the text held back; nothing more will come. Never raises: text that is no call stays text."""


BLANK = " \t\r\n"


class StreamParser(ABC):
    """An `OutputParser` over one format. However the text is cut, it says the same.

    Blanks before a call, between calls and after the last one are no text.
    """

    keeps_special_tokens = False

    def __init__(self, collector: ToolCallCollector) -> None:
        self._collector = collector
        self._state: Callable[[str], str] = self._text
        self._pieces: list[str] = []
        self._blank = ""
        """Blanks at the start or after a call: text if text follows."""
        self._after_call = True
        """True while only blanks came since the start or the last call."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self._collector.count} calls>"

    @property
    def called(self) -> bool:
        """True once a call was found."""
        return self._collector.count > 0

    def push(self, text: str, tokens: Sequence[int]) -> Delta:  # noqa: ARG002 - the text says it all
        """The delta that the new text makes certain."""
        while text:
            text = self._state(text)
        return self._take()

    def finish(self) -> Delta:
        """The delta of the text held back."""
        self._emit(self._pending_text())
        if not self.called:
            self._pieces.append(self._blank)
            self._blank = ""
        return self._take()

    def _take(self) -> Delta:
        text = "".join(self._pieces)
        self._pieces.clear()
        return Delta(text, tools=self._collector.take_deltas())

    def _emit(self, text: str) -> None:
        """Text; blanks next to a call wait for what follows them."""
        if not self._after_call:
            self._pieces.append(text)
        elif text.strip(BLANK):
            self._pieces.append(self._blank + text)
            self._blank, self._after_call = "", False
        else:
            self._blank += text

    def _call_ended(self) -> None:
        self._blank, self._after_call = "", True

    @abstractmethod
    def _text(self, text: str) -> str:
        """Reads on where no call is; returns what is left for the next state."""

    @abstractmethod
    def _pending_text(self) -> str:
        """The held text, which is no call if nothing more comes."""


def overlap(text: str, mark: str) -> int:
    """The number of characters at the text's end that begin the mark."""
    at = text.find(mark[0], max(0, len(text) - len(mark) + 1))
    while at >= 0:
        if mark.startswith(text[at:]):
            return len(text) - at
        at = text.find(mark[0], at + 1)
    return 0


class MarkerParser(StreamParser):
    """Calls behind a mark in the text."""

    mark = ""

    def __init__(self, collector: ToolCallCollector, special: AbstractSet[str] = frozenset()) -> None:
        """`special`: texts of special tokens, which are skipped unless one of them is the mark."""
        super().__init__(collector)
        self.keeps_special_tokens = self.mark in special
        self._partial = ""
        """The text's end, which may begin the mark."""

    def _text(self, text: str) -> str:
        text, self._partial = self._partial + text, ""
        at = text.find(self.mark)
        if at >= 0:
            self._emit(text[:at])
            self._marked()
            return text[at + len(self.mark) :]
        held = overlap(text, self.mark)
        self._partial = text[len(text) - held :]
        self._emit(text[: len(text) - held])
        return ""

    @abstractmethod
    def _marked(self) -> None:
        """The mark has been read: what comes is a call, or is not after all."""

    def _give_back(self, held: str) -> None:
        """It was none: the mark is text, with what was held behind it."""
        self._emit(self.mark + held)
        self._state = self._text
