"""`/v1/embeddings`: each input is a request to the workers of its own, a bounded number of them at once."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import orjson

from api.config.api_settings import ApiSettings
from api.openai.backend import Backend
from api.openai.further.embedding_inputs import EmbeddingRequest, embedding_tokens
from api.openai.further.errand import Errand
from api.openai.requests.headers import Hints, hints_of
from api.openai.requests.sessions import Session, session_of
from api.openai.text.tokenizer import Tokenizers
from api.server.errors import bad_parameter
from core.generation import TASK_EMBED, GenerateRequest, Output, Sampling
from core.ids import RequestId
from core.models import GenerationFailed
from core.prompt import TOKEN_BYTES

EMBEDDINGS_AT_ONCE = 32
"""Inputs of one request that workers compute at the same time; the others wait here."""
FLOAT_BYTES = 4


class Embeddings:
    """Embeddings of texts and of token ids, in the order of the inputs."""

    def __init__(self, backend: Backend, settings: ApiSettings, tokenizers: Tokenizers) -> None:
        self._backend = backend
        self._settings = settings
        self._tokenizers = tokenizers
        self._numpy_imported = False

    async def answer(self, asked: EmbeddingRequest, errand: Errand) -> bytes:
        """OpenAI's JSON. The first input that fails fails all of them, and cancels those that are under way."""
        hints = hints_of(errand.headers)
        card = self._backend.card(asked.model)
        tokenizer = await self._tokenizers.of(card)
        if errand.size <= self._settings.inline_bytes_max:
            prompts = embedding_tokens(asked, tokenizer, card)
        else:
            prompts = await self._tokenizers.pool.run(
                lambda proceed: embedding_tokens(asked, tokenizer, card, proceed), errand.size, hints.tenant
            )
        if asked.encoding_format != "base64" and not self._numpy_imported:
            # a front end that is never asked for numbers starts without it; it takes 0.1 s, not of the loop's
            await asyncio.to_thread(import_module, "numpy")
            self._numpy_imported = True
        errand.model = card.name
        session = session_of(errand.headers, asked)
        requests = [_request(asked, hints, session, errand, *it) for it in enumerate(prompts)]
        rows = await self._rows(asked, errand, requests)
        errand.prompt_tokens = sum(map(len, prompts)) // TOKEN_BYTES
        usage = {"prompt_tokens": errand.prompt_tokens, "total_tokens": errand.prompt_tokens}
        return orjson.dumps({"object": "list", "data": rows, "model": card.name, "usage": usage})

    async def _rows(
        self, asked: EmbeddingRequest, errand: Errand, requests: list[GenerateRequest]
    ) -> list[orjson.Fragment]:
        rows: dict[int, orjson.Fragment] = {}
        left = iter(enumerate(requests))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(EMBEDDINGS_AT_ONCE, len(requests))):
                    group.create_task(self._compute(asked, errand, left, rows))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return [rows[index] for index in range(len(requests))]

    async def _compute(
        self,
        asked: EmbeddingRequest,
        errand: Errand,
        left: Iterator[tuple[int, GenerateRequest]],
        rows: dict[int, orjson.Fragment],
    ) -> None:
        """Takes what is left, one after another."""
        for index, request in left:
            output = await self._output(errand.model, request)
            errand.cached_tokens += output.cached_tokens or 0
            rows[index] = _row(asked, index, output.embedding)

    async def _output(self, model: str, request: GenerateRequest) -> Output:
        found: Output | None = None

        def take(output: Output) -> bool:
            nonlocal found
            if output.embedding:
                found = output
            return found is None

        await self._backend.run(model, request, take, lambda: found.finish if found is not None else None)
        if found is None:
            raise GenerationFailed("the worker's stream ended without an embedding")
        return found


def _request(
    asked: EmbeddingRequest, hints: Hints, session: Session, errand: Errand, index: int, tokens: bytes
) -> GenerateRequest:
    return GenerateRequest(
        id=RequestId(f"{errand.request_id}.{index}" if index else errand.request_id),
        tokens=tokens,
        sampling=Sampling(max_tokens=1),
        cache_salt=asked.cache_salt or None,
        priority=(asked.priority or 0) if hints.priority is None else hints.priority,
        tenant=hints.tenant,
        traceparent=hints.traceparent,
        deadline_ms=hints.deadline_ms,
        task=TASK_EMBED,
        session=session.name,
        session_parent=session.parent,
    )


def _floats(raw: bytes) -> Any:
    """The numbers, each to be written with as few digits as 32 bits need."""
    import numpy as np  # noqa: PLC0415 - `answer` has imported it, in a thread

    return np.frombuffer(raw, "<f4")


def _row(asked: EmbeddingRequest, index: int, raw: bytes) -> orjson.Fragment:
    """One entry of `data` as JSON; made as soon as it is there, so that many of them do not hold up the loop."""
    size = len(raw) // FLOAT_BYTES
    if asked.dimensions not in {None, size}:
        fault = f"model {asked.model!r} has {size}, and is not known to mean anything by fewer of them: leave it out"
        raise bad_parameter("dimensions", fault)
    shown: Any = base64.b64encode(raw).decode() if asked.encoding_format == "base64" else _floats(raw)
    row = {"object": "embedding", "index": index, "embedding": shown}
    return orjson.Fragment(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY))
