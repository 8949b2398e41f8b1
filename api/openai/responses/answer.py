"""A response in OpenAI's words: whole, or as its sequence of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from api.openai.answers.logprobs_form import TokenNames, chat_logprobs
from api.openai.answers.said import Step
from api.openai.requests.accepted import Accepted
from api.openai.responses.body import ChosenTool, Reasoning, ResponsesRequest, ResponsesTool
from api.openai.responses.output import ResponseOutput
from api.openai.responses.output_items import Event, unsealed
from api.openai.responses.tool_catalog import ToolCatalog
from api.server.errors import ApiError
from core.clock import Clock

CONTEXT_CODE = "context_length_exceeded"
FAILURE_CODES = frozenset({CONTEXT_CODE, "rate_limit_exceeded"})
"""Codes of our errors that clients of this API know. Codex stops after `server_is_overloaded`, which an overload would
be called, and asks again after `server_error`."""
SEALED = "reasoning.encrypted_content"
"""What of `include` asks for sealed reasoning."""
SUMMARIES = frozenset({"auto", "concise", "detailed"})
"""Words that ask for a summary of the reasoning; each is answered with all of its text."""


class ResponseTeller:
    """Tells one response; every event has the number that follows."""

    def __init__(
        self,
        asked: ResponsesRequest,
        accepted: Accepted,
        request_id: str,
        clock: Clock,
        seal: Callable[[str], str | None] = unsealed,
    ) -> None:
        """`seal`: what a client that asks for sealed reasoning gets of it."""
        self._accepted = accepted
        self._names = TokenNames(accepted.shown.texts, as_ids=False)
        self._clock = clock
        self._output = ResponseOutput(
            request_id,
            ToolCatalog(asked),
            summarized=_summarized(asked.reasoning),
            seal=seal if SEALED in (asked.include or ()) else unsealed,
        )
        self._events = EventWriter()
        self._response = {**_begun(asked, request_id, clock), "model": accepted.model}

    def __repr__(self) -> str:
        return f"<ResponseTeller {self._response['id']}, {self._events}>"

    def opening(self) -> bytes:
        """The response as it begins."""
        return self._events.written([self._state("response.created"), self._state("response.in_progress")])

    def ping(self) -> bytes:
        """An event that says nothing, as OpenAI's server sends it: clients that wait for events pass over comments."""
        return self._events.written([("keepalive", {})])

    def step(self, step: Step) -> bytes:
        """What the step says."""
        return self._events.written(self._output.add(step.said, self._logprobs(step)))

    def _logprobs(self, step: Step) -> list[dict[str, Any]]:
        if not step.logprobs:
            return []
        told: list[dict[str, Any]] = chat_logprobs(step.logprobs, self._names, self._accepted.shown.logprobs)["content"]
        return told

    def closing(self) -> bytes:
        """The ends of the last item and of the response."""
        events = self._end()
        return self._events.written([*events, self._state(f"response.{self._response['status']}")])

    def broken(self, error: ApiError) -> bytes:
        """The response as it failed, with the items that were whole."""
        self._response["output"] = self._output.shown()
        return self._events.written([_failed(self._response, error)])

    def whole(self) -> bytes:
        """The response as it ended."""
        self._end()
        return orjson.dumps(self._response)

    def _end(self) -> list[Event]:
        usage = self._accepted.usage()
        cut = self._accepted.finish == "length"
        events = self._output.close("incomplete" if cut else "completed")
        if cut:
            self._response["status"] = "incomplete"
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self._response["status"] = "completed"
            self._response["completed_at"] = self._clock.wall_ms() // 1000
        self._response["output"] = self._output.shown()
        self._response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return events

    def _state(self, kind: str) -> Event:
        return kind, {"response": self._response}


class EventWriter:
    """Writes the events of one stream; every event has the number that follows."""

    def __init__(self) -> None:
        self._count = 0

    def __repr__(self) -> str:
        return f"<EventWriter {self._count} events>"

    def written(self, events: list[Event]) -> bytes:
        """The events as server-sent events."""
        told: list[bytes] = []
        for kind, fields in events:
            data = orjson.dumps({"type": kind, "sequence_number": self._count, **fields})
            told.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
            self._count += 1
        return b"".join(told)


def refused_stream(asked: ResponsesRequest, error: ApiError, request_id: str, clock: Clock) -> bytes | None:
    """The whole stream that refuses a streamed request whose prompt does not fit; None for other errors and requests.

    Codex shortens its conversation after this event alone: after a status of 400 it stops.
    """
    if not asked.stream or error.code != CONTEXT_CODE:
        return None
    response = _begun(asked, request_id, clock)
    # written one by one: the first event shows the response as it was before the second
    writer = EventWriter()
    created = writer.written([("response.created", {"response": response})])
    return created + writer.written([_failed(response, error)])


def _begun(asked: ResponsesRequest, request_id: str, clock: Clock) -> dict[str, Any]:
    """The response to this request id as it begins."""
    return {
        "id": f"resp_{request_id}",
        "object": "response",
        "created_at": clock.wall_ms() // 1000,
        "status": "in_progress",
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        **_echoed(asked),
        "output": [],
        "usage": None,
    }


def _failed(response: dict[str, Any], error: ApiError) -> Event:
    """The last event of a stream that failed; the response says why."""
    response["status"] = "failed"
    code = error.code if error.code in FAILURE_CODES else "server_error"
    response["error"] = {"code": code, "message": error.message}
    return "response.failed", {"response": response}


def _echoed(asked: ResponsesRequest) -> dict[str, Any]:
    """What the response says of its request, with the defaults that it was computed with."""
    text_format = msgspec.to_builtins(asked.text.format) if asked.text and asked.text.format else {"type": "text"}
    verbosity = asked.text.verbosity if asked.text else None
    return {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "top_logprobs": asked.top_logprobs or 0,
        "text": {"format": _as_sent(_without_nulls(text_format)), "verbosity": verbosity},
        "tools": _as_sent([_tool_echoed(tool) for tool in asked.tools or ()]),
        "tool_choice": _choice_echoed(asked.tool_choice),
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "reasoning": {
            "effort": asked.reasoning.effort if asked.reasoning else None,
            "summary": asked.reasoning.summary if asked.reasoning else None,
        },
        "metadata": asked.metadata or {},
        "user": asked.user,
        "safety_identifier": asked.safety_identifier,
        "prompt_cache_key": asked.prompt_cache_key,
        "truncation": "disabled",
        "service_tier": "default",
        "store": False,
        "background": False,
        "previous_response_id": None,
    }


def _summarized(reasoning: Reasoning | None) -> bool:
    return reasoning is not None and not SUMMARIES.isdisjoint({reasoning.summary, reasoning.generate_summary})


def _tool_echoed(tool: ResponsesTool) -> dict[str, Any]:
    fields = {name: getattr(tool, name) for name in tool.__struct_fields__ if getattr(tool, name) is not None}
    if tool.type == "function":
        return {"description": None, "parameters": None, "strict": None} | fields
    return fields | {"tools": [_tool_echoed(each) for each in tool.tools]} if tool.tools else fields


def _choice_echoed(choice: str | ChosenTool | None) -> Any:
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    named = _without_nulls(msgspec.to_builtins(choice))
    return named if choice.tools is None else named | {"tools": [_without_nulls(each) for each in named["tools"]]}


def _as_sent(value: Any) -> orjson.Fragment:
    """Encoded once for all events, and with the numbers of its schemas, which may have more than 64 bits."""
    return orjson.Fragment(msgspec.json.encode(value))


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
