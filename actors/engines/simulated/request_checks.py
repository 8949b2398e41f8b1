"""Checks of requests before the simulated engine admits them."""

from __future__ import annotations

from actors.engines.engine import check_prompt_logprobs
from actors.engines.simulated.sequence import BlockHashPrompt
from actors.engines.simulated.simulated_settings import SimulatedSettings
from actors.engines.simulated.token_sequence import check_bounds
from core.errors import CallerError
from core.generation import GenerateRequest, Sampling
from core.prompt import HASH_BYTES, TOKEN_BYTES

LOGPROBS_MAX = 20
"""The most likeliest tokens that a request can ask for, as in vLLM."""


def check_request(settings: SimulatedSettings, request: GenerateRequest, known: BlockHashPrompt | None = None) -> None:
    """Returns if the engine can ever serve this request, else raises CallerError."""
    if known is not None:
        _refuse_known(settings, request, known)
        _refuse_length(settings, request, known.tokens)
        return
    tokens = len(request.tokens) // TOKEN_BYTES
    if not tokens or len(request.tokens) % TOKEN_BYTES:
        raise CallerError("the prompt must hold at least one token, four bytes each")
    _refuse_length(settings, request, tokens)
    check_prompt_logprobs(request)
    _refuse_options(settings, request.sampling)


def _refuse_known(settings: SimulatedSettings, request: GenerateRequest, known: BlockHashPrompt) -> None:
    if known.tokens < 1 or request.tokens:
        raise CallerError("a prompt that is known by its hashes must have a length, and no tokens beside it")
    blocks = known.tokens // settings.block_size
    if len(known.hashes) != blocks * HASH_BYTES:
        raise CallerError(
            f"a prompt of {known.tokens} tokens has {blocks} full blocks of {settings.block_size}, "
            f"but {len(known.hashes) / HASH_BYTES:g} hashes came with it"
        )


def _refuse_length(settings: SimulatedSettings, request: GenerateRequest, tokens: int) -> None:
    if tokens >= settings.tokens_max(request.task):
        raise CallerError(
            f"the prompt has {tokens} tokens, which leaves no room for an answer: "
            f"the context of this model is {settings.context_max} tokens"
        )
    if request.sampling.max_tokens < 1:
        raise CallerError(f"max_tokens must be at least 1, not {request.sampling.max_tokens}")
    tokens_max = min(tokens + request.sampling.max_tokens, settings.tokens_max(request.task))
    blocks = -(-(tokens_max - 1) // settings.block_size)
    if blocks > settings.capacity_blocks:
        raise CallerError(
            f"{tokens_max} tokens need {blocks} cache blocks, and this engine has {settings.capacity_blocks}: "
            "send a shorter prompt or a smaller max_tokens"
        )


def _refuse_options(settings: SimulatedSettings, sampling: Sampling) -> None:
    if max(sampling.logprobs, sampling.prompt_logprobs) > LOGPROBS_MAX:
        raise CallerError(f"logprobs and prompt_logprobs can be {LOGPROBS_MAX} at most")
    if sampling.bad_words:
        raise CallerError("this engine is simulated: its tokens are no words, so bad_words cannot be kept out")
    if sampling.guided is not None and not settings.replies:
        raise CallerError(
            "this engine is simulated: its tokens follow no schema, pattern or grammar; give it engine_args `replies` "
            "that do"
        )
    check_bounds(settings, sampling)
