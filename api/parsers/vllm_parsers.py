"""vLLM's own parsers of calls and reasoning, for the formats that we do not read ourselves.

vLLM is imported when a model needs it, which takes some six seconds and 400 MB: never on an event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from tokenizers import Tokenizer

from api.openai.types.request_types import ChatRequest
from api.parsers.output_parser import EMPTY_DELTA, Delta
from api.parsers.tool_calls import ToolDelta, openai_id
from api.server.errors import ApiError, redacted_traceback
from api.tokenizer.detokenizer import replace_lone_surrogates
from core.errors import ContrailError
from core.prompt import tokens_from_bytes

log = logging.getLogger(__name__)

VLLM_ID = "chatcmpl-tool-"
"""Prefix of vLLM's own ids."""


class ParserUnavailable(ContrailError):
    """vLLM is not installed here, or has no such parser; the text says what to do."""


class VllmParsers:
    """For one model. ParserUnavailable if they cannot be had; the tokenizer is copied."""

    def __init__(self, model: str, tools: str | None, reasoning: str | None, tokenizer: Tokenizer) -> None:
        names = " and ".join(repr(name) for name in (tools, reasoning) if name)
        try:
            self._load(model, tools, reasoning, tokenizer)
        except ImportError as error:
            fault = f"the parsers {names} are vLLM's, and it is not installed here ({error})"
            raise ParserUnavailable(f"{fault}: install vllm beside this front end, or choose one of our own") from error
        except Exception as error:  # vLLM's parsers raise exceptions of many types when they are made
            raise ParserUnavailable(f"vLLM cannot read {names} for this model: {error}") from error
        self._names = names

    def _load(self, model: str, tools: str | None, reasoning: str | None, tokenizer: Tokenizer) -> None:
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - see above
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: PLC0415
        from vllm.parser.parser_manager import ParserManager  # noqa: PLC0415

        self._request_type: Any = ChatCompletionRequest
        made: Any = PreTrainedTokenizerFast
        self._tokenizer = made(tokenizer_object=tokenizer)
        parser, own = ParserManager.get_parser, self._tokenizer
        self._whole: Any = parser(tools, reasoning, tools is not None, model, tokenizer=own)
        self._reasoning: Any = parser(None, reasoning, model_name=model, tokenizer=own)

    def __repr__(self) -> str:
        return f"<VllmParsers {self._names}>"

    def reader(self, request: ChatRequest, prompt: bytes, *, tools: bool) -> VllmOutputParser:
        """A new one for one choice: of calls and reasoning, or of reasoning alone. ApiError for what vLLM refuses."""
        try:
            return self._reader(request, prompt, tools=tools)
        except (ValueError, TypeError, LookupError) as error:
            raise ApiError(400, f"the model's parser refuses the request: {error}") from error

    def _reader(self, request: ChatRequest, prompt: bytes, *, tools: bool) -> VllmOutputParser:
        offered = msgspec.to_builtins(request.tools) if tools else None
        made = self._request_type(
            messages=[],
            model=request.model,
            tools=offered,
            tool_choice="auto" if tools else "none",
            include_reasoning=request.include_reasoning is not False,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        kind = self._whole if tools else self._reasoning
        parser = kind(self._tokenizer, made.tools, chat_template_kwargs=request.chat_template_kwargs or {})
        single = request.parallel_tool_calls is False
        return VllmOutputParser(parser, made, tokens_from_bytes(prompt), stream=bool(request.stream), single=single)


class VllmOutputParser:
    """An `OutputParser` around one of vLLM's parsers. Not streamed, the whole text is read at its end, as vLLM does."""

    def __init__(self, parser: Any, request: Any, prompt: Sequence[int], *, stream: bool, single: bool) -> None:
        self._parser = parser
        self._request = parser.adjust_request(request)
        self._prompt = list(prompt)
        self._stream = stream
        self._single = single
        self._text = ""
        self._tokens: list[int] = []
        self.keeps_special_tokens = self._request.skip_special_tokens is False
        self.called = False
        if not stream:
            parser.set_prompt_token_ids(self._prompt)

    def __repr__(self) -> str:
        return f"<VllmOutputParser {type(self._parser).__name__}>"

    def push(self, text: str, tokens: Sequence[int]) -> Delta:
        """The delta that the parser is sure of; empty before the end of an answer that is not streamed."""
        if not self._stream:
            self._text += text
            self._tokens += tokens
            return EMPTY_DELTA
        return self._delta(text, list(tokens), finished=False)

    def finish(self) -> Delta:
        """The rest. What a parser fails at is text."""
        return self._delta("", [], finished=True) if self._stream else self._all()

    def _delta(self, text: str, tokens: list[int], *, finished: bool) -> Delta:
        try:
            message = self._parser.parse_delta(text, tokens, self._request, self._prompt, finished=finished)
        except Exception as error:  # noqa: BLE001 - after any failure of a parser the client gets the text
            self._failed(error)
            return Delta(text)
        if message is None:
            return EMPTY_DELTA
        return Delta(message.content or "", message.reasoning or "", self._kept(message.tool_calls or ()))

    def _failed(self, error: Exception) -> None:
        # the error's own words may hold the answer's
        log.error("%s failed, so the text leaves as it is:\n%s", self, redacted_traceback(error))

    def _kept(self, calls: Sequence[Any]) -> tuple[ToolDelta, ...]:
        self.called = self.called or bool(calls)
        return tuple(_delta_of(call) for call in calls if not (self._single and call.index > 0))

    def _all(self) -> Delta:
        try:
            reasoning, content, calls = self._parser.parse(
                self._text, self._request, enable_auto_tools=True, model_output_token_ids=self._tokens
            )
        except Exception as error:  # noqa: BLE001 - likewise
            self._failed(error)
            return Delta(self._text)
        self.called = bool(calls)
        shown = self._request.include_reasoning
        kept = list(calls or ())[: 1 if self._single else None]
        found = (_delta(index, _id_of(call), call) for index, call in enumerate(kept))
        return Delta(content or "", (reasoning or "") if shown else "", tuple(found))


def _delta_of(call: Any) -> ToolDelta:
    function = call.function
    return _delta(call.index, _id_of(call) if function and function.name else "", function)


def _delta(index: int, id: str, function: Any) -> ToolDelta:
    """In characters that an answer can hold: some parsers decode a call's JSON and write it anew."""
    name, arguments = (function.name, function.arguments) if function else ("", "")
    return ToolDelta(index, id, replace_lone_surrogates(name or ""), replace_lone_surrogates(arguments or ""))


def _id_of(call: Any) -> str:
    """Like OpenAI's instead of vLLM's, unless the model's own format has one."""
    return call.id if call.id and not call.id.startswith(VLLM_ID) else openai_id()
