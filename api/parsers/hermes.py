"""Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from api.parsers.json_call import JsonCall
from api.parsers.output_parser import BLANK, MarkerParser
from api.parsers.tool_calls import ToolCallCollector

KEYS = ("arguments", "parameters")


class HermesParser(MarkerParser):
    """The closing mark may be missing, at the end or before what follows."""

    mark = "<tool_call>"
    closing = "</tool_call>"

    def __init__(self, collector: ToolCallCollector, special: AbstractSet[str] = frozenset()) -> None:
        super().__init__(collector, special)
        self._object: JsonCall | None = None
        self._behind = ""

    def _marked(self) -> None:
        self._object = JsonCall(self._collector, KEYS, bare=True)
        self._state = self._call

    def _call(self, text: str) -> str:
        assert self._object is not None
        rest = self._object.push(text)
        if self._object.verdict is None:
            return rest
        if self._object.verdict:
            self._call_ended()
            self._behind, self._state = "", self._close
        else:
            self._give_back(self._object.held)
        self._object = None
        return rest

    def _close(self, text: str) -> str:
        """Past blanks and the closing mark, if it is there."""
        text, self._behind = self._behind + text, ""
        rest = text.lstrip(BLANK)
        if not rest or (len(rest) < len(self.closing) and self.closing.startswith(rest)):
            self._behind = text
            return ""
        self._state = self._text
        return rest.removeprefix(self.closing) if rest.startswith(self.closing) else text

    def _unsure(self) -> str:
        if self._object is not None:
            return "" if self._object.told else self.mark + self._object.held
        return self._partial
