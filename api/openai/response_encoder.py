"""Answers in OpenAI's forms: whole, and as server-sent events, built from templates where they are plain text.

`CollectedChoice` gathers one choice of an answer that is not streamed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

import orjson

from api.openai.logprobs import TokenNames
from api.openai.request.choice import Choice
from api.openai.request.prepared_request import PreparedRequest
from api.openai.types.deltas import ChoiceDelta, Usage
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

    def logprobs_count(self) -> int:
        """Tokens of prompt and answer whose logprobs are known."""
        return len(self.logprobs) + len(self.choice.prompt_logprobs)

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


class ResponseEncoder:
    """The answer to one request, as bytes. Subclasses say how one route shows it.

    `opening`, `around_text` and `ending` write a stream of one plain choice, at about 0.2 us per event; `openings` and
    `encode_delta` write any, at some 5 us.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    opening_choice: ClassVar[bytes]
    """The JSON of a stream's first choice; empty if nothing comes before the text."""
    text_before: ClassVar[bytes]
    text_after: ClassVar[bytes]
    """A choice's JSON around the JSON of its text."""
    last_choice: ClassVar[bytes]
    """The JSON of a stream's last choice, up to the value of finish_reason."""
    whole_before: ClassVar[bytes]
    whole_after: ClassVar[bytes]
    """The JSON of an answer's only choice around the JSON of its text, up to the value of finish_reason."""

    def __init__(self, request_id: str, created_s: int, prepared: PreparedRequest) -> None:
        self.prepared = prepared
        self.options = prepared.options
        kind = self.chunk_object if prepared.stream else self.whole_object
        identity = {
            "id": self.id_prefix + request_id, "created": created_s, "model": prepared.model, "object": kind
        }  # fmt: skip
        self._head = orjson.dumps(identity)[:-1] + b',"choices":['
        if prepared.stream:
            self._head = b"data: " + self._head
            self._tail = b'],"usage":null}\n\n' if prepared.include_usage else b"]}\n\n"
            self.around_text = self._head + self.text_before, self.text_after + self._tail
            """What stands before and behind the JSON of a text, in an event of the only choice."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._head!r}>"

    @cached_property
    def names(self) -> TokenNames:
        """How the answer names tokens."""
        return TokenNames(self.options.texts, as_ids=self.options.as_ids)

    def opening(self) -> bytes:
        """What comes before the first text of the only choice."""
        return self._head + self.opening_choice + self._tail if self.opening_choice else b""

    def ending(self, finish: str, stop_reason: str | int | None) -> bytes:
        """How the only choice ended."""
        last = self.last_choice + orjson.dumps(finish) + b',"stop_reason":' + orjson.dumps(stop_reason) + b"}"
        return self._head + last + self._tail

    def closing(self, usage: Usage) -> bytes:
        """Everything after the choices' ends."""
        if not self.prepared.include_usage:
            return DONE
        return self._head + b'],"usage":' + usage.as_json() + b"}\n\n" + DONE

    def openings(self) -> bytes:
        """What comes before the first delta, of all choices."""
        raise NotImplementedError

    def encode_delta(self, choice_delta: ChoiceDelta) -> bytes:
        """The events for one delta."""
        raise NotImplementedError

    def whole(self, collected: list[CollectedChoice], usage: Usage) -> bytes:
        """The answer that is not streamed."""
        choices = orjson.dumps([self.whole_choice(index, one) for index, one in enumerate(collected)])
        extras = orjson.dumps(self.extras())[1:-1]
        return b"".join((self._head, choices[1:-1], self._whole_tail(usage), extras and b"," + extras, b"}"))

    def plain(self, text: str, finish: str, stop_reason: str | int | None, usage: Usage) -> bytes:
        """The same of one choice that is nothing but text."""
        end = orjson.dumps(finish), b',"stop_reason":', orjson.dumps(stop_reason), b"}"
        before, after = self.whole_before, self.whole_after
        return b"".join((self._head, before, orjson.dumps(text), after, *end, self._whole_tail(usage), b"}"))

    def _whole_tail(self, usage: Usage) -> bytes:
        tier = orjson.dumps(self.options.service_tier)
        return b'],"usage":%b,"service_tier":%b,"system_fingerprint":null' % (usage.as_json(), tier)

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


def error_event(body: bytes) -> bytes:
    """An error in the middle of a stream, the last thing in it."""
    return b"data: " + body + b"\n\n"
