"""Sampling: a request's parameters of choosing tokens, in the engine's terms."""

from __future__ import annotations

import msgspec

from api.openai.request.validation import read_biases
from api.openai.types.request_types import COMPLETION_TOKENS, ChatRequest, CompletionRequest
from api.parsers.structured_outputs import read_guided
from api.server.errors import ContextExceeded, bad_parameter
from api.tokenizer.model_tokenizer import ModelTokenizer
from core.generation import Sampling
from core.models import ModelCard

SAME_NAMES = (
    "temperature",
    "top_p",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""Parameters that a request and `Sampling` have alike; the defaults are those of `Sampling`."""
SEED_MAX = 2**63 - 1
LEAST_ROOM = 1024
"""Tokens that are room enough for any answer, also if the request asked for more …"""
LEAST_SHARE = 16
"""… and so is the context divided by this."""


def output_tokens_max(parameters: ChatRequest | CompletionRequest, card: ModelCard, prompt: int) -> int:
    """The most tokens to generate: the number asked for, cut to the room in the context.

    ContextExceeded if that is none, or too few to answer with (`least_of`).
    """
    room = card.context_max - prompt
    requested = requested_tokens(parameters)
    if room < LEAST_ROOM and room < (1 if requested is None else least_output_tokens(requested, card.context_max)):
        raise context_exceeded(parameters, prompt, card.context_max)
    if requested is None:
        requested = room if isinstance(parameters, ChatRequest) else COMPLETION_TOKENS
    return min(requested, room)


def context_exceeded(parameters: ChatRequest | CompletionRequest, prompt: int, context_max: int) -> ContextExceeded:
    """The error for a prompt that has at least so many tokens, which are too many."""
    requested = requested_tokens(parameters)
    least = 1 if requested is None else least_output_tokens(requested, context_max)
    part = "messages" if isinstance(parameters, ChatRequest) else "prompt"
    return ContextExceeded(part, parameters.model, prompt, context_max - least, context_max)


def requested_tokens(parameters: ChatRequest | CompletionRequest) -> int | None:
    """The most tokens that the request asks for; None if it names no number."""
    if isinstance(parameters, ChatRequest):
        return parameters.max_completion_tokens or parameters.max_tokens
    # none at all are asked for with an echo: an engine makes one, which is dropped
    return None if parameters.max_tokens is None else max(parameters.max_tokens, 1)


def least_output_tokens(requested: int, context_max: int) -> int:
    """The fewest tokens that an answer of at most `requested` tokens must have room for.

    A program with a nearly full context is refused, so that it shortens its conversation: with a handful of tokens, its
    answer would break off in the middle of a call.
    """
    return max(1, min(requested, LEAST_ROOM, context_max // LEAST_SHARE))


def build_sampling(parameters: ChatRequest | CompletionRequest, tokenizer: ModelTokenizer, max_tokens: int) -> Sampling:
    """The request's sampling with OpenAI's defaults; the model's end tokens are stop tokens, unless ignored."""
    given = {name: value for name in SAME_NAMES if (value := getattr(parameters, name)) is not None}
    ignore_eos = bool(parameters.ignore_eos)
    stops: tuple[int, ...] = () if ignore_eos else tokenizer.eos_ids
    if parameters.stop_token_ids:
        stops = tuple(sorted({*_known_ids("stop_token_ids", parameters.stop_token_ids, tokenizer), *stops}))
    min_tokens = parameters.min_tokens or 0
    if min_tokens > max_tokens:
        raise bad_parameter(
            "min_tokens", f"must be at most max_tokens, or what the context leaves of it ({max_tokens})"
        )
    return Sampling(
        max_tokens=max_tokens,
        top_k=max(0, parameters.top_k or 0),
        stop_token_ids=stops,
        ignore_eos=ignore_eos,
        min_tokens=min_tokens,
        logit_bias=() if parameters.logit_bias is msgspec.UNSET else _biases(read_biases(parameters), tokenizer),
        allowed_token_ids=_known_ids("allowed_token_ids", parameters.allowed_token_ids, tokenizer)
        if parameters.allowed_token_ids
        else (),
        bad_words=tuple(parameters.bad_words or ()),
        logprobs=_logprobs(parameters),
        prompt_logprobs=_prompt_logprobs(parameters),
        guided=read_guided(parameters),
        **given,
    )


def with_seed(sampling: Sampling, place: int) -> Sampling:
    """The sampling of a prompt's choice at this place: each has a seed of its own, if one is given."""
    if sampling.seed is None or not place:
        return sampling
    seed = sampling.seed + place
    return msgspec.structs.replace(sampling, seed=seed if seed <= SEED_MAX else seed - 2 * (SEED_MAX + 1))


def shown_logprobs(parameters: ChatRequest | CompletionRequest) -> int:
    """The number of likeliest tokens that the answer shows beside each token; -1: no logprobs at all."""
    if isinstance(parameters, ChatRequest):
        return (parameters.top_logprobs or 0) if parameters.logprobs else -1
    return -1 if parameters.logprobs is None else parameters.logprobs


def _logprobs(parameters: ChatRequest | CompletionRequest) -> int:
    ranked = isinstance(parameters, CompletionRequest) and (parameters.best_of or 1) > (parameters.n or 1)
    shown = shown_logprobs(parameters)
    return 0 if ranked and shown < 0 else shown


def _prompt_logprobs(parameters: ChatRequest | CompletionRequest) -> int:
    requested = -1 if parameters.prompt_logprobs is None else parameters.prompt_logprobs
    echoed = isinstance(parameters, CompletionRequest) and parameters.echo
    return max(requested, shown_logprobs(parameters)) if echoed else requested


def _known_ids(name: str, ids: list[int], tokenizer: ModelTokenizer) -> tuple[int, ...]:
    if max(ids) >= tokenizer.vocabulary:
        raise bad_parameter(name, f"must be from 0 to {tokenizer.vocabulary - 1}")
    return tuple(ids)


def _biases(given: dict[str, float], tokenizer: ModelTokenizer) -> tuple[tuple[int, float], ...]:
    if not all(token.isascii() and token.isdecimal() and len(token) <= 10 for token in given):
        raise bad_parameter("logit_bias", "each key must be a token id in decimal digits")
    biases = {int(token): bias for token, bias in given.items()}
    if biases:
        _known_ids("logit_bias", list(biases), tokenizer)
    return tuple(sorted(biases.items()))
