"""Answers in OpenAI's forms: whole, and as server-sent events, built from templates where they are plain text."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import orjson

from api.openai.answers.collected import Collected
from api.openai.answers.logprobs_form import TokenNames
from api.openai.answers.said import Step
from api.openai.answers.usage import Usage
from api.openai.requests.accepted import Accepted
from core.prompt import TOKEN_BYTES

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
"""A comment, which clients of events pass over."""


class Writer:
    """The answer to one request, as bytes. Subclasses say how one route shows it.

    `opening`, `around_text` and `ending` write a stream of one plain choice, at about 0.2 us per event; `openings` and
    `step` write any, at some 5 us.
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

    def __init__(self, request_id: str, created_s: int, accepted: Accepted) -> None:
        self.accepted = accepted
        self.shown = accepted.shown
        kind = self.chunk_object if accepted.stream else self.whole_object
        identity = {
            "id": self.id_prefix + request_id, "created": created_s, "model": accepted.model, "object": kind
        }  # fmt: skip
        self._head = orjson.dumps(identity)[:-1] + b',"choices":['
        if accepted.stream:
            self._head = b"data: " + self._head
            self._tail = b'],"usage":null}\n\n' if accepted.include_usage else b"]}\n\n"
            self.around_text = self._head + self.text_before, self.text_after + self._tail
            """What stands before and behind the JSON of a text, in an event of the only choice."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._head!r}>"

    @cached_property
    def names(self) -> TokenNames:
        """How the answer names tokens."""
        return TokenNames(self.shown.texts, as_ids=self.shown.as_ids)

    def opening(self) -> bytes:
        """What comes before the first text of the only choice."""
        return self._head + self.opening_choice + self._tail if self.opening_choice else b""

    def ending(self, finish: str, stop_reason: str | int | None) -> bytes:
        """How the only choice ended."""
        last = self.last_choice + orjson.dumps(finish) + b',"stop_reason":' + orjson.dumps(stop_reason) + b"}"
        return self._head + last + self._tail

    def closing(self, usage: Usage) -> bytes:
        """Everything after the choices' ends."""
        if not self.accepted.include_usage:
            return DONE
        return self._head + b'],"usage":' + usage.as_json() + b"}\n\n" + DONE

    def openings(self) -> bytes:
        """What comes before the first step, of all choices."""
        raise NotImplementedError

    def step(self, step: Step) -> bytes:
        """The events for one step."""
        raise NotImplementedError

    def whole(self, collected: list[Collected], usage: Usage) -> bytes:
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
        tier = orjson.dumps(self.shown.service_tier)
        return b'],"usage":%b,"service_tier":%b,"system_fingerprint":null' % (usage.as_json(), tier)

    def whole_choice(self, index: int, collected: Collected) -> dict[str, Any]:
        """One choice of such an answer."""
        raise NotImplementedError

    def extras(self) -> dict[str, Any]:
        """What such an answer has beside its choices, if the request asked for it."""
        return {}

    def tells(self, step: Step) -> bool:
        """Whether the step has anything that the request asked for, beside its end."""
        shown = self.shown
        return any(step.said) or bool(shown.token_ids and step.tokens) or bool(shown.logprobs >= 0 and step.logprobs)

    def event(self, shown_choice: dict[str, Any], step: Step, **beside: Any) -> bytes:
        """One event with this choice in it; what is `beside` stands there."""
        if self.shown.continuous_usage:
            beside["usage"] = self._usage_after(step)
        elif self.accepted.include_usage:
            beside["usage"] = None
        tail = b"," + orjson.dumps(beside)[1:] if beside else b"}"
        return self._head + orjson.dumps(shown_choice) + b"]" + tail + b"\n\n"

    def _usage_after(self, step: Step) -> dict[str, int]:
        prompt = len(self.accepted.choices[step.choice].request.tokens) // TOKEN_BYTES
        answer = step.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def error_event(body: bytes) -> bytes:
    """An error in the middle of a stream, the last thing in it."""
    return b"data: " + body + b"\n\n"
