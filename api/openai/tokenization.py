"""`/tokenize` and `/detokenize`, as vLLM has them: what a prompt or a chat becomes, and what token ids say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import orjson

from api.openai.request.prompts import tokenize_prompts
from api.openai.request.request_metadata import parse_headers
from api.openai.request.validation import check
from api.openai.types.backend import Backend
from api.openai.types.request_types import ChatMessage, ChatRequest, CompletionRequest, ModelName, TokenId, Tool
from api.openai.unary_route import UnaryRequest
from api.parsers.loaded_models import LoadedModels
from api.server.errors import ContextExceeded, bad_parameter, not_supported
from api.server.limits import ApiSettings
from api.tokenizer.model_tokenizer import ModelTokenizer
from api.tokenizer.tokenizer_pool import Proceed
from core.models import ModelCard
from core.prompt import TOKEN_BYTES, tokens_from_bytes
from core.served_names import listed

TOKENIZED_MAX = 131_072
"""Tokens that a text may have in any model; more take the tokenizer too much memory."""
DECODED_AT_ONCE = 8192
"""Tokens that become text in one step: the library holds up all other threads meanwhile, some 2 ms."""


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /tokenize: a prompt, or the messages of a chat."""

    model: ModelName | None = None
    """May be left out where one model is served."""
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    """Of a prompt; a chat's template writes them itself."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /detokenize."""

    holds_token_ids: ClassVar[bool] = True
    model: ModelName | None = None
    tokens: list[TokenId]


class Tokenization:
    """Text to tokens and back, with the same code as a generation; no worker is asked."""

    def __init__(self, backend: Backend, settings: ApiSettings, models: LoadedModels) -> None:
        self._backend = backend
        self._settings = settings
        self._models = models

    async def tokenize(self, body: TokenizeRequest, unary_request: UnaryRequest) -> bytes:
        """vLLM's JSON of the token ids."""
        if body.return_token_strs:
            raise not_supported("return_token_strs")
        card = self._card(body.model)
        tokens = tokens_from_bytes(await self.prompt(_parameters(body, card), unary_request))
        answer = {"count": len(tokens), "max_model_len": card.context_max, "tokens": tokens, "token_strs": None}
        return orjson.dumps(answer)

    async def translate(self, work: Callable[[], ChatRequest], unary_request: UnaryRequest) -> ChatRequest:
        """The result of `work` on the request's body."""
        tenant = parse_headers(unary_request.headers).tenant
        return await self._models.pool.run_if_large(work, unary_request.size, tenant)

    async def prompt(
        self, parameters: ChatRequest | CompletionRequest, unary_request: UnaryRequest, tokens_max: int = TOKENIZED_MAX
    ) -> bytes:
        """The token ids of the request's only prompt, as little-endian uint32.

        ContextExceeded if they are more than `tokens_max`, and than the model's context.
        """
        check(parameters)
        card = self._backend.card(parameters.model)
        tokenizer = (await self._models.of(card)).tokenizer
        tokens_max = max(card.context_max, tokens_max)
        claimed = parse_headers(unary_request.headers).tenant
        tenant = self._models.cache_tenant(claimed)
        try:
            if unary_request.size <= self._settings.inline_bytes_max:
                (prompt,) = tokenize_prompts(parameters, tokenizer, tokens_max, tenant=tenant)
            else:
                (prompt,) = await self._models.pool.run(
                    lambda proceed: tokenize_prompts(parameters, tokenizer, tokens_max, proceed, tenant),
                    unary_request.size,
                    claimed,
                )
        except ContextExceeded as error:
            raise _too_many(error.param or "", card, error.tokens, tokens_max) from error
        count = len(prompt.tokens) // TOKEN_BYTES
        if count > tokens_max:
            raise _too_many("messages" if isinstance(parameters, ChatRequest) else "prompt", card, count, tokens_max)
        return prompt.tokens

    async def detokenize(self, body: DetokenizeRequest, unary_request: UnaryRequest) -> bytes:
        """vLLM's JSON of the text; special tokens are in it. At most as many tokens as `tokenize` tells."""
        card = self._card(body.model)
        tokenizer = (await self._models.of(card)).tokenizer
        if len(body.tokens) > (tokens_max := max(card.context_max, TOKENIZED_MAX)):
            raise bad_parameter("tokens", f"must hold at most {tokens_max} ids, not {len(body.tokens)}")
        if body.tokens and max(body.tokens) >= tokenizer.vocabulary:
            raise bad_parameter("tokens", f"token ids must be from 0 to {tokenizer.vocabulary - 1}")
        text = await self._models.pool.run(
            lambda proceed: _text(tokenizer, body.tokens, proceed),
            unary_request.size,
            parse_headers(unary_request.headers).tenant,
        )
        return orjson.dumps({"prompt": text})

    def _card(self, model: str | None) -> ModelCard:
        if model is not None:
            return self._backend.card(model)
        match self._backend.models():
            case [only]:
                return only
            case several:
                names = listed(card.name for card in several)
                raise bad_parameter("model", f"is required where not one model alone is served; here: {names}")


def _parameters(body: TokenizeRequest, card: ModelCard) -> ChatRequest | CompletionRequest:
    if (body.prompt is None) == (body.messages is None):
        raise bad_parameter("prompt", "give either prompt or messages")
    if body.messages is None:
        return CompletionRequest(model=card.name, prompt=body.prompt or "", add_special_tokens=body.add_special_tokens)
    return ChatRequest(
        model=card.name,
        messages=body.messages,
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _too_many(part: str, card: ModelCard, tokens: int, tokens_max: int) -> ContextExceeded:
    fault = f"has at least {tokens} tokens, and at most {tokens_max} are told here: shorten it"
    return ContextExceeded(part, card.name, tokens, tokens_max, tokens_max, fault)


def _text(tokenizer: ModelTokenizer, tokens: list[int], proceed: Proceed) -> str:
    detokenizer, pieces = tokenizer.detokenizer(skip_special_tokens=False), list[str]()
    for start in range(0, len(tokens), DECODED_AT_ONCE):
        proceed()
        pieces.append(detokenizer.push(tokens[start : start + DECODED_AT_ONCE]))
    return "".join((*pieces, detokenizer.flush()))
