"""The prompt of a request as token ids: rendered and tokenized text, or ids as they were sent."""

from __future__ import annotations

from typing import cast

from api.openai.errors import ApiError, bad_parameter, not_supported
from api.openai.tokenizer import ModelTokenizer
from api.openai.types import ChatRequest, CompletionRequest
from api.openai.validation import text_of
from core.prompt import tokens_to_bytes


def prompt_tokens(parameters: ChatRequest | CompletionRequest, tokenizer: ModelTokenizer, tokens_max: int) -> bytes:
    """The prompt's token ids as little-endian uint32; ApiError if there is none in it.

    Of a prompt with many more than `tokens_max`, only the first of them, more than that too.
    """
    if isinstance(parameters, ChatRequest):
        return _chat_tokens(parameters, tokenizer, tokens_max)
    prompt = _single(parameters.prompt)
    if isinstance(prompt, str):
        return _not_empty(tokenizer.encode(prompt, tokens_max, add_special_tokens=True))
    return _checked_ids(prompt, tokenizer.vocabulary)


def _single(prompt: str | list[int | str | list[int]]) -> str | list[int]:
    """The one prompt, which may stand in a list of its own."""
    if isinstance(prompt, str):
        return prompt
    match prompt:
        case [str() | list() as only]:
            return only
        case [str() | list(), *_]:
            raise not_supported("prompt", "a list of several prompts")
    if not all(isinstance(token, int) for token in prompt):
        raise bad_parameter("prompt", "must be a string, a list of token ids, or a list with one of these")
    return cast(list[int], prompt)


def _chat_tokens(parameters: ChatRequest, tokenizer: ModelTokenizer, tokens_max: int) -> bytes:
    if tokenizer.chat_template is None:
        raise ApiError(400, f"model {parameters.model!r} has no chat template: use /v1/completions", param="model")
    named = [
        {"role": message.role, "content": text_of(message)} | ({"name": message.name} if message.name else {})
        for message in parameters.messages
    ]
    # the template itself writes the special tokens
    text = tokenizer.chat_template.render(named)
    return _not_empty(tokenizer.encode(text, tokens_max, add_special_tokens=False))


def _not_empty(tokens: bytes) -> bytes:
    if not tokens:
        raise bad_parameter("prompt", "must hold at least one token")
    return tokens


def _checked_ids(ids: list[int], vocabulary: int) -> bytes:
    if not ids:
        raise bad_parameter("prompt", "must hold at least one token")
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise bad_parameter("prompt", f"token ids must be from 0 to {vocabulary - 1}")
    return tokens_to_bytes(ids)
