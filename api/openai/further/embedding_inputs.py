"""What is to be embedded: the body of /v1/embeddings, and the token ids of each of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from api.openai.requests.prompts import word_too_long
from api.openai.requests.types import AtLeastOne, Int32, Salt, TokenId
from api.openai.text.tokenizer import ModelTokenizer, TextTooLong
from api.openai.text.word_boundaries import WordTooLong
from api.server.errors import ContextExceeded, bad_parameter, not_supported
from core.models import ModelCard
from core.prompt import TOKEN_BYTES, tokens_to_bytes

EMBEDDING_INPUTS_MAX = 2048
"""Inputs per request, as OpenAI has it."""
ENCODING_FORMATS = ("float", "base64")


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /v1/embeddings."""

    model: str
    input: str | list[int | str | list[TokenId]]
    encoding_format: str | None = None
    dimensions: AtLeastOne | None = None
    user: str | None = None
    # vLLM's
    add_special_tokens: bool | None = None
    cache_salt: Salt | None = None
    priority: Int32 | None = None
    truncate_prompt_tokens: Any = None


def embedding_tokens(
    asked: EmbeddingRequest, tokenizer: ModelTokenizer, card: ModelCard, proceed: Callable[[], None] = lambda: None
) -> list[bytes]:
    """Each input's token ids as little-endian uint32; ApiError names what cannot be embedded."""
    if asked.encoding_format not in {None, *ENCODING_FORMATS}:
        raise bad_parameter("encoding_format", f"must be one of {', '.join(ENCODING_FORMATS)}")
    if asked.truncate_prompt_tokens is not None:
        raise not_supported("truncate_prompt_tokens")
    inputs = _inputs(asked.input)
    if not inputs:
        raise bad_parameter("input", "must hold at least one input")
    if len(inputs) > EMBEDDING_INPUTS_MAX:
        raise bad_parameter("input", f"must hold at most {EMBEDDING_INPUTS_MAX} inputs, not {len(inputs)}")
    special = asked.add_special_tokens is not False
    try:
        return [_checked(_tokens(one, tokenizer, card, proceed, special=special), card) for one in inputs]
    except TextTooLong as error:
        raise _exceeded(card, error.tokens_min) from error
    except WordTooLong as error:
        raise word_too_long("input") from error


def _inputs(given: str | list[int | str | list[int]]) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    if given and all(isinstance(one, int) for one in given):
        return [cast(list[int], given)]
    if any(isinstance(one, int) for one in given):
        raise bad_parameter("input", "must be a string, a list of token ids, or a list of these")
    return cast(list[str | list[int]], given)


def _tokens(
    one: str | list[int], tokenizer: ModelTokenizer, card: ModelCard, proceed: Callable[[], None], *, special: bool
) -> bytes:
    if isinstance(one, str):
        if not one:
            raise bad_parameter("input", "must not hold an empty string")
        return tokenizer.encode(one, card.context_max, add_special_tokens=special, proceed=proceed)
    if one and not 0 <= min(one) <= max(one) < tokenizer.vocabulary:
        raise bad_parameter("input", f"token ids must be from 0 to {tokenizer.vocabulary - 1}")
    return tokens_to_bytes(one)


def _checked(tokens: bytes, card: ModelCard) -> bytes:
    count = len(tokens) // TOKEN_BYTES
    if not count:
        raise bad_parameter("input", "each input must have at least one token")
    if count > card.context_max:
        raise _exceeded(card, count)
    return tokens


def _exceeded(card: ModelCard, tokens: int) -> ContextExceeded:
    return ContextExceeded("input", card.name, tokens, card.context_max, card.context_max)
