"""The items of a response with their events; `CustomToolInput` reads the input of a custom tool from its arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from api.parsers.tool_calls import normalize_json_object
from api.responses.tool_catalog import CUSTOM_INPUT
from api.tokenizer.detokenizer import replace_lone_surrogates

_OPENING = re.compile(r'\s*\{\s*"' + CUSTOM_INPUT + r'"\s*:\s*"')
_HEX = "[0-9a-fA-F]"
_UNIT = re.compile(
    # plain text; a pair of escapes, or half of one that is known to stand alone; any other escape
    rf'[^"\\]+|\\u[dD][89abAB]{_HEX}{{2}}(?:\\u[dD][c-fC-F]{_HEX}{{2}}|(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F]))'
    rf"|\\u(?![dD][89abAB]){_HEX}{{4}}|\\[^u]|\\u(?={_HEX}{{0,3}}[^0-9a-fA-F])"
)
_ESCAPE = re.compile(rf'\\(["\\/bfnrt]|u{_HEX}{{4}})')
"""The escapes of JSON; any other backslash stands for itself."""


class CustomToolInput:
    """Text that grows with the arguments' JSON; what has been given never changes."""

    def __init__(self) -> None:
        self._raw = ""
        """Read and not given yet: before the text all of it, in the text an escape that broke off."""
        self._open = False
        self.ended = False
        """True once the text is whole."""

    def __repr__(self) -> str:
        return f"<CustomToolInput {'ended' if self.ended else 'open' if self._open else 'not begun'}>"

    def push(self, piece: str) -> str:
        """The text that the next piece of the arguments adds for certain."""
        self._raw += piece
        if not self._open and not self._opened():
            return ""
        return "" if self.ended else self._text()

    def finish(self) -> str:
        """The rest; arguments of another form than the model was told are the text themselves."""
        raw, self._raw = self._raw, ""
        if self._open:
            return "" if self.ended else replace_lone_surrogates(raw)
        given = _decoded(raw)
        self.ended = True
        return replace_lone_surrogates(given if isinstance(given, str) else raw)

    def _opened(self) -> bool:
        if opening := _OPENING.match(self._raw):
            self._open, self._raw = True, self._raw[opening.end() :]
        return self._open

    def _text(self) -> str:
        at, units = 0, list[str]()
        while unit := _UNIT.match(self._raw, at):
            known = unit.group()[0] != "\\" or _ESCAPE.match(unit.group())
            units.append(unit.group() if known else "\\" + unit.group())
            at = unit.end()
        if self._raw.startswith('"', at):
            self.ended = True
            at = len(self._raw)
        self._raw = self._raw[at:]
        return replace_lone_surrogates(json.loads(f'"{"".join(units)}"', strict=False))


def _decoded(arguments: str) -> object:
    try:
        found = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return None
    return found.get(CUSTOM_INPUT) if isinstance(found, dict) else None


Event = tuple[str, dict[str, Any]]
"""Its type and its fields, less the sequence number."""


def unsealed(_text: str) -> None:
    """No seal: the client did not ask for sealed reasoning."""


class OutputItem(Protocol):
    """One item while it grows."""

    def opened(self) -> list[Event]:
        """It begins."""

    def more(self, piece: str, _logprobs: Sequence[dict[str, Any]] = (), /) -> list[Event]:
        """It goes on."""

    def closed(self, status: str) -> list[Event]:
        """It is over, `completed` or `incomplete`."""

    def shown(self, status: str) -> dict[str, Any]:
        """OpenAI's JSON of what there is of it."""


class _Item:
    """Base of all items: their place in the output, and their pieces so far."""

    id_prefix: str

    def __init__(self, request_id: str, index: int) -> None:
        self._id = f"{self.id_prefix}_{request_id}_{index}"
        self._index = index
        self._place = {"item_id": self._id, "output_index": index}
        self._pieces: list[str] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id}, {len(self._pieces)} pieces>"

    def shown(self, status: str) -> dict[str, Any]:
        """OpenAI's JSON of it."""
        raise NotImplementedError

    def _text(self) -> str:
        return "".join(self._pieces)

    def _added(self) -> Event:
        return "response.output_item.added", {"output_index": self._index, "item": self.shown("in_progress")}

    def _done(self, status: str) -> Event:
        return "response.output_item.done", {"output_index": self._index, "item": self.shown(status)}


class _PartItem(_Item):
    """An item that holds one part with text."""

    event: str
    """Prefix of the names of its text's events."""
    part_event = "response.content_part"
    """Prefix of the names of its part's events."""
    part_index = "content_index"

    def __init__(self, request_id: str, index: int) -> None:
        super().__init__(request_id, index)
        self._place[self.part_index] = 0
        self._logprobs: list[dict[str, Any]] = []

    def opened(self) -> list[Event]:
        """The item, still without its part, and the part."""
        return [self._added(), (f"{self.part_event}.added", {**self._place, "part": self._part("")})]

    def more(self, piece: str, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        """One delta."""
        self._pieces.append(piece)
        self._logprobs += logprobs
        return [(f"{self.event}.delta", {**self._place, "delta": piece, **self._beside(logprobs)})]

    def closed(self, status: str) -> list[Event]:
        """The text, the part and the item, whole."""
        text = self._text()
        return [
            (f"{self.event}.done", {**self._place, "text": text, **self._beside(self._logprobs)}),
            (f"{self.part_event}.done", {**self._place, "part": self._part(text)}),
            self._done(status),
        ]

    def _parts(self, status: str) -> list[dict[str, Any]]:
        return [] if status == "in_progress" else [self._part(self._text())]

    def _part(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _beside(self, _logprobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {}


class MessageItem(_PartItem):
    """The model's text for the user."""

    id_prefix = "msg"
    event = "response.output_text"

    def shown(self, status: str) -> dict[str, Any]:
        """OpenAI's JSON of it."""
        content = self._parts(status)
        return {"id": self._id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(self._logprobs)}

    def _beside(self, logprobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"logprobs": list(logprobs)}


class ReasoningItem(_PartItem):
    """The model's reasoning."""

    id_prefix = "rs"
    event = "response.reasoning_text"

    def __init__(self, request_id: str, index: int, seal: Callable[[str], str | None] = unsealed) -> None:
        """`seal`: what the client gets of the text for later turns."""
        super().__init__(request_id, index)
        self._seal = seal
        self._sealed: str | None = None

    def closed(self, status: str) -> list[Event]:
        """The text, the part and the item, whole; the item is sealed now."""
        self._sealed = self._seal(self._text())
        return super().closed(status)

    def shown(self, status: str) -> dict[str, Any]:
        """OpenAI's JSON of it."""
        shown = self._reasoning(self._parts(status))
        return {"id": self._id, "type": "reasoning", **shown, "encrypted_content": self._sealed, "status": status}

    def _reasoning(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        return {"summary": [], "content": parts}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}


class SummaryItem(ReasoningItem):
    """The model's reasoning as its own summary: many clients show nothing else of it."""

    event = "response.reasoning_summary_text"
    part_event = "response.reasoning_summary_part"
    part_index = "summary_index"

    def _reasoning(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        return {"summary": parts}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "summary_text", "text": text}


class CallItem(_Item):
    """A call of a function."""

    id_prefix = "fc"
    event = "response.function_call_arguments"

    def __init__(self, request_id: str, index: int, call_id: str, name: str, namespace: str | None = None) -> None:
        super().__init__(request_id, index)
        self._call = {"call_id": call_id, "name": name, **({"namespace": namespace} if namespace else {})}

    def opened(self) -> list[Event]:
        """The call, still without arguments."""
        return [self._added()]

    def more(self, piece: str, _logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        """More of its arguments."""
        self._pieces.append(piece)
        return [(f"{self.event}.delta", {**self._place, "delta": piece})]

    def closed(self, status: str) -> list[Event]:
        """The arguments and the call, whole."""
        done = {**self._place, "name": self._call["name"], "arguments": self._text()}
        return [(f"{self.event}.done", done), self._done(status)]

    def shown(self, status: str) -> dict[str, Any]:
        """OpenAI's JSON of it; a call with broken arguments is `incomplete` in a completed answer, too."""
        arguments = self._text()
        cut = status == "completed" and normalize_json_object(arguments) is None
        return {
            "id": self._id,
            "type": "function_call",
            **self._call,
            "arguments": arguments,
            "status": "incomplete" if cut else status,
        }


class CustomCallItem(CallItem):
    """A call of a custom tool: the arguments of the function that stands for it hold its input."""

    id_prefix = "ctc"
    event = "response.custom_tool_call_input"

    def __init__(self, request_id: str, index: int, call_id: str, name: str, namespace: str | None = None) -> None:
        super().__init__(request_id, index, call_id, name, namespace)
        self._input = CustomToolInput()

    def more(self, piece: str, _logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        """More of its input, if the piece holds any."""
        return self._grown(self._input.push(piece))

    def closed(self, status: str) -> list[Event]:
        """The rest of the input, the input and the call, whole."""
        rest = self._grown(self._input.finish())
        return [*rest, (f"{self.event}.done", {**self._place, "input": self._text()}), self._done(status)]

    def shown(self, status: str) -> dict[str, Any]:
        """OpenAI's JSON of it; a call with a broken input is `incomplete` in a completed answer, too."""
        cut = status == "completed" and not self._input.ended
        return {
            "id": self._id,
            "type": "custom_tool_call",
            **self._call,
            "input": self._text(),
            "status": "incomplete" if cut else status,
        }

    def _grown(self, text: str) -> list[Event]:
        if not text:
            return []
        self._pieces.append(text)
        return [(f"{self.event}.delta", {**self._place, "delta": text})]
