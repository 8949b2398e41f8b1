"""`/v1/embeddings`: its body, the token ids of each input, and one request to the workers for each of them.

A bounded number of these requests runs at once.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, ClassVar, cast

import msgspec
import orjson
from msgspec import UNSET

from api.openai.request.prompts import word_too_long
from api.openai.request.request_metadata import RequestHeaders, Session, find_session, parse_headers
from api.openai.types.backend import Backend
from api.openai.types.request_types import AtLeastOne, Int32, Int64, ModelName, Salt, TokenId, Undecoded, is_given
from api.openai.unary_route import UnaryRequest
from api.parsers.loaded_models import LoadedModels
from api.server.errors import ContextExceeded, bad_parameter, not_supported
from api.server.limits import ApiSettings
from api.tokenizer.model_tokenizer import ModelTokenizer, TextTooLong
from api.tokenizer.word_cache import WordTooLong
from core.errors import CallerError
from core.generation import TASK_EMBED, GenerateRequest, Output, Sampling
from core.ids import RequestId
from core.models import GenerationFailed, ModelCard
from core.prompt import TOKEN_BYTES, tokens_to_bytes

EMBEDDING_INPUTS_MAX = 2048
"""Inputs per request, as OpenAI has it."""
ENCODING_FORMATS = ("float", "base64")


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /v1/embeddings."""

    holds_token_ids: ClassVar[bool] = True
    model: ModelName
    input: str | list[Int64 | str | list[TokenId]]
    encoding_format: str | None = None
    dimensions: AtLeastOne | None = None
    user: str | None = None
    # vLLM's
    add_special_tokens: bool | None = None
    cache_salt: Salt | None = None
    priority: Int32 | None = None
    truncate_prompt_tokens: Undecoded = UNSET


def embedding_tokens(
    body: EmbeddingRequest,
    tokenizer: ModelTokenizer,
    card: ModelCard,
    proceed: Callable[[], None] = lambda: None,
    tenant: str = "",
) -> list[bytes]:
    """Each input's token ids as little-endian uint32; ApiError names what cannot be embedded."""
    if body.encoding_format not in {None, *ENCODING_FORMATS}:
        raise bad_parameter("encoding_format", f"must be one of {', '.join(ENCODING_FORMATS)}")
    if is_given(body.truncate_prompt_tokens):
        raise not_supported("truncate_prompt_tokens")
    if card.embedding_size:
        _check_dimensions(body, card.embedding_size)
    inputs = _inputs(body.input)
    if not inputs:
        raise bad_parameter("input", "must hold at least one input")
    if len(inputs) > EMBEDDING_INPUTS_MAX:
        raise bad_parameter("input", f"must hold at most {EMBEDDING_INPUTS_MAX} inputs, not {len(inputs)}")
    special = body.add_special_tokens is not False
    try:
        return [_checked(_tokens(one, tokenizer, card, proceed, tenant, special=special), card) for one in inputs]
    except TextTooLong as error:
        raise _exceeded(card, error.tokens_min) from error
    except WordTooLong as error:
        raise word_too_long("input") from error


def _check_dimensions(body: EmbeddingRequest, size: int) -> None:
    if body.dimensions not in {None, size}:
        fault = f"model {body.model!r} has {size}, and is not known to mean anything by fewer of them: leave it out"
        raise bad_parameter("dimensions", fault)


def _inputs(given: str | list[int | str | list[int]]) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    if given and all(isinstance(one, int) for one in given):
        return [cast(list[int], given)]
    if any(isinstance(one, int) for one in given):
        raise bad_parameter("input", "must be a string, a list of token ids, or a list of these")
    return cast(list[str | list[int]], given)


def _tokens(
    one: str | list[int],
    tokenizer: ModelTokenizer,
    card: ModelCard,
    proceed: Callable[[], None],
    tenant: str,
    *,
    special: bool,
) -> bytes:
    if isinstance(one, str):
        if not one:
            raise bad_parameter("input", "must not hold an empty string")
        return tokenizer.encode(one, card.context_max, add_special_tokens=special, proceed=proceed, tenant=tenant)
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


EMBEDDINGS_AT_ONCE = 32
"""Inputs of one request that workers compute at the same time; the others wait here."""
FLOAT_BYTES = 4


class Embeddings:
    """Embeddings of texts and of token ids, in the order of the inputs."""

    def __init__(self, backend: Backend, settings: ApiSettings, models: LoadedModels) -> None:
        self._backend = backend
        self._settings = settings
        self._models = models
        self._numpy_imported = False

    async def answer(self, body: EmbeddingRequest, unary_request: UnaryRequest) -> bytes:
        """OpenAI's JSON. The first input that fails fails all of them, and cancels those that are under way."""
        request_headers = parse_headers(unary_request.headers)
        card = self._backend.card(body.model)
        if card.adapter is not None:
            raise CallerError(f"model {body.model!r} is an adapter, and adapters make no embeddings here yet")
        tokenizer = (await self._models.of(card)).tokenizer
        tenant = self._models.cache_tenant(request_headers.tenant)
        if unary_request.size <= self._settings.inline_bytes_max:
            prompts = embedding_tokens(body, tokenizer, card, tenant=tenant)
        else:
            prompts = await self._models.pool.run(
                lambda proceed: embedding_tokens(body, tokenizer, card, proceed, tenant),
                unary_request.size,
                request_headers.tenant,
            )
        if body.encoding_format != "base64" and not self._numpy_imported:
            # a front end that is never asked for numbers starts without it; it takes 0.1 s, not of the loop's
            await asyncio.to_thread(import_module, "numpy")
            self._numpy_imported = True
        unary_request.model = card.name
        session = find_session(unary_request.headers, body)
        requests = [_request(body, request_headers, session, unary_request, *it) for it in enumerate(prompts)]
        rows = await self._rows(body, unary_request, requests)
        unary_request.prompt_tokens = sum(map(len, prompts)) // TOKEN_BYTES
        usage = {"prompt_tokens": unary_request.prompt_tokens, "total_tokens": unary_request.prompt_tokens}
        return orjson.dumps({"object": "list", "data": rows, "model": card.name, "usage": usage})

    async def _rows(
        self, body: EmbeddingRequest, unary_request: UnaryRequest, requests: list[GenerateRequest]
    ) -> list[orjson.Fragment]:
        rows: dict[int, orjson.Fragment] = {}
        left = iter(enumerate(requests))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(EMBEDDINGS_AT_ONCE, len(requests))):
                    group.create_task(self._compute(body, unary_request, left, rows))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return [rows[index] for index in range(len(requests))]

    async def _compute(
        self,
        body: EmbeddingRequest,
        unary_request: UnaryRequest,
        left: Iterator[tuple[int, GenerateRequest]],
        rows: dict[int, orjson.Fragment],
    ) -> None:
        """Takes what is left, one after another."""
        for index, request in left:
            output = await self._output(unary_request, request)
            unary_request.cached_tokens += output.cached_tokens or 0
            rows[index] = _row(body, index, output.embedding)

    async def _output(self, unary_request: UnaryRequest, request: GenerateRequest) -> Output:
        consumer = EmbeddingConsumer(unary_request)
        await self._backend.run(unary_request.model, request, consumer)
        if consumer.found is None:
            raise GenerationFailed("the worker's stream ended without an embedding")
        return consumer.found


class EmbeddingConsumer:
    """Waits for the one output that has the embedding."""

    def __init__(self, unary_request: UnaryRequest) -> None:
        self.found: Output | None = None
        self.on_routed = unary_request.on_routed
        self.intake = unary_request.intake

    def __repr__(self) -> str:
        return f"<EmbeddingConsumer {self.found!r}>"

    def on_output(self, output: Output) -> bool:
        """More is wanted until the embedding is here."""
        if output.embedding:
            self.found = output
        return self.found is None

    def outcome(self) -> str | None:
        """Its worker's word."""
        return None if self.found is None else self.found.finish


def _request(
    body: EmbeddingRequest,
    request_headers: RequestHeaders,
    session: Session,
    unary_request: UnaryRequest,
    index: int,
    tokens: bytes,
) -> GenerateRequest:
    return GenerateRequest(
        id=RequestId(f"{unary_request.request_id}.{index}" if index else unary_request.request_id),
        tokens=tokens,
        sampling=Sampling(max_tokens=1),
        cache_salt=body.cache_salt or None,
        priority=(body.priority or 0) if request_headers.priority is None else request_headers.priority,
        tenant=request_headers.tenant,
        traceparent=request_headers.traceparent,
        deadline_ms=request_headers.deadline_ms,
        task=TASK_EMBED,
        session=session.name,
        session_parent=session.parent,
    )


def _floats(raw: bytes) -> Any:
    """The numbers, each to be written with as few digits as 32 bits need."""
    import numpy as np  # noqa: PLC0415 - `answer` has imported it, in a thread

    return np.frombuffer(raw, "<f4")


def _row(body: EmbeddingRequest, index: int, raw: bytes) -> orjson.Fragment:
    """One entry of `data` as JSON; made as soon as it is there, so that many of them do not hold up the loop."""
    _check_dimensions(body, len(raw) // FLOAT_BYTES)  # its worker may be of a version that does not register the size
    shown: Any = base64.b64encode(raw).decode() if body.encoding_format == "base64" else _floats(raw)
    row = {"object": "embedding", "index": index, "embedding": shown}
    return orjson.Fragment(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY))
