"""Each served model, loaded from the files of its card: its tokenizer, and the parsers that its workers name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from tokenizers import Tokenizer

from actors.prompt_cache.digest_store import DigestStore
from api.parsers.reasoning import CLOSING, OPENING
from api.parsers.vllm_parsers import ParserUnavailable, VllmParsers
from api.server.caller import effective_tenant
from api.tokenizer.model_tokenizer import ModelTokenizer
from api.tokenizer.tokenizer_pool import TokenizerPool
from core.errors import Corrupt
from core.models import ModelCard

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


class LoadedModel(NamedTuple):
    """One served model: text to tokens, and the way that it writes calls and reasoning."""

    tokenizer: ModelTokenizer
    parsers: ModelParsers


def load_model(name: str, files: Mapping[str, bytes], texts: DigestStore | None = None) -> LoadedModel:
    """The model from its files. Corrupt if they cannot be used. May import vLLM, seconds: not on an event loop."""
    tokenizer = ModelTokenizer(name, files, texts)
    return LoadedModel(tokenizer, load_parsers(name, files, tokenizer.library))


class LoadedModels:
    """All models served, each loaded once, beside the event loop, and the threads that use their tokenizers."""

    def __init__(self, texts: DigestStore | None = None, *, isolate_tenants: bool = False) -> None:
        """`texts` keeps tokenized texts; `isolate_tenants` gives each tenant texts of its own."""
        self._isolate_tenants = isolate_tenants
        self._texts = texts or DigestStore()
        self._loaded: dict[str, tuple[Mapping[str, bytes], LoadedModel]] = {}
        self._lock = asyncio.Lock()
        self.pool = TokenizerPool()
        """Threads in which tokenizers work on long texts."""

    def __repr__(self) -> str:
        return f"<LoadedModels {', '.join(sorted(self._loaded)) or 'no model yet'}>"

    def cache_tenant(self, claimed: str | None) -> str:
        """The tenant of the present request, whose tokenized texts it may find; empty where tenants share them."""
        return (effective_tenant(claimed) or "") if self._isolate_tenants else ""

    async def of(self, card: ModelCard) -> LoadedModel:
        """The model, for the files that the card has now. Corrupt if they cannot be used."""
        return self.loaded(card) or await self._load(card)

    def loaded(self, card: ModelCard) -> LoadedModel | None:
        """The same, if it is there already."""
        files, model = self._loaded.get(card.name, (None, None))
        # the same object almost always: comparing megabytes per request would cost more than the rest
        if files is not card.files and files == card.files and model is not None:
            self._loaded[card.name] = (card.files, model)
            return model
        return model if files is card.files else None

    async def _load(self, card: ModelCard) -> LoadedModel:
        async with self._lock:
            if (model := self.loaded(card)) is None:
                model = await asyncio.to_thread(load_model, card.name, card.files, self._texts)
                self._loaded[card.name] = (card.files, model)
            return model
