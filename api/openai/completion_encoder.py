"""Answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.openai.logprobs import CompletionLogprobs, prompt_logprobs
from api.openai.request.prepared_request import PreparedRequest
from api.openai.response_encoder import CollectedChoice, OpenAIEncoder
from api.openai.types.deltas import ChoiceDelta
from core.generation import TokenLogprobs
from core.prompt import tokens_from_bytes


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
        self._told: set[int] = set()
        """Choices whose prompt's ids have left."""

    def delta_events(self, choice_delta: ChoiceDelta) -> bytes:
        """The text, and another event that says how the choice ended."""
        events = b""
        if self.tells(choice_delta):
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
        if choice_delta.choice in self._told:
            return {"token_ids": choice_delta.tokens}
        self._told.add(choice_delta.choice)
        prompt = self.prepared.choices[choice_delta.choice].request.tokens
        return {"token_ids": choice_delta.tokens, "prompt_token_ids": tokens_from_bytes(prompt)}
