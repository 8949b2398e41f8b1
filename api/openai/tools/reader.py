"""What all readers of calls share: the text goes from state to state, and what is sure leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from api.openai.answers.said import Said
from api.openai.tools.called import Called

BLANK = " \t\r\n"


class Reader(ABC):
    """An `Interpreter` over one format. However the text is cut, it says the same.

    Blanks before a call, between calls and after the last one are no text.
    """

    keeps_special_tokens = False

    def __init__(self, called: Called) -> None:
        self._called = called
        self._state: Callable[[str], str] = self._text
        self._said: list[str] = []
        self._blank = ""
        """Blanks at the start or after a call: text if text follows."""
        self._after_call = True
        """Whether only blanks came since the start or the last call."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self._called.count} calls>"

    @property
    def called(self) -> bool:
        """Whether a call has been found."""
        return self._called.count > 0

    def push(self, text: str, tokens: Sequence[int]) -> Said:  # noqa: ARG002 - the text says it all
        """What the new text says for certain."""
        while text:
            text = self._state(text)
        return self._take()

    def finish(self) -> Said:
        """What was held back."""
        self._say(self._unsure())
        if not self.called:
            self._said.append(self._blank)
            self._blank = ""
        return self._take()

    def _take(self) -> Said:
        text = "".join(self._said)
        self._said.clear()
        return Said(text, tools=self._called.take())

    def _say(self, text: str) -> None:
        """Text; blanks next to a call wait for what follows them."""
        if not self._after_call:
            self._said.append(text)
        elif text.strip(BLANK):
            self._said.append(self._blank + text)
            self._blank, self._after_call = "", False
        else:
            self._blank += text

    def _call_ended(self) -> None:
        self._blank, self._after_call = "", True

    @abstractmethod
    def _text(self, text: str) -> str:
        """Reads on where no call is; returns what is left for the next state."""

    @abstractmethod
    def _unsure(self) -> str:
        """What is held and is text if nothing more comes."""


def overlap(text: str, mark: str) -> int:
    """How many characters at the text's end begin the mark."""
    at = text.find(mark[0], max(0, len(text) - len(mark) + 1))
    while at >= 0:
        if mark.startswith(text[at:]):
            return len(text) - at
        at = text.find(mark[0], at + 1)
    return 0


class Marked(Reader):
    """Calls behind a mark in the text."""

    mark = ""

    def __init__(self, called: Called, special: AbstractSet[str] = frozenset()) -> None:
        """`special`: texts of special tokens, which are skipped unless one of them is the mark."""
        super().__init__(called)
        self.keeps_special_tokens = self.mark in special
        self._partial = ""
        """The text's end, which may begin the mark."""

    def _text(self, text: str) -> str:
        text, self._partial = self._partial + text, ""
        at = text.find(self.mark)
        if at >= 0:
            self._say(text[:at])
            self._marked()
            return text[at + len(self.mark) :]
        held = overlap(text, self.mark)
        self._partial = text[len(text) - held :]
        self._say(text[: len(text) - held])
        return ""

    @abstractmethod
    def _marked(self) -> None:
        """The mark has been read: what comes is a call, or is not after all."""

    def _give_back(self, held: str) -> None:
        """It was none: the mark is text, with what was held behind it."""
        self._say(self.mark + held)
        self._state = self._text
