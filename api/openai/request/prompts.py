"""The prompts of a request as token ids: rendered and tokenized text, or ids as they were sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from api.openai.request.sampling import context_exceeded, least_output_tokens, requested_tokens
from api.openai.types.request_types import CHOICES_MAX, COMPLETION_TOKENS, ChatRequest, CompletionRequest
from api.server.errors import ApiError, bad_parameter
from api.tokenizer.chat_template import render
from api.tokenizer.model_tokenizer import ModelTokenizer, TextTooLong
from api.tokenizer.word_cache import WORD_BYTES_MAX, WordTooLong
from core.prompt import TOKEN_BYTES, tokens_from_bytes, tokens_to_bytes

TRUNCATED_CHARS_PER_TOKEN = 16
"""Characters tokenized for each token to keep, if the last tokens of a text are kept: few tokens are longer."""


class PromptTokens(msgspec.Struct, frozen=True):
    """One prompt of a request."""

    tokens: bytes
    """Little-endian uint32."""
    text: str | None = None
    """As it was sent, if it was text; always there if it is to be echoed."""


def tokenize_prompts(
    parameters: ChatRequest | CompletionRequest,
    tokenizer: ModelTokenizer,
    tokens_max: int,
    proceed: Callable[[], None] = lambda: None,
    tenant: str = "",
) -> list[PromptTokens]:
    """The request's prompts; ApiError if there is no token in one of them, or too many prompts.

    Of a prompt with more than `tokens_max`, a beginning that has more than that too; ContextExceeded if its length
    alone tells that it has. `proceed` is called between two steps, and raises to end it.
    """
    try:
        return _tokenize_prompts(parameters, tokenizer, _Keep.of(parameters, tokens_max, proceed, tenant))
    except TextTooLong as error:
        raise context_exceeded(parameters, error.tokens_min, tokens_max) from error
    except WordTooLong as error:
        raise word_too_long("messages" if isinstance(parameters, ChatRequest) else "prompt") from error


def word_too_long(part: str) -> ApiError:
    """400 for a text in this part of a body that cannot be tokenized in pieces."""
    fault = f"holds more than {WORD_BYTES_MAX} bytes in a row that are one word: put spaces between them, or fewer"
    return bad_parameter(part, fault, "word_too_long")


def _tokenize_prompts(
    parameters: ChatRequest | CompletionRequest, tokenizer: ModelTokenizer, keep: _Keep
) -> list[PromptTokens]:
    if isinstance(parameters, ChatRequest):
        if tokenizer.chat_template is None:
            raise ApiError(400, f"model {parameters.model!r} has no chat template: use /v1/completions", param="model")
        return [PromptTokens(keep.of_text(render(parameters, tokenizer.chat_template), tokenizer))]
    if not parameters.prompt:
        raise bad_parameter("prompt", "must not be empty")
    prompts = _several(parameters.prompt)
    each = max(parameters.n or 1, parameters.best_of or 1)
    if len(prompts) * each > CHOICES_MAX:
        fault = f"asks for {len(prompts)} times {each} answers, and one request may have {CHOICES_MAX}"
        raise bad_parameter("prompt", fault)
    sent = [_prompt(prompt, tokenizer, keep) for prompt in prompts]
    return [_with_text(prompt, parameters, tokenizer) for prompt in sent] if parameters.echo else sent


class _Keep(msgspec.Struct, frozen=True):
    """Which of a prompt's tokens are kept."""

    tokens_max: int
    truncate: int | None
    """So many; None: all."""
    left: bool
    """The last ones, as vLLM does unless told otherwise."""
    special: bool
    """True if the tokenizer adds its special tokens."""
    proceed: Callable[[], None]
    """Called before each step; it raises to end them."""
    tenant: str
    """Has tokenized texts of its own; empty where tenants share them."""

    @classmethod
    def of(
        cls, parameters: ChatRequest | CompletionRequest, tokens_max: int, proceed: Callable[[], None], tenant: str
    ) -> _Keep:
        """The tokens to keep by the request's parameters."""
        truncate = parameters.truncate_prompt_tokens
        if truncate == -1:
            truncate = max(1, tokens_max - _answer_tokens(parameters, tokens_max))
        if truncate is not None and not 0 < truncate <= tokens_max:
            raise bad_parameter("truncate_prompt_tokens", f"must be -1 or from 1 to {tokens_max}")
        chat = isinstance(parameters, ChatRequest)
        # a chat's template itself writes the special tokens
        special = bool(parameters.add_special_tokens) if chat else parameters.add_special_tokens is not False
        return cls(tokens_max, truncate, parameters.truncation_side != "right", special, proceed, tenant)

    def of_text(self, text: str, tokenizer: ModelTokenizer) -> bytes:
        """The tokens of a text that are kept; ApiError if there are none."""
        tokens_max, truncate = self.tokens_max, self.truncate
        if truncate is not None and self.left:
            text = text[-TRUNCATED_CHARS_PER_TOKEN * truncate :]
            tokens_max = len(text)
        tokens = tokenizer.encode(
            text, tokens_max, add_special_tokens=self.special, proceed=self.proceed, tenant=self.tenant
        )
        return tokens if tokens and truncate is None else self.of_tokens(tokens)

    def of_tokens(self, tokens: bytes) -> bytes:
        """Those of them that are kept; ApiError if there are none."""
        if not tokens:
            raise bad_parameter("prompt", "must hold at least one token")
        if self.truncate is None:
            return tokens
        size = self.truncate * TOKEN_BYTES
        return tokens[-size:] if self.left else tokens[:size]


def _answer_tokens(parameters: ChatRequest | CompletionRequest, context_max: int) -> int:
    """The tokens that a truncated prompt leaves to an answer: all asked for, or the least if the context is full."""
    requested = requested_tokens(parameters)
    if requested is None:
        return 1 if isinstance(parameters, ChatRequest) else COMPLETION_TOKENS
    return requested if requested < context_max else least_output_tokens(requested, context_max)


def _prompt(prompt: str | list[int], tokenizer: ModelTokenizer, keep: _Keep) -> PromptTokens:
    if isinstance(prompt, str):
        # a truncated text is another one: it is told from its tokens
        return PromptTokens(keep.of_text(prompt, tokenizer), prompt if keep.truncate is None else None)
    return PromptTokens(keep.of_tokens(_checked_ids(prompt, tokenizer.vocabulary)))


def _with_text(prompt: PromptTokens, parameters: CompletionRequest, tokenizer: ModelTokenizer) -> PromptTokens:
    if prompt.text is not None:
        return prompt
    skip = parameters.skip_special_tokens is not False
    text = tokenizer.texts.decode(tokens_from_bytes(prompt.tokens), skip_special_tokens=skip)
    return PromptTokens(prompt.tokens, text)


def _several(prompt: str | list[int | str | list[int]]) -> list[str] | list[list[int]]:
    """The prompts: one, or a list of texts, or a list of lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    for kind, wrapped in ((int, True), (str, False), (list, False)):
        if all(isinstance(it, kind) for it in prompt):
            return cast(list[list[int]], [prompt] if wrapped else prompt)
    raise bad_parameter("prompt", "must be a string, a list of token ids, or a list of strings or of such lists")


def _checked_ids(ids: list[int], vocabulary: int) -> bytes:
    if ids and (min(ids) < 0 or max(ids) >= vocabulary):
        raise bad_parameter("prompt", f"token ids must be from 0 to {vocabulary - 1}")
    return tokens_to_bytes(ids)
