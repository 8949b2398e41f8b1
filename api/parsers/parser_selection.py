"""The output parser of a choice: it finds reasoning and calls of tools in the text; none where all is text."""

from __future__ import annotations

from collections.abc import Callable

from api.openai.types.request_types import ChatRequest
from api.parsers.loaded_models import REASONING, TOOLS, LoadedModel, ModelParsers
from api.parsers.output_parser import OutputParser
from api.parsers.reasoning import CLOSING, OPENING, ChainedParser, ThinkParser
from api.parsers.structured_outputs import read_guided
from api.parsers.tool_call_formats import (
    HermesParser,
    Llama3JsonParser,
    MistralParser,
    NamedCallParser,
    RequiredCallParser,
)
from api.parsers.tool_calls import ToolCallCollector, mistral_id, openai_id
from api.parsers.tool_choice import AUTO, NAMED, NONE, REQUIRED, ToolOffer, read_tool_offer, without_parser
from api.server.errors import ApiError, bad_parameter
from core.prompt import TOKEN_BYTES, tokens_from_bytes

TAIL_TOKENS = 16
"""Of the prompt's end: there a template has opened or closed the reasoning, if it has."""


def select_parser(request: ChatRequest, model: LoadedModel, prompt: bytes = b"") -> OutputParser | None:
    """A new reader for one choice, None if its text is all that is said.

    `prompt` are the prompt's token ids, little-endian uint32: a template may have opened the reasoning in it, or
    closed it. ApiError for tools that cannot be offered to this model.
    """
    parsers = model.parsers
    if parsers.reasoning is None and request.tools is None and request.tool_choice is None:
        return None
    offer = read_tool_offer(request)
    auto = offer is not None and offer.choice == AUTO
    if auto and parsers.tools is None:
        raise without_parser(request.model)
    if auto and parsers.tools not in TOOLS:
        return _vllm(request, parsers, "tool_choice", prompt, tools=True)
    calls = None if offer is None or offer.choice == NONE else _calls(offer, parsers)
    if parsers.reasoning is None:
        return calls
    include_reasoning = request.include_reasoning is not False
    if parsers.reasoning not in REASONING:
        return ChainedParser(
            _vllm(request, parsers, None, prompt, tools=False), calls, include_reasoning=include_reasoning
        )
    ended, calls_end = _ended(request, model, prompt), parsers.reasoning == "qwen3"
    think = ThinkParser(ended=ended, calls_end=calls_end, special=parsers.special)
    return ChainedParser(think, calls, include_reasoning=include_reasoning)


def _calls(offer: ToolOffer, parsers: ModelParsers) -> OutputParser:
    new_id: Callable[[], str] = mistral_id if parsers.tools == "mistral" else openai_id
    collector = ToolCallCollector(new_id, single=offer.single)
    if offer.choice == REQUIRED:
        return RequiredCallParser(collector)
    if offer.choice == NAMED:
        return NamedCallParser(collector, offer.name)
    if parsers.tools == "llama3_json":
        return Llama3JsonParser(collector, frozenset(tool.function.name for tool in offer.tools))
    return (HermesParser if parsers.tools == "hermes" else MistralParser)(collector, parsers.special)


def _vllm(
    request: ChatRequest, parsers: ModelParsers, param: str | None, prompt: bytes, *, tools: bool
) -> OutputParser:
    if parsers.vllm is not None:
        return parsers.vllm.reader(request, prompt, tools=tools)
    if param is not None:
        raise bad_parameter(param, f"the model's calls cannot be read: {parsers.fault}")
    raise ApiError(500, f"the model's reasoning cannot be read: {parsers.fault}", type="server_error")


def _ended(request: ChatRequest, model: LoadedModel, prompt: bytes) -> bool:
    """True if the prompt has closed the reasoning: then the whole answer is text."""
    parsers = model.parsers
    if parsers.reasoning == "deepseek_r1" and parsers.closing is not None and read_guided(request) is not None:
        # so vLLM's engine decides whether its grammar holds from the first token on
        return _last(prompt, parsers.closing) > _last(prompt, parsers.opening)
    last = request.messages[-1]
    if request.continue_final_message and isinstance(last.content, str) and last.content.strip():
        return OPENING not in last.content or CLOSING in last.content
    tail = tokens_from_bytes(prompt[-TAIL_TOKENS * TOKEN_BYTES :])
    return model.tokenizer.texts.decode(tail, skip_special_tokens=False).rstrip().endswith(CLOSING)


def _last(prompt: bytes, token: int | None) -> int:
    """The token's last position, in bytes from the start; -1 if the prompt does not have it."""
    if token is None:
        return -1
    sought = token.to_bytes(TOKEN_BYTES, "little")
    at = prompt.rfind(sought)
    while at >= 0 and at % TOKEN_BYTES:
        at = prompt.rfind(sought, 0, at + TOKEN_BYTES - 1)
    return at
