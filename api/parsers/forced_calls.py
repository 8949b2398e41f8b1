"""Calls that the request insists on: the engine is held to JSON of them, and nothing else can come."""

from __future__ import annotations

from collections.abc import Sequence

from api.openai.types.deltas import Delta
from api.parsers.json_call import JsonCall, JsonCallList
from api.parsers.output_parser import BLANK, StreamParser
from api.parsers.tool_calls import ToolCallCollector

KEYS = ("parameters", "arguments")


class RequiredCallParser(StreamParser):
    """A list of `{"name": …, "parameters": {…}}`; text only if the engine broke the format."""

    def __init__(self, collector: ToolCallCollector) -> None:
        super().__init__(collector)
        self._list = JsonCallList(lambda: JsonCall(self._collector, KEYS))

    def _text(self, text: str) -> str:
        if not self._list.ended:
            text = self._list.push(text)
            if not self._list.ended:
                return text
            self._after_call = self.called
            self._emit(self._list.unsure())
        self._emit(text)
        return ""

    def _unsure(self) -> str:
        # an answer that was cut off has no text: behind a call there is only the beginning of another
        return "" if self._list.ended or self.called else self._list.unsure()


class NamedCallParser:
    """The text is the arguments of one call of the tool that the request names."""

    keeps_special_tokens = False
    called = False
    """The choice ends with `stop`, as OpenAI's does: the client knew that there would be a call."""

    def __init__(self, collector: ToolCallCollector, name: str) -> None:
        self._collector = collector
        self._name = name

    def __repr__(self) -> str:
        return f"<NamedCallParser {self._name}>"

    def push(self, text: str, tokens: Sequence[int]) -> Delta:  # noqa: ARG002 - the text says it all
        """The next piece of the arguments."""
        if not self._collector.count:
            if not (text := text.lstrip(BLANK)):
                return Delta()
            self._collector.begin(self._name)
        self._collector.more(text)
        return Delta(tools=self._collector.take())

    def finish(self) -> Delta:
        """Nothing was held back."""
        return Delta()
