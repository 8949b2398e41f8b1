"""Llama 3: the whole answer is `{"name": …, "parameters": {…}}`, or several of them with `;` between."""

from __future__ import annotations

from collections.abc import Collection

from api.parsers.json_call import JsonCall
from api.parsers.output_parser import BLANK, StreamParser
from api.parsers.tool_calls import ToolCallCollector

KEYS = ("parameters", "arguments")
OTHERS = ("type", "id")
"""What else may stand in a call; any other key makes it an answer, which then need not be held back to its end."""
TAG = "<|python_tag|>"
"""May stand before a call, if special tokens are kept."""


class Llama3JsonParser(StreamParser):
    """No mark tells a call from an answer in JSON: it must name one of the request's tools, and stand at the start
    or behind another call."""

    def __init__(self, collector: ToolCallCollector, names: Collection[str]) -> None:
        super().__init__(collector)
        self._names = names
        self._before = ""
        self._object: JsonCall | None = None

    def _text(self, text: str) -> str:
        """Where a call may begin."""
        text, self._before = self._before + text, ""
        rest = text.lstrip(BLANK + (";" if self.called else ""))
        if not rest or (len(rest) < len(TAG) and TAG.startswith(rest)):
            self._before = text
            return ""
        after_tag = rest.removeprefix(TAG).lstrip(BLANK)
        if not after_tag:
            self._before = text
            return ""
        if after_tag[0] != "{":
            self._state = self._plain
            return text
        self._before = text[: len(text) - len(after_tag)]
        self._object = JsonCall(self._collector, KEYS, names=self._names, others=OTHERS)
        self._state = self._call
        return after_tag

    def _call(self, text: str) -> str:
        assert self._object is not None
        rest = self._object.push(text)
        if self._object.verdict is None:
            return rest
        if self._object.verdict:
            self._call_ended()
            self._state = self._text
        else:
            self._emit(self._before + self._object.held)
            self._state = self._plain
        self._before, self._object = "", None
        return rest

    def _plain(self, text: str) -> str:
        self._emit(text)
        return ""

    def _unsure(self) -> str:
        if self._object is not None:
            return "" if self._object.told else self._before + self._object.held
        return "" if self.called else self._before
