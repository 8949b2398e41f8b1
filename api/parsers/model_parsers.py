"""How a model writes calls and reasoning: the parsers that its workers name, from the files of its card."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
from tokenizers import Tokenizer

from api.parsers.reasoning import CLOSING, OPENING
from api.parsers.vllm_parsers import ParserUnavailable, VllmParsers
from core.errors import Corrupt

log = logging.getLogger(__name__)

FILE = "contrail.json"
TOOLS = ("hermes", "llama3_json", "mistral")
"""Formats of calls that we read ourselves."""
REASONING = ("deepseek_r1", "qwen3")
"""Formats of reasoning likewise."""


class ParserNames(msgspec.Struct, frozen=True):
    """The file: names as vLLM's server takes them for `--tool-call-parser` and `--reasoning-parser`."""

    tool_call_parser: str | None = None
    reasoning_parser: str | None = None


class ModelParsers:
    """One model's. What only vLLM can read is read by vLLM's own parsers, if it is installed here."""

    def __init__(
        self, named: ParserNames, tokenizer: Tokenizer, vllm: VllmParsers | None = None, fault: str = ""
    ) -> None:
        self.tools = named.tool_call_parser or None
        self.reasoning = named.reasoning_parser or None
        added = tokenizer.get_added_tokens_decoder().values()
        self.special = frozenset(token.content for token in added if token.special)
        """Texts of the tokenizer's special tokens."""
        self.opening = tokenizer.token_to_id(OPENING)
        self.closing = tokenizer.token_to_id(CLOSING)
        """The tokens around reasoning, None where they are not one each."""
        self.vllm = vllm
        """None if nothing needs it, or if it cannot be had."""
        self.fault = fault
        """Why it cannot, and what to do."""

    def __repr__(self) -> str:
        return f"<ModelParsers tools {self.tools}, reasoning {self.reasoning}, vLLM's {self.vllm}>"


def load_parsers(model: str, files: Mapping[str, bytes], tokenizer: Tokenizer) -> ModelParsers:
    """The model's parsers. Corrupt if the file cannot be read. May import vLLM, seconds: not on an event loop."""
    named = _parser_names(model, files)
    tools = named.tool_call_parser if named.tool_call_parser not in TOOLS else None
    reasoning = named.reasoning_parser if named.reasoning_parser not in REASONING else None
    if not tools and not reasoning:
        return ModelParsers(named, tokenizer)
    try:
        vllm = VllmParsers(model, named.tool_call_parser if tools else None, named.reasoning_parser, tokenizer)
    except ParserUnavailable as error:
        log.warning("model %s: %s", model, error)
        return ModelParsers(named, tokenizer, fault=str(error))
    return ModelParsers(named, tokenizer, vllm)


def _parser_names(model: str, files: Mapping[str, bytes]) -> ParserNames:
    try:
        return msgspec.json.decode(files.get(FILE) or b"{}", type=ParserNames)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{FILE} of model {model!r} cannot be read: {error}") from error
