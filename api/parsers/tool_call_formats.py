"""Parsers of tool calls, one for each format of models, and two for calls that the request insists on.

- Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them.
- Llama 3: the whole answer is `{"name": …, "parameters": {…}}`, or several of them with `;` between.
- Mistral: `[TOOL_CALLS]` before a list of calls, or before a name with its arguments behind it.
- Required and named calls: the engine is held to JSON of them, and nothing else can come.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from api.parsers.json_call import JsonCall, JsonCallList, JsonEndScanner
from api.parsers.output_parser import BLANK, Delta, MarkerParser, StreamParser
from api.parsers.tool_calls import ToolCallCollector

HERMES_KEYS = ("arguments", "parameters")


class HermesParser(MarkerParser):
    """The closing mark may be missing, at the end or before what follows."""

    mark = "<tool_call>"
    closing = "</tool_call>"

    def __init__(self, collector: ToolCallCollector, special: AbstractSet[str] = frozenset()) -> None:
        super().__init__(collector, special)
        self._object: JsonCall | None = None
        self._behind = ""

    def _marked(self) -> None:
        self._object = JsonCall(self._collector, HERMES_KEYS, bare=True)
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

    def _pending_text(self) -> str:
        if self._object is not None:
            return "" if self._object.confirmed else self.mark + self._object.held
        return self._partial


LLAMA3_KEYS = ("parameters", "arguments")
OTHERS = ("type", "id")
"""Further keys of a call; any other key makes it an answer, which then need not be held back to its end."""
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
        """Reads the text at a place where a call may begin."""
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
        self._object = JsonCall(self._collector, LLAMA3_KEYS, names=self._names, others=OTHERS)
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

    def _pending_text(self) -> str:
        if self._object is not None:
            return "" if self._object.confirmed else self._before + self._object.held
        return "" if self.called else self._before


MISTRAL_KEYS = ("arguments",)
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\]\s*)?")
"""`name{…}` of version 11, `name[CALL_ID]id[ARGS]{…}` of later ones."""
_NAMING = re.compile(r"\s*(?:[\w.-]+\s*(?:\[[A-Z_]{0,7}\]?\s*[\w-]*\s*){0,2})?")
"""A text that may still become a name."""
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
            self._list = JsonCallList(lambda: JsonCall(self._collector, MISTRAL_KEYS, bare=True))
            self._state = self._calls
        else:
            self._state = self._named
        return text

    def _calls(self, text: str) -> str:
        assert self._list is not None
        rest = self._list.push(text)
        if self._list.ended:
            if held := self._list.pending_text():
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
                self._collector.begin_call(found[1])
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
        self._collector.add_arguments(text[:end])
        if end is None:
            return ""
        self._call_ended()
        self._state = self._text
        return text[end:]

    def _pending_text(self) -> str:
        if self._list is not None:
            held = self._list.pending_text()
            return self.mark + held if held and not self._list.count else held
        if self._state in (self._first, self._named):
            return self.mark + self._head
        return self._partial


REQUIRED_KEYS = ("parameters", "arguments")


class RequiredCallParser(StreamParser):
    """A list of `{"name": …, "parameters": {…}}`; text only if the engine broke the format."""

    def __init__(self, collector: ToolCallCollector) -> None:
        super().__init__(collector)
        self._list = JsonCallList(lambda: JsonCall(self._collector, REQUIRED_KEYS))

    def _text(self, text: str) -> str:
        if not self._list.ended:
            text = self._list.push(text)
            if not self._list.ended:
                return text
            self._after_call = self.called
            self._emit(self._list.pending_text())
        self._emit(text)
        return ""

    def _pending_text(self) -> str:
        # an answer that was cut off has no text: behind a call there is only the beginning of another
        return "" if self._list.ended or self.called else self._list.pending_text()


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
            self._collector.begin_call(self._name)
        self._collector.add_arguments(text)
        return Delta(tools=self._collector.take_deltas())

    def finish(self) -> Delta:
        """Nothing was held back."""
        return Delta()
