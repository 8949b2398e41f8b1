"""`/v1/responses`: its adapter, and the encoder of a response, whole or as its sequence of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import orjson

from api.openai.generation_route import ApiAdapter
from api.openai.request.choice import ChoiceDelta
from api.openai.request.preprocessor import PreparedRequest
from api.openai.response_encoder import TokenNames, chat_logprobs
from api.parsers.output_parser import Delta
from api.parsers.tool_calls import ToolDelta
from api.responses.output_items import (
    CallItem,
    CustomCallItem,
    Event,
    MessageItem,
    OutputItem,
    ReasoningItem,
    SummaryItem,
    unsealed,
)
from api.responses.reasoning_seal import ReasoningSeal, unseal_reasoning
from api.responses.responses_request import rename_parameter, to_chat_request
from api.responses.responses_types import ChosenTool, Reasoning, ResponsesRequest, ResponsesTool
from api.responses.tool_catalog import ToolCatalog, omitted_tools
from api.server.caller import effective_tenant
from api.server.errors import ApiError
from core.clock import Clock


class ResponseOutput:
    """Items so far, of which the last one may be open; each delta costs what is new in it."""

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

    def add(self, delta: Delta, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        """The events of the delta, in the order in which a model says it.

        Logprobs are shown with the text that they came with; of reasoning and of calls OpenAI shows none.
        """
        events: list[Event] = []
        if delta.reasoning:
            if not isinstance(self._open, ReasoningItem):
                events += self._next(self._reasoning(self._request_id, self._index(), self._seal))
            events += self._more(delta.reasoning)
        if delta.text:
            if not isinstance(self._open, MessageItem):
                events += self._next(MessageItem(self._request_id, self._index()))
            events += self._more(delta.text, logprobs)
        for tool_delta in delta.tools:
            if self._call != tool_delta.call:
                events += self._next(self._call_item(tool_delta))
                self._call = tool_delta.call
            events += self._more(tool_delta.arguments) if tool_delta.arguments else []
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

    def _call_item(self, tool_delta: ToolDelta) -> CallItem:
        """The call under the client's name for the tool."""
        tool = self._catalog.get(tool_delta.name)
        if tool is None:
            return CallItem(self._request_id, self._index(), tool_delta.id, tool_delta.name)
        kind = CustomCallItem if tool.custom else CallItem
        return kind(self._request_id, self._index(), tool_delta.id, tool.name, tool.namespace)

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


CONTEXT_CODE = "context_length_exceeded"
FAILURE_CODES = frozenset({CONTEXT_CODE, "rate_limit_exceeded"})
"""Codes of our errors that clients of this API know. Codex stops after `server_is_overloaded`, which an overload would
be called, and asks again after `server_error`."""
SEALED = "reasoning.encrypted_content"
"""The entry of `include` that asks for sealed reasoning."""
SUMMARIES = frozenset({"auto", "concise", "detailed"})
"""Words that ask for a summary of the reasoning; each is answered with all of its text."""


class ResponsesEncoder:
    """Encodes one response; every event has the number that follows."""

    def __init__(
        self,
        body: ResponsesRequest,
        prepared: PreparedRequest,
        request_id: str,
        clock: Clock,
        seal: Callable[[str], str | None] = unsealed,
    ) -> None:
        """`seal`: what a client that asks for sealed reasoning gets of it."""
        self._prepared = prepared
        self._names = TokenNames(prepared.options.texts, as_ids=False)
        self._clock = clock
        self._output = ResponseOutput(
            request_id,
            ToolCatalog(body),
            summarized=_summarized(body.reasoning),
            seal=seal if SEALED in (body.include or ()) else unsealed,
        )
        self._events = EventWriter()
        self._response = {**_begun(body, request_id, clock), "model": prepared.shown_model}

    def __repr__(self) -> str:
        return f"<ResponsesEncoder {self._response['id']}, {self._events}>"

    def encode_opening(self) -> bytes:
        """The response as it begins."""
        return self._events.written([self._state("response.created"), self._state("response.in_progress")])

    def encode_ping(self) -> bytes:
        """An event that says nothing, as OpenAI's server sends it: clients that wait for events pass over comments."""
        return self._events.written([("keepalive", {})])

    def encode_delta(self, choice_delta: ChoiceDelta) -> bytes:
        """The events of the delta."""
        return self._events.written(self._output.add(choice_delta.delta, self._logprobs(choice_delta)))

    def encode_text(self, text: str) -> bytes:
        """The events of a delta that is nothing but text."""
        return self.encode_delta(ChoiceDelta(0, Delta(text)))

    def _logprobs(self, choice_delta: ChoiceDelta) -> list[dict[str, Any]]:
        if not choice_delta.logprobs:
            return []
        content: list[dict[str, Any]] = chat_logprobs(
            choice_delta.logprobs, self._names, self._prepared.options.logprobs
        )["content"]
        return content

    def encode_closing(self) -> bytes:
        """The ends of the last item and of the response."""
        events = self._end()
        return self._events.written([*events, self._state(f"response.{self._response['status']}")])

    def encode_error(self, error: ApiError) -> bytes:
        """The response as it failed, with the items that were whole."""
        self._response["output"] = self._output.shown()
        return self._events.written([_failed(self._response, error)])

    def encode_whole(self) -> bytes:
        """The response as it ended."""
        self._end()
        return orjson.dumps(self._response)

    def _end(self) -> list[Event]:
        usage = self._prepared.usage()
        cut = self._prepared.finish == "length"
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
            "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
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
        encoded: list[bytes] = []
        for kind, fields in events:
            data = orjson.dumps({"type": kind, "sequence_number": self._count, **fields})
            encoded.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
            self._count += 1
        return b"".join(encoded)


def refused_stream(body: ResponsesRequest, error: ApiError, request_id: str, clock: Clock) -> bytes | None:
    """The whole stream for a streamed request with a prompt that does not fit; None for other errors and requests.

    Codex shortens its conversation after this event alone: after a status of 400 it stops.
    """
    if not body.stream or error.code != CONTEXT_CODE:
        return None
    response = _begun(body, request_id, clock)
    # written one by one: the first event shows the response as it was before the second
    writer = EventWriter()
    created = writer.written([("response.created", {"response": response})])
    return created + writer.written([_failed(response, error)])


def _begun(body: ResponsesRequest, request_id: str, clock: Clock) -> dict[str, Any]:
    """The response to this request id as it begins."""
    return {
        "id": f"resp_{request_id}",
        "object": "response",
        "created_at": clock.wall_ms() // 1000,
        "status": "in_progress",
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        **_echoed(body),
        "output": [],
        "usage": None,
    }


def _failed(response: dict[str, Any], error: ApiError) -> Event:
    """The last event of a stream that failed; the response says why."""
    response["status"] = "failed"
    code = error.code if error.code in FAILURE_CODES else "server_error"
    response["error"] = {"code": code, "message": error.message}
    return "response.failed", {"response": response}


def _echoed(body: ResponsesRequest) -> dict[str, Any]:
    """The request's parameters as the response shows them, with the defaults that were used."""
    text_format = msgspec.to_builtins(body.text.format) if body.text and body.text.format else {"type": "text"}
    verbosity = body.text.verbosity if body.text else None
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "text": {"format": _as_sent(_without_nulls(text_format)), "verbosity": verbosity},
        "tools": _as_sent([_tool_echoed(tool) for tool in body.tools or ()]),
        "tool_choice": _choice_echoed(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": body.reasoning.summary if body.reasoning else None,
        },
        "metadata": body.metadata or {},
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
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


def responses_adapter(seal: ReasoningSeal) -> ApiAdapter[ResponsesRequest]:
    """The adapter of `/v1/responses`, which seals reasoning with `seal`."""

    def encoder(body: ResponsesRequest, prepared: PreparedRequest, request_id: str, clock: Clock) -> ResponsesEncoder:
        tenant = effective_tenant(prepared.choices[0].request.tenant)
        return ResponsesEncoder(body, prepared, request_id, clock, partial(seal.seal, tenant=tenant))

    return ApiAdapter(
        body_type=ResponsesRequest,
        to_request=to_chat_request,
        encoder=encoder,
        to_error=lambda error, _request_id: rename_parameter(error),
        unseal_reasoning=lambda body, tenant, request_id: unseal_reasoning(body, seal, tenant, request_id),
        omitted_tools=omitted_tools,
        refused_stream=refused_stream,
    )
