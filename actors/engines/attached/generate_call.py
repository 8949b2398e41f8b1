"""One request as the body of SGLang's `/generate`, and its answer: token ids both ways.

1. Everything that a request may leave out is sent, for a server has defaults of its own. `extra_key` is never sent: the
   server's cache events do not show it, and its blocks would look like plain ones.
2. Each event of an answer has all tokens so far, or those since the last event if the server was started with
   `--incremental-streaming-output`. The count of all of them tells which are new.
3. A server tells with its first tokens how much of the prompt its cache had.
4. Priorities are not sent: a server may order them the other way round.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from actors.engines.attached.call_checks import AnswerError, answer_room, one_line, stream_error
from core.errors import CallerError, ContrailError, EngineDead, PeerError, Unavailable
from core.generation import GenerateRequest, Guided, Output, Sampling, TokenLogprobs
from core.models import GenerationFailed
from core.prompt import tokens_from_bytes

GENERATE_PATH = "/generate"
ENDS = {"stop": "stop", "length": "length"}
"""The server's reasons to end, and ours."""
_ABORTED = "abort"
_TOP_K_OFF = -1
_ANY_OBJECT = '{"type": "object"}'

_TokenLogprob = tuple[float | None, int, str | None]


class _Finish(msgspec.Struct):
    type: str
    message: str | None = None
    status_code: int | None = None


class _Meta(msgspec.Struct):
    completion_tokens: int = 0
    finish_reason: _Finish | None = None
    cached_tokens: int | None = None
    output_token_logprobs: list[_TokenLogprob] | None = None
    output_top_logprobs: list[list[_TokenLogprob] | None] | None = None


class _Event(msgspec.Struct):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    error: AnswerError | None = None


_event = msgspec.json.Decoder(_Event)


def generate_body(request: GenerateRequest, context_max: int, rank: int | None) -> bytes:
    """The request for the server's rank, None if it has one; CallerError if it asks for what the server cannot do."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "rid": request.id,
        "input_ids": tokens_from_bytes(request.tokens),
        "stream": True,
        "sampling_params": {"max_new_tokens": answer_room(request, context_max), **_sampling_params(sampling)},
    }
    if request.cache_salt:
        body["cache_salt"] = request.cache_salt
    if rank is not None:
        body["routed_dp_rank"] = rank
    if sampling.logprobs >= 0:
        body |= {"return_logprob": True, "top_logprobs_num": sampling.logprobs}
    return orjson.dumps(body)


def _sampling_params(sampling: Sampling) -> dict[str, Any]:
    """All of them by the server's names; those of which None or an empty list means nothing are left out."""
    if sampling.bad_words or sampling.allowed_token_ids:
        raise CallerError("an SGLang server has neither bad_words nor allowed_token_ids: leave them out")
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or _TOP_K_OFF,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "ignore_eos": sampling.ignore_eos,
        "min_new_tokens": sampling.min_tokens,
        "stop_token_ids": sampling.stop_token_ids,
    }
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    if sampling.logit_bias:
        params["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if sampling.guided is not None:
        params |= _guide(sampling.guided)
    return params


def _guide(guided: Guided) -> dict[str, str]:
    given = {
        "json_schema": _ANY_OBJECT if guided.json_object else guided.json_schema,
        "regex": guided.regex,
        "ebnf": guided.grammar,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    if guided.choices or len(chosen) != 1 or (guided.json_object and guided.json_schema is not None):
        raise CallerError(
            "guide an answer of an SGLang server by one thing: a JSON schema, any JSON object, a regex or a grammar"
        )
    return chosen


class GenerateReader:
    """Reads the events of one answer; `last` is its last output."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._seen = 0
        """Tokens of the answer so far."""
        self.last: Output | None = None

    def __repr__(self) -> str:
        return f"<GenerateReader {self._seen} tokens{', at the end' if self.last else ''}>"

    def read(self, data: bytes) -> Output | None:
        """As of `AnswerReader`."""
        try:
            event = _event.decode(data)
        except msgspec.DecodeError as error:
            raise PeerError(f"the server sent an event that is none of an answer: {error}") from error
        if event.error is not None:
            raise stream_error(event.error, self._sampling)
        if event.output_ids is None or event.meta_info is None:
            raise PeerError("the server answers without output_ids and meta_info: it is no /generate of SGLang")
        output = self._output(event.output_ids, event.meta_info)
        if output.finish is None:
            return output
        self.last = output
        return None

    def _output(self, ids: list[int], meta: _Meta) -> Output:
        first, new = not self._seen, meta.completion_tokens - self._seen
        if not 0 <= new <= len(ids):
            raise PeerError(f"the server counts {meta.completion_tokens} tokens where {self._seen} were before")
        self._seen = meta.completion_tokens
        return Output(
            tokens=tuple(ids[len(ids) - new :]),
            finish=None if meta.finish_reason is None else _end(meta.finish_reason, self._sampling),
            cached_tokens=meta.cached_tokens if first else None,
            logprobs=_logprobs(meta, new, self._sampling.logprobs),
        )


def _end(finish: _Finish, sampling: Sampling) -> str:
    if finish.type in ENDS:
        return ENDS[finish.type]
    raise _abort_error(finish, sampling)


def _abort_error(finish: _Finish, sampling: Sampling) -> ContrailError:
    text = one_line(finish.message or "")
    if finish.type != _ABORTED:
        return GenerationFailed(f"the server broke off: {finish.type}")
    if finish.status_code is None:
        return EngineDead(f"the server aborted the request: {text}")
    if finish.status_code in {429, 503}:
        return Unavailable(f"the server takes no more requests now: {text}")
    return stream_error(AnswerError(text, finish.status_code), sampling)


def _logprobs(meta: _Meta, new: int, top: int) -> tuple[TokenLogprobs, ...]:
    """Of the newest tokens."""
    if top < 0 or not new:
        return ()
    chosen, best = meta.output_token_logprobs or [], meta.output_top_logprobs or []
    if len(chosen) < new or (top and len(best) < new):
        raise PeerError("the server's logprobs are not as many as its tokens")
    ranked = best[len(best) - new :] if top else [None] * new
    return tuple(
        TokenLogprobs.ranked(token, logprob, tuple((each, value or 0.0) for value, each, _ in candidates or ()))
        for (logprob, token, _), candidates in zip(chosen[len(chosen) - new :], ranked, strict=True)
    )
