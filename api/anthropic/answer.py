"""An answer in Anthropic's words: whole, or as its sequence of events."""

from __future__ import annotations

from typing import Any

import orjson

from api.anthropic.blocks import Blocks, Event
from api.openai.answers.said import Step
from api.openai.requests.accepted import Accepted
from api.server.errors import ApiError


class MessageTeller:
    """Tells one message."""

    def __init__(self, accepted: Accepted, request_id: str) -> None:
        self._accepted = accepted
        self._id = f"msg_{request_id}"
        self._blocks = Blocks()

    def __repr__(self) -> str:
        return f"<MessageTeller {self._id}>"

    def opening(self) -> bytes:
        """The message as it begins."""
        message = {**self._message(), "stop_reason": None, "stop_sequence": None, "content": []}
        return _told([{"type": "message_start", "message": message}])

    def ping(self) -> bytes:
        """An event that says nothing."""
        return _told([{"type": "ping"}])

    def step(self, step: Step) -> bytes:
        """What the step says."""
        return _told(self._blocks.add(step.said))

    def closing(self) -> bytes:
        """The ends of the last block and of the message."""
        events = self._blocks.close()
        events.append({"type": "message_delta", "delta": self._end(), "usage": _usage(self._accepted)})
        return _told([*events, {"type": "message_stop"}])

    def broken(self, error: ApiError) -> bytes:
        """The error as an event."""
        return b"event: error\ndata: " + error.body() + b"\n\n"

    def whole(self) -> bytes:
        """The message as it ended."""
        self._blocks.close()
        return orjson.dumps({**self._message(), "content": self._blocks.shown(), **self._end()})

    def _message(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._accepted.model,
            "usage": _usage(self._accepted),
        }

    def _end(self) -> dict[str, Any]:
        """How it ended, once its last block has: clients make the calls of what ended with `tool_use`."""
        stopped = self._accepted.choices[0].transcript.stop_reason
        if self._accepted.finish == "length":
            reason = "max_tokens"
        elif self._blocks.called:
            reason = "tool_use"
        elif isinstance(stopped, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
        else:
            reason = "end_turn"
        return {"stop_reason": reason, "stop_sequence": None}


def _usage(accepted: Accepted) -> dict[str, Any]:
    """Anthropic counts what came from a cache beside `input_tokens`, not in it."""
    used = accepted.usage()
    return {
        "input_tokens": used.prompt_tokens - used.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached_tokens,
        "output_tokens": used.completion_tokens,
    }


def _told(events: list[Event]) -> bytes:
    return b"".join([b"event: %b\ndata: %b\n\n" % (it["type"].encode(), orjson.dumps(it)) for it in events])
