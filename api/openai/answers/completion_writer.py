"""Answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.openai.answers.collected import Collected
from api.openai.answers.logprobs_form import CompletionLogprobs, prompt_logprobs
from api.openai.answers.said import Step
from api.openai.answers.sse import Writer
from api.openai.requests.accepted import Accepted
from core.generation import TokenLogprobs
from core.prompt import tokens_from_bytes


class CompletionWriter(Writer):
    """Shows text as it is."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    opening_choice = b""
    text_before = b'{"index":0,"text":'
    text_after = b',"logprobs":null,"finish_reason":null}'
    last_choice = b'{"index":0,"text":"","logprobs":null,"finish_reason":'
    whole_before = text_before
    whole_after = b',"logprobs":null,"finish_reason":'

    def __init__(self, request_id: str, created_s: int, accepted: Accepted) -> None:
        super().__init__(request_id, created_s, accepted)
        self._begun: dict[int, CompletionLogprobs] = {}
        """Per choice, once it has logprobs."""
        self._told: set[int] = set()
        """Choices whose prompt's ids have left."""

    def openings(self) -> bytes:
        """Nothing: the first text comes first."""
        return b""

    def step(self, step: Step) -> bytes:
        """The text, and another event that says how the choice ended."""
        events = b""
        if self.tells(step):
            shown = {
                "index": step.choice,
                "text": step.said.text,
                "logprobs": self._logprobs(step.choice, step.logprobs),
                "finish_reason": None,
            }
            events = self.event(shown | self._ids(step), step)
        if step.finish is None:
            return events
        reason = self.accepted.choices[step.choice].transcript.stop_reason
        last = {"index": step.choice, "text": "", "logprobs": None, "finish_reason": step.finish}
        return events + self.event(last | {"stop_reason": reason}, step)

    def whole_choice(self, index: int, collected: Collected) -> dict[str, Any]:
        """A text."""
        choice = collected.choice
        shown = {
            "index": index,
            "text": "".join(collected.text),
            "logprobs": self._logprobs(choice.index, collected.logprobs),
            "finish_reason": choice.finish,
            "stop_reason": choice.transcript.stop_reason,
        }
        if self.shown.prompt_logprobs:
            shown["prompt_logprobs"] = prompt_logprobs(choice.prompt_logprobs, self.names)
        if self.shown.token_ids:
            shown["token_ids"] = collected.tokens
            shown["prompt_token_ids"] = tokens_from_bytes(choice.request.tokens)
        return shown

    def _logprobs(self, index: int, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if self.shown.logprobs < 0:
            return None
        return self._form(index).piece(entries)

    def _form(self, index: int) -> CompletionLogprobs:
        if index not in self._begun:
            special = self.shown.special_tokens
            self._begun[index] = CompletionLogprobs(self.names, self.shown.logprobs, special_tokens_shown=special)
        return self._begun[index]

    def _ids(self, step: Step) -> dict[str, Any]:
        """The prompt's once, as vLLM does."""
        if not self.shown.token_ids:
            return {}
        if step.choice in self._told:
            return {"token_ids": step.tokens}
        self._told.add(step.choice)
        prompt = self.accepted.choices[step.choice].request.tokens
        return {"token_ids": step.tokens, "prompt_token_ids": tokens_from_bytes(prompt)}
