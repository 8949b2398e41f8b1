"""One request as the body of `/v1/completions`, and its answer: token ids both ways.

1. Everything that a request may leave out is sent, for a server has defaults of its own (`generation_config.json`).
2. A server tells how much of the prompt its cache had with the last event of an answer, and only if it was started
   with `--enable-prompt-tokens-details`. Else that is unknown.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from actors.engines.attached.call_checks import AnswerError, answer_room, stream_error
from core.errors import CallerError, EngineDead, PeerError
from core.generation import GenerateRequest, Guided, Output, Sampling, TokenLogprobs
from core.models import GenerationFailed
from core.prompt import tokens_from_bytes

PATH = "/v1/completions"
FINISHES = {"stop": "stop", "length": "length", "repetition": "stop"}
"""The server's reasons to end, and ours."""
ABORTED = "abort"
TOKEN_PREFIX = "token_id:"  # noqa: S105 - how the server writes a token by its number


class _Logprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: AnswerError | None = None


_event = msgspec.json.Decoder(_Event)


def completion_body(request: GenerateRequest, model: str, context_max: int, *, priorities: bool) -> bytes:
    """The request for the server's model of that name, or for the request's adapter, which the server knows by its id.
    CallerError if it asks for what the server cannot do.

    `priorities` is true if the server schedules by priority; else priorities are left out, as they have no effect.
    """
    room = answer_room(request, context_max)
    body: dict[str, Any] = {
        "model": request.adapter or model,
        "prompt": tokens_from_bytes(request.tokens),
        "request_id": request.id,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "max_tokens": room,
        **_sampling_fields(request.sampling),
    }
    if request.cache_salt:
        body["cache_salt"] = request.cache_salt
    if request.priority and priorities:
        body["priority"] = request.priority
    return orjson.dumps(body)


def common_fields(sampling: Sampling) -> dict[str, Any]:
    """Those that several kinds of servers know by these names; a seed or a bias that is not asked for is left out."""
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "ignore_eos": sampling.ignore_eos,
        "min_tokens": sampling.min_tokens,
        "stop_token_ids": sampling.stop_token_ids,
    }
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    return fields


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """All of them by the server's names; those of which None or an empty list means nothing are left out."""
    fields = {**common_fields(sampling), "bad_words": sampling.bad_words}
    if sampling.allowed_token_ids:
        fields["allowed_token_ids"] = sampling.allowed_token_ids
    if sampling.logprobs >= 0:
        fields |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
    if sampling.guided is not None:
        fields["structured_outputs"] = _structured(sampling.guided)
    return fields


def _structured(guided: Guided) -> dict[str, Any]:
    given = {
        "json": guided.json_schema,
        "json_object": guided.json_object or None,
        "regex": guided.regex,
        "choice": guided.choices or None,
        "grammar": guided.grammar,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) != 1:
        raise CallerError("guide an answer by one thing: a JSON schema, any JSON object, a regex, choices or a grammar")
    return chosen


class CompletionReader:
    """Reads the events of one answer; `last` is its last output, which waits for the usage behind it."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self.last: Output | None = None

    def __repr__(self) -> str:
        return f"<CompletionReader {'at the end' if self.last else 'in the middle'}>"

    def read(self, data: bytes) -> Output | None:
        """The output in the event, if it is not the last. PeerError if the event is none of a completion; else the
        errors of `Engine.generate`."""
        try:
            event = _event.decode(data)
        except msgspec.DecodeError as error:
            raise PeerError(f"the server sent an event that is none of a completion: {error}") from error
        if event.error is not None:
            raise stream_error(event.error, self._sampling)
        if event.usage is not None and event.usage.prompt_tokens_details is not None and self.last is not None:
            cached = event.usage.prompt_tokens_details.cached_tokens
            self.last = msgspec.structs.replace(self.last, cached_tokens=cached)
        for choice in event.choices:
            if choice.token_ids is None:
                raise PeerError("the server answers in text, without the ids of its tokens (return_token_ids)")
            output = Output(
                tokens=tuple(choice.token_ids),
                finish=_finish(choice.finish_reason),
                logprobs=_logprobs_of(choice, self._sampling.logprobs),
            )
            if output.finish is None:
                return output
            self.last = output
        return None


def _finish(reason: str | None) -> str | None:
    if reason is None:
        return None
    if reason == ABORTED:
        raise EngineDead("the server aborted the request")
    if reason not in FINISHES:
        raise GenerationFailed(f"the server broke off: {reason}")
    return FINISHES[reason]


def _logprobs_of(choice: _Choice, top: int) -> tuple[TokenLogprobs, ...]:
    if top < 0:
        return ()
    found = choice.logprobs
    if found is None or not len(choice.token_ids or ()) == len(found.token_logprobs) == len(found.top_logprobs):
        raise PeerError("the server's logprobs are not as many as its tokens")
    return tuple(
        TokenLogprobs.ranked(token, logprob, _best(candidates or {}, top))
        for token, logprob, candidates in zip(
            choice.token_ids or (), found.token_logprobs, found.top_logprobs, strict=True
        )
    )


def _best(candidates: dict[str, float], top: int) -> tuple[tuple[int, float], ...]:
    """The likeliest: the server puts the chosen token first, wherever its rank is."""
    try:
        known = [(int(name.removeprefix(TOKEN_PREFIX)), logprob) for name, logprob in candidates.items()]
    except ValueError as error:
        raise PeerError("the server names tokens of logprobs by their text") from error
    return tuple(sorted(known, key=lambda each: -each[1])[:top])
