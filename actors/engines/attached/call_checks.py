"""Checks of requests and errors of answers that are alike for all kinds of servers."""

from __future__ import annotations

import msgspec

from core.errors import CallerError, ContrailError, Refused, Unavailable
from core.generation import TASK_GENERATE, GenerateRequest, Sampling
from core.models import GenerationFailed
from core.prompt import TOKEN_BYTES

SENTENCE_MAX = 300
"""Characters of the server's objection that are passed on."""


class AnswerError(msgspec.Struct):
    """An error in a server's answer."""

    message: str = ""
    code: int | str | None = None


class _Refusal(msgspec.Struct):
    error: AnswerError | str | None = None
    message: str = ""
    """The sentence of a server that has it outside of `error`."""


_refusal = msgspec.json.Decoder(_Refusal)


def answer_room(request: GenerateRequest, context_max: int) -> int:
    """Tokens that the answer may have, at least 1; CallerError if there is no room, or if no server here does what the
    request asks for."""
    if request.task != TASK_GENERATE:
        raise CallerError("an attached server makes no embeddings here: ask a worker of Contrail's own for them")
    if request.sampling.prompt_logprobs >= 0:
        raise CallerError("an attached server streams no logprobs of prompts: leave prompt_logprobs out")
    tokens = len(request.tokens) // TOKEN_BYTES
    if tokens >= context_max:
        raise CallerError(
            f"the prompt has {tokens} tokens, and the model has room for {context_max} tokens with the answer: "
            "shorten it"
        )
    return min(request.sampling.max_tokens, context_max - tokens)


def stream_error(error: AnswerError, sampling: Sampling) -> ContrailError:
    """The error for an answer that was begun."""
    text = one_line(error.message)
    if str(error.code) == "400":
        return CallerError(text)
    if sampling.guided is not None:
        return CallerError(
            "the engine found no token that fits: simplify the schema, pattern or grammar, and see that "
            "allowed_token_ids, logit_bias and bad_words leave it some"
        )
    return GenerationFailed(f"the server failed on this request: {text}")


def refusal(status: int, body: bytes) -> ContrailError:
    """The error for an answer that has another status than 200."""
    text = objection(status, body)
    if status in {400, 413, 422}:
        return CallerError(text)
    if status in {401, 403}:
        return Refused(f"the server refuses the key: {text}")
    if status == 404:
        return Refused(f"the server does not serve this model: {text}")
    if status in {429, 503}:
        return Unavailable(f"the server takes no more requests now: {text}")
    return GenerationFailed(f"the server failed on this request: {text}")


def objection(status: int, body: bytes) -> str:
    """The server's words in an answer that has another status than 200."""
    try:
        found = _refusal.decode(body)
    except msgspec.DecodeError:
        found = _Refusal()
    said = found.error.message if isinstance(found.error, AnswerError) else found.error
    return one_line(said or found.message) or f"status {status}"


def one_line(text: str) -> str:
    """The server's words, of SENTENCE_MAX characters at most."""
    line = " ".join(text.split())
    return line if len(line) <= SENTENCE_MAX else f"{line[:SENTENCE_MAX]}…"
