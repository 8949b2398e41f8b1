"""The output of one response: what a choice says, sorted into items one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from api.openai.answers.said import Said, ToolDelta
from api.openai.responses.output_items import (
    CallItem,
    CustomCallItem,
    Event,
    MessageItem,
    OutputItem,
    ReasoningItem,
    SummaryItem,
    unsealed,
)
from api.openai.responses.tool_catalog import ToolCatalog


class ResponseOutput:
    """Items so far, of which the last one may be open; each step costs what is new in it."""

    def __init__(
        self,
        request_id: str,
        catalog: ToolCatalog,
        *,
        summarized: bool = False,
        seal: Callable[[str], str | None] = unsealed,
    ) -> None:
        """`summarized`: reasoning is shown as its summary; `seal`: what the client gets of it for later turns."""
        self._request_id = request_id
        self._catalog = catalog
        self._reasoning = SummaryItem if summarized else ReasoningItem
        self._seal = seal
        self._items: list[dict[str, Any]] = []
        self._open: OutputItem | None = None
        self._call: int | None = None
        """Which call the open item is."""

    def __repr__(self) -> str:
        return f"<ResponseOutput {len(self._items)} items closed>"

    def add(self, said: Said, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        """The events of what was said, in the order in which a model says it.

        Logprobs are shown with the text that they came with; of reasoning and of calls OpenAI shows none.
        """
        events: list[Event] = []
        if said.reasoning:
            if not isinstance(self._open, ReasoningItem):
                events += self._next(self._reasoning(self._request_id, self._index(), self._seal))
            events += self._more(said.reasoning)
        if said.text:
            if not isinstance(self._open, MessageItem):
                events += self._next(MessageItem(self._request_id, self._index()))
            events += self._more(said.text, logprobs)
        for delta in said.tools:
            if self._call != delta.call:
                events += self._next(self._call_item(delta))
                self._call = delta.call
            events += self._more(delta.arguments) if delta.arguments else []
        return events

    def close(self, status: str) -> list[Event]:
        """The events of the end; the last item has this status. An answer without any text is an empty message."""
        events = [] if self._open or self._items else self._begin(MessageItem(self._request_id, 0))
        return events + self._end(status)

    def shown(self) -> list[dict[str, Any]]:
        """OpenAI's JSON of the items that are closed."""
        return self._items

    def _index(self) -> int:
        """Of the item that begins next."""
        return len(self._items) + (self._open is not None)

    def _next(self, item: OutputItem) -> list[Event]:
        """The open item ends, and this one begins."""
        return self._end("completed") + self._begin(item)

    def _more(self, piece: str, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        assert self._open is not None
        return self._open.more(piece, logprobs)

    def _call_item(self, delta: ToolDelta) -> CallItem:
        """The call under the client's name for the tool."""
        tool = self._catalog.get(delta.name)
        if tool is None:
            return CallItem(self._request_id, self._index(), delta.id, delta.name)
        kind = CustomCallItem if tool.custom else CallItem
        return kind(self._request_id, self._index(), delta.id, tool.name, tool.namespace)

    def _begin(self, item: OutputItem) -> list[Event]:
        self._open = item
        return item.opened()

    def _end(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        events = self._open.closed(status)
        self._items.append(self._open.shown(status))
        self._open, self._call = None, None
        return events
