"""Mistral: `[TOOL_CALLS]` before a list of calls, or before a name with its arguments behind it."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet

from api.parsers.json_call import JsonCall, JsonCallList, JsonEndScanner
from api.parsers.output_parser import BLANK, MarkerParser
from api.parsers.tool_calls import ToolCallCollector

KEYS = ("arguments",)
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\]\s*)?")
"""`name{…}` of version 11, `name[CALL_ID]id[ARGS]{…}` of later ones."""
_NAMING = re.compile(r"\s*(?:[\w.-]+\s*(?:\[[A-Z_]{0,7}\]?\s*[\w-]*\s*){0,2})?")
"""What may still become that."""
HEAD_CHARS_MAX = 160
"""More than this between the mark and the arguments is no name."""


class MistralParser(MarkerParser):
    """Both formats, told apart by what follows the mark."""

    mark = "[TOOL_CALLS]"

    def __init__(self, collector: ToolCallCollector, special: AbstractSet[str] = frozenset()) -> None:
        super().__init__(collector, special)
        self._head = ""
        self._list: JsonCallList | None = None
        self._end = JsonEndScanner()

    def _marked(self) -> None:
        self._head, self._state = "", self._first

    def _first(self, text: str) -> str:
        """Past blanks, to what tells the formats apart."""
        text, self._head = self._head + text, ""
        rest = text.lstrip(BLANK)
        if not rest:
            self._head = text
            return ""
        if rest[0] in "[{":
            self._list = JsonCallList(lambda: JsonCall(self._collector, KEYS, bare=True))
            self._state = self._calls
        else:
            self._state = self._named
        return text

    def _calls(self, text: str) -> str:
        assert self._list is not None
        rest = self._list.push(text)
        if self._list.ended:
            if held := self._list.unsure():
                self._behind_calls(held)
            else:
                self._call_ended()
                self._state = self._text
            self._list = None
        return rest

    def _behind_calls(self, held: str) -> None:
        if self._list is not None and self._list.count:
            self._call_ended()
            self._emit(held)
            self._state = self._text
        else:
            self._give_back(held)

    def _named(self, text: str) -> str:
        # a character at a time: where it turns out to be text must not depend on how the text came
        for at, char in enumerate(text):
            if char == "{" and (found := _NAMED.fullmatch(self._head)):
                self._collector.begin(found[1])
                self._head, self._end, self._state = "", JsonEndScanner(), self._arguments
                return text[at:]
            if len(self._head) >= HEAD_CHARS_MAX or not _NAMING.fullmatch(self._head + char):
                self._give_back(self._head)
                self._head = ""
                return text[at:]
            self._head += char
        return ""

    def _arguments(self, text: str) -> str:
        end = self._end.find(text)
        self._collector.more(text[:end])
        if end is None:
            return ""
        self._call_ended()
        self._state = self._text
        return text[end:]

    def _unsure(self) -> str:
        if self._list is not None:
            held = self._list.unsure()
            return self.mark + held if held and not self._list.count else held
        if self._state in (self._first, self._named):
            return self.mark + self._head
        return self._partial
