"""A body becomes a generation: checked, rendered, tokenized, with everything that the answer needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from api.openai.backend import Backend
from api.openai.errors import ApiError, bad_parameter
from api.openai.headers import Hints, hints_of
from api.openai.prompts import prompt_tokens
from api.openai.settings import ApiSettings
from api.openai.stops import Stops
from api.openai.tokenizer import ModelTokenizer, Tokenizers
from api.openai.transcript import Transcript
from api.openai.types import ChatRequest, CompletionRequest, Parameters
from api.openai.validation import check, decode, stop_strings
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.models import ModelCard
from core.prompt import TOKEN_BYTES

COMPLETION_TOKENS = 16
"""What /v1/completions generates when it is not said, as OpenAI and vLLM do."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that can be sent to a worker."""

    model: str
    request: GenerateRequest
    prompt_tokens: int
    stream: bool
    include_usage: bool
    transcript: Transcript


class Intake:
    """Turns bodies into generations; holds nothing of any request."""

    def __init__(self, backend: Backend, settings: ApiSettings) -> None:
        self._backend = backend
        self._settings = settings
        self._tokenizers = Tokenizers()

    async def accept(
        self, decoder: msgspec.json.Decoder[Any], raw: bytes, headers: Mapping[bytes, bytes], request_id: str
    ) -> Accepted:
        """The generation that the body asks for; raises ApiError, or what `Backend.card` raises."""
        hints = hints_of(headers)
        parameters: ChatRequest | CompletionRequest = decode(decoder, raw)
        check(parameters)
        card = self._backend.card(parameters.model)
        tokenizer = await self._tokenizers.of(card)
        if len(raw) <= self._settings.inline_bytes_max:
            tokens = prompt_tokens(parameters, tokenizer, card.context_max)
        else:
            tokens = await asyncio.to_thread(prompt_tokens, parameters, tokenizer, card.context_max)
        count = len(tokens) // TOKEN_BYTES
        sampling = sampling_of(parameters, tokenizer, _room(parameters, card, count))
        stream_options = parameters.stream_options
        return Accepted(
            model=card.name,
            request=_generate_request(parameters, hints, request_id, tokens, sampling),
            prompt_tokens=count,
            stream=bool(parameters.stream),
            include_usage=bool(stream_options and stream_options.include_usage),
            transcript=_transcript(parameters, tokenizer, sampling),
        )


def _room(parameters: ChatRequest | CompletionRequest, card: ModelCard, prompt: int) -> int:
    """How many tokens to generate at most; ApiError if prompt and answer do not fit."""
    room = card.context_max - prompt
    if isinstance(parameters, ChatRequest):
        name = "max_tokens" if parameters.max_completion_tokens is None else "max_completion_tokens"
        asked = parameters.max_completion_tokens or parameters.max_tokens
    else:
        name, asked = "max_tokens", parameters.max_tokens or min(COMPLETION_TOKENS, max(room, 1))
    part = "messages" if isinstance(parameters, ChatRequest) else "prompt"
    length = f"model {card.name!r} has a context of {card.context_max} tokens"
    if room < 1:
        fault = f"{length}, and the prompt alone has at least {prompt}: shorten it"
        raise ApiError(400, f"{part}: {fault}", param=part, code="context_length_exceeded")
    if asked is not None and asked > room:
        fault = f"{length}; the prompt's {prompt} leave {room}, not {asked}"
        raise ApiError(400, f"{name}: {fault}", param=name, code="context_length_exceeded")
    return asked or room


def sampling_of(parameters: Parameters, tokenizer: ModelTokenizer, max_tokens: int) -> Sampling:
    """The request's sampling with OpenAI's defaults; the model's end tokens are stop tokens, unless ignored."""
    ignore_eos = bool(parameters.ignore_eos)
    stops = set(parameters.stop_token_ids or ())
    if stops and max(stops) >= tokenizer.vocabulary:
        raise bad_parameter("stop_token_ids", f"must be from 0 to {tokenizer.vocabulary - 1}")
    min_tokens = parameters.min_tokens or 0
    if min_tokens > max_tokens:
        raise bad_parameter("min_tokens", f"must be at most max_tokens ({max_tokens})")
    return Sampling(
        max_tokens=max_tokens,
        temperature=_given(parameters.temperature, 1.0),
        top_p=_given(parameters.top_p, 1.0),
        top_k=max(0, parameters.top_k or 0),
        min_p=_given(parameters.min_p, 0.0),
        seed=parameters.seed,
        stop_token_ids=tuple(sorted(stops if ignore_eos else stops | set(tokenizer.eos_ids))),
        ignore_eos=ignore_eos,
        min_tokens=min_tokens,
        presence_penalty=_given(parameters.presence_penalty, 0.0),
        frequency_penalty=_given(parameters.frequency_penalty, 0.0),
        repetition_penalty=_given(parameters.repetition_penalty, 1.0),
    )


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _transcript(parameters: Parameters, tokenizer: ModelTokenizer, sampling: Sampling) -> Transcript:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=parameters.skip_special_tokens is not False)
    # with ignore_eos an engine may still stop at its own end token after others: its text never leaves
    ends = {*sampling.stop_token_ids, *tokenizer.eos_ids}
    return Transcript(detokenizer, Stops(stop_strings(parameters)), ends, sampling.min_tokens)


def _generate_request(
    parameters: Parameters, hints: Hints, request_id: str, tokens: bytes, sampling: Sampling
) -> GenerateRequest:
    return GenerateRequest(
        id=RequestId(request_id),
        tokens=tokens,
        sampling=sampling,
        cache_salt=parameters.cache_salt or None,
        priority=(parameters.priority or 0) if hints.priority is None else hints.priority,
        tenant=hints.tenant,
        traceparent=hints.traceparent,
        deadline_ms=hints.deadline_ms,
    )
