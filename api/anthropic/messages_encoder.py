"""Anthropic's Messages API: its adapter, and the encoder of a message, whole or as its sequence of events."""

from __future__ import annotations

from typing import Any

import orjson

from api.anthropic.messages_request import to_chat_request
from api.anthropic.messages_types import CountRequest, MessagesRequest
from api.anthropic.tool_changes import omitted_tools
from api.openai.generation_route import ApiAdapter
from api.openai.request.choice import ChoiceDelta
from api.openai.request.preprocessor import PreparedRequest
from api.openai.tokenization import Tokenization
from api.openai.unary_route import UnaryRequest
from api.parsers.output_parser import Delta
from api.parsers.tool_calls import ToolDelta, normalize_json_object
from api.server.errors import AnthropicError, ApiError
from core.prompt import TOKEN_BYTES

Event = dict[str, Any]


class ContentBlocks:
    """Blocks so far, of which the last one may be open; each delta costs what is new in it."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._field = ""
        """Of the open block: which field of it grows; none is open without one."""
        self._call = -1
        """Which call the open block is."""
        self._pieces: list[str] = []
        self.called = False
        """True if the arguments of the last closed call are an object: the client can make the call."""

    def __repr__(self) -> str:
        return f"<ContentBlocks {len(self._blocks)}, {self._field or 'none'} growing>"

    def add(self, delta: Delta) -> list[Event]:
        """The events of the delta, in the order in which a model says it."""
        events: list[Event] = []
        if delta.reasoning:
            events += self._grow("thinking", {"thinking": "", "signature": ""}, "thinking_delta", delta.reasoning)
        if delta.text:
            events += self._grow("text", {"text": ""}, "text_delta", delta.text)
        for tool_delta in delta.tools:
            events += self._grow_call(tool_delta)
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
        arguments = normalize_json_object(text)
        self.called = arguments is not None
        # as text: numbers may have more bits than any type of ours
        return orjson.Fragment(arguments or "{}")


class MessagesEncoder:
    """Encodes one message."""

    def __init__(self, prepared: PreparedRequest, request_id: str) -> None:
        self._prepared = prepared
        self._id = f"msg_{request_id}"
        self._blocks = ContentBlocks()

    def __repr__(self) -> str:
        return f"<MessagesEncoder {self._id}>"

    def encode_opening(self) -> bytes:
        """The message as it begins."""
        message = {**self._message(), "stop_reason": None, "stop_sequence": None, "content": []}
        return _encode_events([{"type": "message_start", "message": message}])

    def encode_ping(self) -> bytes:
        """An event that says nothing."""
        return _encode_events([{"type": "ping"}])

    def encode_delta(self, choice_delta: ChoiceDelta) -> bytes:
        """The events of the delta."""
        return _encode_events(self._blocks.add(choice_delta.delta))

    def encode_text(self, text: str) -> bytes:
        """The events of a delta that is nothing but text."""
        return self.encode_delta(ChoiceDelta(0, Delta(text)))

    def encode_closing(self) -> bytes:
        """The ends of the last block and of the message."""
        events = self._blocks.close()
        events.append({"type": "message_delta", "delta": self._end(), "usage": _usage(self._prepared)})
        return _encode_events([*events, {"type": "message_stop"}])

    def encode_error(self, error: ApiError) -> bytes:
        """The error as an event."""
        return b"event: error\ndata: " + error.body() + b"\n\n"

    def encode_whole(self) -> bytes:
        """The message as it ended."""
        self._blocks.close()
        return orjson.dumps({**self._message(), "content": self._blocks.shown(), **self._end()})

    def _message(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._prepared.shown_model,
            "usage": _usage(self._prepared),
        }

    def _end(self) -> dict[str, Any]:
        """The stop reason after the last block: clients make the calls of a message that ended with `tool_use`."""
        stopped = self._prepared.choices[0].transcript.stop_reason
        if self._prepared.finish == "length":
            reason = "max_tokens"
        elif self._blocks.called:
            reason = "tool_use"
        elif isinstance(stopped, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
        else:
            reason = "end_turn"
        return {"stop_reason": reason, "stop_sequence": None}


def _usage(prepared: PreparedRequest) -> dict[str, Any]:
    """Anthropic counts what came from a cache beside `input_tokens`, not in it."""
    used = prepared.usage()
    return {
        "input_tokens": used.prompt_tokens - (used.cached_tokens or 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached_tokens or 0,
        "output_tokens": used.completion_tokens,
    }


def _encode_events(events: list[Event]) -> bytes:
    return b"".join([b"event: %b\ndata: %b\n\n" % (it["type"].encode(), orjson.dumps(it)) for it in events])


COUNTED_MAX = 1_048_576
"""So many tokens may a prompt have that is only counted, also beyond the context: programs ask how far beyond."""
MESSAGES = ApiAdapter(
    body_type=MessagesRequest,
    to_request=to_chat_request,
    encoder=lambda _asked, prepared, request_id, _clock: MessagesEncoder(prepared, request_id),
    to_error=AnthropicError,
    omitted_tools=omitted_tools,
)


class TokenCount:
    """`/v1/messages/count_tokens`: the prompt as a generation would have it, counted."""

    def __init__(self, tokenization: Tokenization) -> None:
        self._tokenization = tokenization

    async def answer(self, body: CountRequest, unary_request: UnaryRequest) -> bytes:
        """Anthropic's JSON of the count."""
        request = await self._tokenization.translate(lambda: to_chat_request(body), unary_request)
        tokens = await self._tokenization.prompt(request, unary_request, COUNTED_MAX)
        return orjson.dumps({"input_tokens": len(tokens) // TOKEN_BYTES})
