"""Encoders of answers: `ResponseEncoder` is what each API has, `OpenAIEncoder` the base of OpenAI's two.

`CollectedChoice` gathers one choice of an answer that is not streamed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar, Protocol

import orjson

from api.openai.logprobs import TokenNames
from api.openai.request.choice import Choice
from api.openai.request.prepared_request import PreparedRequest
from api.openai.types.deltas import ChoiceDelta
from api.server.errors import ApiError
from core.generation import TokenLogprobs
from core.prompt import TOKEN_BYTES


@dataclass(slots=True)
class CollectedCall:
    """One call of a tool."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CollectedChoice:
    """All that one choice said, for an answer that is not streamed; adding is O(new)."""

    choice: Choice
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, CollectedCall] = field(default_factory=dict)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add(self, choice_delta: ChoiceDelta) -> None:
        """The delta follows what came before it."""
        self.text.append(choice_delta.delta.text)
        self.reasoning.append(choice_delta.delta.reasoning)
        for tool_delta in choice_delta.delta.tools:
            call = self.calls.setdefault(tool_delta.call, CollectedCall())
            call.id, call.name = call.id or tool_delta.id, call.name or tool_delta.name
            call.arguments.append(tool_delta.arguments)
        self.logprobs += choice_delta.logprobs
        self.tokens += choice_delta.tokens

    def mean_logprob(self) -> float:
        """Of the answer's tokens, an echoed prompt's not counted."""
        own = [entry.logprob for entry in self.logprobs[len(self.logprobs) - len(self.tokens) :]]
        return sum(own) / len(own) if own else 0.0


def best_choices(all_of_them: list[CollectedChoice], n: int) -> list[CollectedChoice]:
    """For each prompt the `n` whose tokens were likeliest on average, those first."""
    chosen: list[CollectedChoice] = []
    for _, same_prompt in groupby(all_of_them, key=lambda it: it.choice.prompt):
        # sorting keeps the order of equal ones
        chosen += sorted(same_prompt, key=lambda it: -it.mean_logprob())[:n]
    return chosen


DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
"""A comment, which clients of events pass over."""


class ResponseEncoder(Protocol):
    """Encodes one answer in an API's form: pieces of a stream as bytes, or all of it at its end."""

    def opening(self) -> bytes:
        """The stream's first events, before those of the first delta."""

    def encode_delta(self, choice_delta: ChoiceDelta) -> bytes:
        """The events of one delta; kept for the whole answer too."""

    def encode_text(self, text: str) -> bytes:
        """The same of a delta of the only choice that is nothing but text."""

    def ping(self) -> bytes:
        """An event for a stream in a long pause."""

    def closing(self) -> bytes:
        """The stream's last events, behind those of the last delta."""

    def broken(self, error: ApiError) -> bytes:
        """The last event of a stream that cannot go on."""

    def whole(self) -> bytes:
        """The answer that is not streamed, of all deltas that were encoded."""


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
        kind = self.chunk_object if prepared.stream else self.whole_object
        identity = {
            "id": self.id_prefix + request_id, "created": created_s, "model": prepared.model, "object": kind
        }  # fmt: skip
        self._head = orjson.dumps(identity)[:-1] + b',"choices":['
        self._collected: list[CollectedChoice] = []
        """Of an answer that is not streamed."""
        if prepared.stream:
            self._head = b"data: " + self._head
            tail = b'],"usage":null}\n\n' if prepared.include_usage else b"]}\n\n"
            self._around_text = self._head + self.text_before, self.text_after + tail
        else:
            self._collected = [CollectedChoice(choice) for choice in prepared.choices]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._head!r}>"

    @cached_property
    def names(self) -> TokenNames:
        """How the answer names tokens."""
        return TokenNames(self.options.texts, as_ids=self.options.as_ids)

    def opening(self) -> bytes:
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

    def ping(self) -> bytes:
        """A comment."""
        return PING

    def closing(self) -> bytes:
        """The usage, if it is asked for, and the end."""
        if not self.prepared.include_usage:
            return DONE
        return self._head + b'],"usage":' + self.prepared.usage().as_json() + b"}\n\n" + DONE

    def broken(self, error: ApiError) -> bytes:
        """The error as an event."""
        return b"data: " + error.body() + b"\n\n"

    def whole(self) -> bytes:
        """The answer that is not streamed."""
        collected = self._collected
        if self.options.best_of > self.options.n:
            collected = best_choices(collected, self.options.n)
        choices = orjson.dumps([self.whole_choice(index, one) for index, one in enumerate(collected)])
        usage, tier = self.prepared.usage().as_json(), orjson.dumps(self.options.service_tier)
        tail = b'],"usage":%b,"service_tier":%b,"system_fingerprint":null' % (usage, tier)
        extras = orjson.dumps(self.extras())[1:-1]
        return b"".join((self._head, choices[1:-1], tail, extras and b"," + extras, b"}"))

    def delta_events(self, choice_delta: ChoiceDelta) -> bytes:
        """The events of one delta of a stream."""
        raise NotImplementedError

    def whole_choice(self, index: int, collected: CollectedChoice) -> dict[str, Any]:
        """One choice of such an answer."""
        raise NotImplementedError

    def extras(self) -> dict[str, Any]:
        """What such an answer has beside its choices, if the request asked for it."""
        return {}

    def tells(self, choice_delta: ChoiceDelta) -> bool:
        """Whether the delta has anything that the request asked for, beside its end."""
        options = self.options
        return (
            any(choice_delta.delta)
            or bool(options.token_ids and choice_delta.tokens)
            or bool(options.logprobs >= 0 and choice_delta.logprobs)
        )

    def event(self, shown_choice: dict[str, Any], choice_delta: ChoiceDelta, **beside: Any) -> bytes:
        """One event with this choice in it; what is `beside` stands there."""
        if self.options.continuous_usage:
            beside["usage"] = self._usage_after(choice_delta)
        elif self.prepared.include_usage:
            beside["usage"] = None
        tail = b"," + orjson.dumps(beside)[1:] if beside else b"}"
        return self._head + orjson.dumps(shown_choice) + b"]" + tail + b"\n\n"

    def _usage_after(self, choice_delta: ChoiceDelta) -> dict[str, int]:
        prompt = len(self.prepared.choices[choice_delta.choice].request.tokens) // TOKEN_BYTES
        answer = choice_delta.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
