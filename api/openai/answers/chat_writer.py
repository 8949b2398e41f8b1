"""Answers of /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from api.openai.answers.collected import Call, Collected
from api.openai.answers.logprobs_form import chat_logprobs, prompt_logprobs
from api.openai.answers.said import NOTHING, Said, Step, ToolDelta
from api.openai.answers.sse import Writer
from core.generation import TokenLogprobs
from core.prompt import tokens_from_bytes


class ChatWriter(Writer):
    """Shows text as messages and their deltas."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    opening_choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
    text_before = b'{"index":0,"delta":{"content":'
    text_after = b'},"logprobs":null,"finish_reason":null}'
    last_choice = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":'
    whole_before = b'{"index":0,"message":{"role":"assistant","content":'
    whole_after = b',"refusal":null,"reasoning":null},"logprobs":null,"finish_reason":'

    def openings(self) -> bytes:
        """Each choice's role."""
        return b"".join([self._opening(index) for index in range(len(self.accepted.choices))])

    def _opening(self, index: int) -> bytes:
        delta = {"role": "assistant", "content": ""}
        shown = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        asked = self.shown.token_ids and index == 0
        prompt = {"prompt_token_ids": tokens_from_bytes(self.accepted.choices[0].request.tokens)} if asked else {}
        return self.event(shown, Step(index, NOTHING), **prompt)

    def step(self, step: Step) -> bytes:
        """A delta, and another without one that says how the choice ended."""
        events = b""
        if self.tells(step):
            shown = {
                "index": step.choice,
                "delta": _delta(step.said, as_function=self.shown.as_function),
                "logprobs": self._logprobs(step.logprobs),
                "finish_reason": None,
            }
            events = self.event(shown | self._token_ids(step.tokens), step)
        if step.finish is None:
            return events
        reason = self.accepted.choices[step.choice].transcript.stop_reason
        last = {"index": step.choice, "delta": {}, "logprobs": None, "finish_reason": self._finish(step.finish)}
        return events + self.event(last | {"stop_reason": reason}, step)

    def whole_choice(self, index: int, collected: Collected) -> dict[str, Any]:
        """A message."""
        return {
            "index": index,
            "message": _message(collected, as_function=self.shown.as_function),
            "logprobs": self._logprobs(collected.logprobs),
            "finish_reason": self._finish(collected.choice.finish),
            "stop_reason": collected.choice.transcript.stop_reason,
            **self._token_ids(collected.tokens),
        }

    def _finish(self, finish: str | None) -> str | None:
        return "function_call" if self.shown.as_function and finish == "tool_calls" else finish

    def extras(self) -> dict[str, Any]:
        """The prompt's token ids and logprobs."""
        choice = self.accepted.choices[0]
        extras: dict[str, Any] = {}
        if self.shown.prompt_logprobs:
            extras["prompt_logprobs"] = prompt_logprobs(choice.prompt_logprobs, self.names)
        if self.shown.token_ids:
            extras["prompt_token_ids"] = tokens_from_bytes(choice.request.tokens)
        return extras

    def _logprobs(self, entries: list[TokenLogprobs] | tuple[TokenLogprobs, ...]) -> dict[str, Any] | None:
        top = self.shown.logprobs
        return None if top < 0 else chat_logprobs(entries, self.names, top)

    def _token_ids(self, tokens: list[int] | tuple[int, ...]) -> dict[str, Any]:
        return {"token_ids": tokens} if self.shown.token_ids else {}


def _delta(said: Said, *, as_function: bool) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    if said.text or not (said.reasoning or said.tools):
        delta["content"] = said.text
    if said.reasoning:
        delta |= _reasoning(said.reasoning)
    if said.tools and as_function:
        delta["function_call"] = _function_delta(said.tools)
    elif said.tools:
        delta["tool_calls"] = [_call_delta(tool) for tool in said.tools]
    return delta


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


def _message(collected: Collected, *, as_function: bool) -> dict[str, Any]:
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


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(call.arguments)}}
