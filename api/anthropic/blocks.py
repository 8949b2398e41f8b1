"""The content of one answer: what a choice says, sorted into blocks one after another."""

from __future__ import annotations

from typing import Any

import orjson

from api.openai.answers.said import Said, ToolDelta
from api.openai.tools.arguments import object_text

Event = dict[str, Any]


class Blocks:
    """Blocks so far, of which the last one may be open; each step costs what is new in it."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._field = ""
        """Of the open block: which field of it grows; none is open without one."""
        self._call = -1
        """Which call the open block is."""
        self._pieces: list[str] = []
        self.called = False
        """Whether the last call that was closed can be made: its arguments are an object."""

    def __repr__(self) -> str:
        return f"<Blocks {len(self._blocks)}, {self._field or 'none'} growing>"

    def add(self, said: Said) -> list[Event]:
        """The events of what was said, in the order in which a model says it."""
        events: list[Event] = []
        if said.reasoning:
            events += self._grow("thinking", {"thinking": "", "signature": ""}, "thinking_delta", said.reasoning)
        if said.text:
            events += self._grow("text", {"text": ""}, "text_delta", said.text)
        for delta in said.tools:
            events += self._grow_call(delta)
        return events

    def close(self) -> list[Event]:
        """The end of the open block."""
        if not self._field:
            return []
        text = "".join(self._pieces)
        self._blocks[-1][self._field] = self._input(text) if self._field == "input" else text
        self._field, self._call, self._pieces = "", -1, []
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}]

    def shown(self) -> list[dict[str, Any]]:
        """Anthropic's JSON of the blocks that are closed."""
        return self._blocks

    def _grow(self, kind: str, empty: dict[str, Any], delta: str, piece: str) -> list[Event]:
        events = [] if self._field == kind else self._begin(kind, {"type": kind, **empty})
        return [*events, self._more({"type": delta, kind: piece}, piece)]

    def _grow_call(self, delta: ToolDelta) -> list[Event]:
        events: list[Event] = []
        if self._call != delta.call:
            events = self._begin("input", {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}})
            self._call = delta.call
        if delta.arguments:
            events.append(self._more({"type": "input_json_delta", "partial_json": delta.arguments}, delta.arguments))
        return events

    def _begin(self, field: str, block: dict[str, Any]) -> list[Event]:
        events = self.close()
        self._blocks.append(block)
        self._field = field
        start = {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}
        return [*events, start]

    def _more(self, delta: dict[str, Any], piece: str) -> Event:
        self._pieces.append(piece)
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _input(self, text: str) -> orjson.Fragment:
        """A call's arguments; those that broke off are shown as none."""
        arguments = object_text(text)
        self.called = arguments is not None
        # as text: numbers may have more bits than any type of ours
        return orjson.Fragment(arguments or "{}")
