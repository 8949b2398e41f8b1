"""Calls that the request insists on: the engine is held to JSON of them, and nothing else can come."""

from __future__ import annotations

from collections.abc import Sequence

from api.openai.answers.said import Said
from api.openai.tools.call_list import CallList
from api.openai.tools.call_object import CallObject
from api.openai.tools.called import Called
from api.openai.tools.reader import BLANK, Reader

KEYS = ("parameters", "arguments")


class Required(Reader):
    """A list of `{"name": …, "parameters": {…}}`; text only if the engine broke the format."""

    def __init__(self, called: Called) -> None:
        super().__init__(called)
        self._list = CallList(lambda: CallObject(self._called, KEYS))

    def _text(self, text: str) -> str:
        if not self._list.ended:
            text = self._list.push(text)
            if not self._list.ended:
                return text
            self._after_call = self.called
            self._say(self._list.unsure())
        self._say(text)
        return ""

    def _unsure(self) -> str:
        # an answer that was cut off has no text: behind a call there is only the beginning of another
        return "" if self._list.ended or self.called else self._list.unsure()


class Named:
    """The text is the arguments of one call of the tool that the request names."""

    keeps_special_tokens = False
    called = False
    """The choice ends with `stop`, as OpenAI's does: the client knew that there would be a call."""

    def __init__(self, called: Called, name: str) -> None:
        self._called = called
        self._name = name

    def __repr__(self) -> str:
        return f"<Named {self._name}>"

    def push(self, text: str, tokens: Sequence[int]) -> Said:  # noqa: ARG002 - the text says it all
        """The next piece of the arguments."""
        if not self._called.count:
            if not (text := text.lstrip(BLANK)):
                return Said()
            self._called.begin(self._name)
        self._called.more(text)
        return Said(tools=self._called.take())

    def finish(self) -> Said:
        """Nothing was held back."""
        return Said()
