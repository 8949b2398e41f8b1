"""Answers in OpenAI's forms: whole, and as server-sent events built from templates (about 0.2 us each)."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import orjson

DONE = b"data: [DONE]\n\n"


class Usage(NamedTuple):
    """Tokens of one generation."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_json(self) -> dict[str, Any]:
        """OpenAI's `usage`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Writer:
    """The answer to one request, as bytes. Subclasses say how one route shows text."""

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

    def __init__(self, request_id: str, model: str, created_s: int, *, include_usage: bool) -> None:
        self._identity = {"id": self.id_prefix + request_id, "created": created_s, "model": model}
        chunk = orjson.dumps({**self._identity, "object": self.chunk_object})
        self._head = b"data: " + chunk[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._before = self._head + self.text_before
        self._after = self.text_after + self._tail
        self._include_usage = include_usage

    def opening(self) -> bytes:
        """What comes before the first text."""
        return self._head + self.opening_choice + self._tail if self.opening_choice else b""

    def text(self, piece: str) -> bytes:
        """One event with text."""
        return self._before + orjson.dumps(piece) + self._after

    def closing(self, finish: str, usage: Usage) -> bytes:
        """Everything after the last text."""
        end = self._head + self.last_choice + orjson.dumps(finish) + b"}" + self._tail
        if self._include_usage:
            end += self._head + b'],"usage":' + orjson.dumps(usage.as_json()) + b"}\n\n"
        return end + DONE

    def whole(self, text: str, finish: str, usage: Usage) -> bytes:
        """The answer that is not streamed."""
        choice = {"index": 0, **self._shown(text), "logprobs": None, "finish_reason": finish}
        answer = {**self._identity, "object": self.whole_object, "choices": [choice], "usage": usage.as_json()}
        return orjson.dumps(answer)

    def _shown(self, text: str) -> dict[str, Any]:
        raise NotImplementedError


class ChatWriter(Writer):
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    opening_choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
    text_before = b'{"index":0,"delta":{"content":'
    text_after = b'},"logprobs":null,"finish_reason":null}'
    last_choice = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":'

    def _shown(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


class CompletionWriter(Writer):
    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    opening_choice = b""
    text_before = b'{"index":0,"text":'
    text_after = b',"logprobs":null,"finish_reason":null}'
    last_choice = b'{"index":0,"text":"","logprobs":null,"finish_reason":'

    def _shown(self, text: str) -> dict[str, Any]:
        return {"text": text}


def error_event(body: bytes) -> bytes:
    """An error in the middle of a stream, the last thing in it."""
    return b"data: " + body + b"\n\n"
