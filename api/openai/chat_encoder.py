"""Answers of /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from api.openai.logprobs import chat_logprobs, prompt_logprobs
from api.openai.response_encoder import CollectedCall, CollectedChoice, OpenAIEncoder
from api.openai.types.deltas import EMPTY_DELTA, ChoiceDelta, Delta, ToolDelta
from core.generation import TokenLogprobs
from core.prompt import tokens_from_bytes


class ChatEncoder(OpenAIEncoder):
    """Shows text as messages and their deltas."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    text_before = b'{"index":0,"delta":{"content":'
    text_after = b'},"logprobs":null,"finish_reason":null}'

    def opening(self) -> bytes:
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
        if self.tells(choice_delta):
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
