"""Encoders of OpenAI's answers: `ChatEncoder` and `CompletionEncoder`, over the base that both share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import orjson

from api.openai.request.choice import ChoiceDelta
from api.openai.request.preprocessor import PreparedRequest
from api.openai.response_encoder import (
    CollectedCall,
    CollectedChoice,
    CompletionLogprobs,
    TokenNames,
    best_choices,
    chat_logprobs,
    prompt_logprobs,
)
from api.parsers.output_parser import EMPTY_DELTA, Delta
from api.parsers.tool_calls import ToolDelta
from api.server.errors import ApiError
from core.generation import TokenLogprobs
from core.prompt import TOKEN_BYTES, tokens_from_bytes

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
"""A comment, which clients of events pass over."""


class OpenAIEncoder:
    """An answer in OpenAI's forms; subclasses have the form of one route.

    A delta of a stream costs some 5 us, a text some 0.2 us.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    text_before: ClassVar[bytes]
    text_after: ClassVar[bytes]
    """The JSON of the only choice around the JSON of its text."""

    def __init__(self, request_id: str, created_s: int, prepared: PreparedRequest) -> None:
        self.prepared = prepared
        self.options = prepared.options
        self._identity = {
            "id": self.id_prefix + request_id,
            "created": created_s,
            "model": prepared.shown_model,
            "object": self.chunk_object if prepared.stream else self.whole_object,
        }
        self._head = b""
        """The beginning of each event of a stream."""
        self._collected: list[CollectedChoice] = []
        """Of an answer that is not streamed."""
        if prepared.stream:
            self._head = b"data: " + orjson.dumps(self._identity)[:-1] + b',"choices":['
            tail = b'],"usage":null}\n\n' if prepared.options.include_usage else b"]}\n\n"
            self._around_text = self._head + self.text_before, self.text_after + tail
        else:
            self._collected = [CollectedChoice(choice) for choice in prepared.choices]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._identity['id']}>"

    @cached_property
    def names(self) -> TokenNames:
        """The names of tokens in this answer."""
        return TokenNames(self.options.texts, as_ids=self.options.as_ids)

    def encode_opening(self) -> bytes:
        """Nothing: the first delta comes first."""
        return b""

    def encode_delta(self, choice_delta: ChoiceDelta) -> bytes:
        """The events of the delta; none if the answer is not streamed."""
        if self.prepared.stream:
            return self.delta_events(choice_delta)
        self._collected[choice_delta.choice].add(choice_delta)
        return b""

    def encode_text(self, text: str) -> bytes:
        """The same of a delta of the only choice that is nothing but text."""
        if self.prepared.stream:
            before, after = self._around_text
            return before + orjson.dumps(text) + after
        self._collected[0].text.append(text)
        return b""

    def encode_ping(self) -> bytes:
        """A comment."""
        return PING

    def encode_closing(self) -> bytes:
        """The usage, if it is asked for, and the end."""
        if not self.prepared.options.include_usage:
            return DONE
        return self._head + b'],"usage":' + orjson.dumps(self.prepared.usage().as_json()) + b"}\n\n" + DONE

    def encode_error(self, error: ApiError) -> bytes:
        """The error as an event."""
        return b"data: " + error.body() + b"\n\n"

    def encode_whole(self) -> bytes:
        """The answer that is not streamed."""
        collected = self._collected
        if self.options.best_of > self.options.n:
            collected = best_choices(collected, self.options.n)
        answer = {
            **self._identity,
            "choices": [self.whole_choice(index, one) for index, one in enumerate(collected)],
            "usage": self.prepared.usage().as_json(),
            "service_tier": self.options.service_tier,
            "system_fingerprint": None,
            **self.extras(),
        }
        return orjson.dumps(answer)

    def delta_events(self, choice_delta: ChoiceDelta) -> bytes:
        """The events of one delta of a stream."""
        raise NotImplementedError

    def whole_choice(self, index: int, collected: CollectedChoice) -> dict[str, Any]:
        """One choice of such an answer."""
        raise NotImplementedError

    def extras(self) -> dict[str, Any]:
        """Further fields of a whole answer that the request asked for."""
        return {}

    def has_content(self, choice_delta: ChoiceDelta) -> bool:
        """True if the delta holds text, a call, token ids or logprobs that the request asked for."""
        options, delta = self.options, choice_delta.delta
        return (
            bool(delta.text or delta.reasoning or delta.tools)
            or bool(options.token_ids and choice_delta.tokens)
            or bool(options.logprobs >= 0 and choice_delta.logprobs)
        )

    def event(self, shown_choice: dict[str, Any], choice_delta: ChoiceDelta, **beside: Any) -> bytes:
        """One event with this choice in it; what is `beside` stands there."""
        if self.options.continuous_usage:
            beside["usage"] = self._usage_after(choice_delta)
        elif self.prepared.options.include_usage:
            beside["usage"] = None
        tail = b"," + orjson.dumps(beside)[1:] if beside else b"}"
        return self._head + orjson.dumps(shown_choice) + b"]" + tail + b"\n\n"

    def _usage_after(self, choice_delta: ChoiceDelta) -> dict[str, int]:
        prompt = len(self.prepared.choices[choice_delta.choice].request.tokens) // TOKEN_BYTES
        answer = choice_delta.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


class ChatEncoder(OpenAIEncoder):
    """Shows text as messages and their deltas."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    text_before = b'{"index":0,"delta":{"content":'
    text_after = b'},"logprobs":null,"finish_reason":null}'

    def encode_opening(self) -> bytes:
        """Each choice's role."""
        return b"".join([self._role(index) for index in range(len(self.prepared.choices))])

    def _role(self, index: int) -> bytes:
        encoded = {"role": "assistant", "content": ""}
        shown = {"index": index, "delta": encoded, "logprobs": None, "finish_reason": None}
        asked = self.options.token_ids and index == 0
        prompt = {"prompt_token_ids": tokens_from_bytes(self.prepared.choices[0].request.tokens)} if asked else {}
        return self.event(shown, ChoiceDelta(index, EMPTY_DELTA), **prompt)

    def delta_events(self, choice_delta: ChoiceDelta) -> bytes:
        """A delta, and another without one that says how the choice ended."""
        events = b""
        if self.has_content(choice_delta):
            shown = {
                "index": choice_delta.choice,
                "delta": _delta(choice_delta.delta, as_function=self.options.as_function),
                "logprobs": self._logprobs(choice_delta.logprobs),
                "finish_reason": None,
            }
            events = self.event(shown | self._token_ids(choice_delta.tokens), choice_delta)
        if choice_delta.finish is None:
            return events
        reason = self.prepared.choices[choice_delta.choice].transcript.stop_reason
        last = {
            "index": choice_delta.choice,
            "delta": {},
            "logprobs": None,
            "finish_reason": self._finish(choice_delta.finish),
        }
        return events + self.event(last | {"stop_reason": reason}, choice_delta)

    def whole_choice(self, index: int, collected: CollectedChoice) -> dict[str, Any]:
        """A message."""
        return {
            "index": index,
            "message": _message(collected, as_function=self.options.as_function),
            "logprobs": self._logprobs(collected.logprobs),
            "finish_reason": self._finish(collected.choice.finish),
            "stop_reason": collected.choice.transcript.stop_reason,
            **self._token_ids(collected.tokens),
        }

    def _finish(self, finish: str | None) -> str | None:
        return "function_call" if self.options.as_function and finish == "tool_calls" else finish

    def extras(self) -> dict[str, Any]:
        """The prompt's token ids and logprobs."""
        choice = self.prepared.choices[0]
        extras: dict[str, Any] = {}
        if self.options.prompt_logprobs:
            extras["prompt_logprobs"] = prompt_logprobs(choice.prompt_logprobs, self.names)
        if self.options.token_ids:
            extras["prompt_token_ids"] = tokens_from_bytes(choice.request.tokens)
        return extras

    def _logprobs(self, entries: list[TokenLogprobs] | tuple[TokenLogprobs, ...]) -> dict[str, Any] | None:
        top = self.options.logprobs
        return None if top < 0 else chat_logprobs(entries, self.names, top)

    def _token_ids(self, tokens: list[int] | tuple[int, ...]) -> dict[str, Any]:
        return {"token_ids": tokens} if self.options.token_ids else {}


def _delta(delta: Delta, *, as_function: bool) -> dict[str, Any]:
    encoded: dict[str, Any] = {}
    if delta.text or not (delta.reasoning or delta.tools):
        encoded["content"] = delta.text
    if delta.reasoning:
        encoded |= _reasoning(delta.reasoning)
    if delta.tools and as_function:
        encoded["function_call"] = _function_delta(delta.tools)
    elif delta.tools:
        encoded["tool_calls"] = [_call_delta(tool) for tool in delta.tools]
    return encoded


def _call_delta(tool: ToolDelta) -> dict[str, Any]:
    if not tool.id:
        return {"index": tool.call, "function": {"arguments": tool.arguments}}
    function = {"name": tool.name, "arguments": tool.arguments}
    return {"index": tool.call, "id": tool.id, "type": "function", "function": function}


def _function_delta(tools: tuple[ToolDelta, ...]) -> dict[str, str]:
    """Of the only call: its name once, and the next piece of its arguments."""
    arguments = "".join([tool.arguments for tool in tools])
    name = next((tool.name for tool in tools if tool.name), "")
    return {"name": name, "arguments": arguments} if name else {"arguments": arguments}


def _message(collected: CollectedChoice, *, as_function: bool) -> dict[str, Any]:
    text, reasoning = "".join(collected.text), "".join(collected.reasoning)
    nothing_else = not collected.calls and not reasoning
    message: dict[str, Any] = {"role": "assistant", "content": text if text or nothing_else else None, "refusal": None}
    # null where there is none: clients of reasoning models read `message.reasoning` without asking whether it is there
    message |= _reasoning(reasoning) if reasoning else {"reasoning": None}
    if collected.calls and as_function:
        message["function_call"] = _call(collected.calls[min(collected.calls)])["function"]
    elif collected.calls:
        message["tool_calls"] = [_call(call) for _, call in sorted(collected.calls.items())]
    return message


def _reasoning(text: str) -> dict[str, str]:
    """Under both names that clients look for."""
    return {"reasoning": text, "reasoning_content": text}


def _call(call: CollectedCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(call.arguments)}}


class CompletionEncoder(OpenAIEncoder):
    """Shows text as it is."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    text_before = b'{"index":0,"text":'
    text_after = b',"logprobs":null,"finish_reason":null}'

    def __init__(self, request_id: str, created_s: int, prepared: PreparedRequest) -> None:
        super().__init__(request_id, created_s, prepared)
        self._begun: dict[int, CompletionLogprobs] = {}
        """Per choice, once it has logprobs."""
        self._prompt_sent: set[int] = set()
        """Choices of which an event had the prompt's ids."""

    def delta_events(self, choice_delta: ChoiceDelta) -> bytes:
        """The text, and another event that says how the choice ended."""
        events = b""
        if self.has_content(choice_delta):
            shown = {
                "index": choice_delta.choice,
                "text": choice_delta.delta.text,
                "logprobs": self._logprobs(choice_delta.choice, choice_delta.logprobs),
                "finish_reason": None,
            }
            events = self.event(shown | self._ids(choice_delta), choice_delta)
        if choice_delta.finish is None:
            return events
        reason = self.prepared.choices[choice_delta.choice].transcript.stop_reason
        last = {"index": choice_delta.choice, "text": "", "logprobs": None, "finish_reason": choice_delta.finish}
        return events + self.event(last | {"stop_reason": reason}, choice_delta)

    def whole_choice(self, index: int, collected: CollectedChoice) -> dict[str, Any]:
        """A text."""
        choice = collected.choice
        shown = {
            "index": index,
            "text": "".join(collected.text),
            "logprobs": self._logprobs(choice.index, collected.logprobs),
            "finish_reason": choice.finish,
            "stop_reason": choice.transcript.stop_reason,
        }
        if self.options.prompt_logprobs:
            shown["prompt_logprobs"] = prompt_logprobs(choice.prompt_logprobs, self.names)
        if self.options.token_ids:
            shown["token_ids"] = collected.tokens
            shown["prompt_token_ids"] = tokens_from_bytes(choice.request.tokens)
        return shown

    def _logprobs(self, index: int, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if self.options.logprobs < 0:
            return None
        return self._form(index).piece(entries)

    def _form(self, index: int) -> CompletionLogprobs:
        if index not in self._begun:
            special = self.options.special_tokens
            self._begun[index] = CompletionLogprobs(self.names, self.options.logprobs, special_tokens_shown=special)
        return self._begun[index]

    def _ids(self, choice_delta: ChoiceDelta) -> dict[str, Any]:
        """The prompt's once, as vLLM does."""
        if not self.options.token_ids:
            return {}
        if choice_delta.choice in self._prompt_sent:
            return {"token_ids": choice_delta.tokens}
        self._prompt_sent.add(choice_delta.choice)
        prompt = self.prepared.choices[choice_delta.choice].request.tokens
        return {"token_ids": choice_delta.tokens, "prompt_token_ids": tokens_from_bytes(prompt)}
