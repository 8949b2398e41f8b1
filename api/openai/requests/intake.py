"""A request becomes generations: rendered, tokenized, with everything that the answer needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from actors.router.event_loop_throttle import EventLoopThrottle
from api.config.api_settings import ApiSettings
from api.openai.answers.choice import Choice
from api.openai.backend import Backend
from api.openai.requests.accepted import Accepted
from api.openai.requests.headers import Hints, hints_of
from api.openai.requests.prompts import PromptTokens, prompts_of
from api.openai.requests.sampling import room_of, with_seed
from api.openai.requests.sessions import Session, session_of
from api.openai.requests.terms import KeptTerms, Terms
from api.openai.requests.types import ChatRequest, CompletionRequest
from api.openai.requests.validation import check
from api.openai.text.tokenizer import Tokenizers
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.models import ModelCard
from core.prompt import TOKEN_BYTES


class Intake:
    """Turns requests into generations; of their prompts it holds nothing."""

    def __init__(self, backend: Backend, settings: ApiSettings, tokenizers: Tokenizers) -> None:
        self._backend = backend
        self._settings = settings
        self._tokenizers = tokenizers
        self._terms = KeptTerms()
        self._throttle = EventLoopThrottle()

    async def turn(self, size: int) -> None:
        """What follows has a turn of the loop, if the body is so large that it takes milliseconds."""
        if size > self._settings.inline_bytes_max:
            await self._throttle.acquire()

    async def accept(
        self,
        parameters: ChatRequest | CompletionRequest,
        headers: Mapping[bytes, bytes],
        request_id: str,
        size: int,
        beside: bytes = b"",
    ) -> Accepted:
        """The generations that a decoded request asks for; `size` are the bytes of its body, `beside` those of them
        that tell what it asks for beside its prompt (`requests.terms`).

        Raises ApiError, or what `Backend.card` raises.
        """
        kind = type(parameters)
        terms = self._terms.get(kind, beside)
        if terms is None:
            check(parameters)
        hints = hints_of(headers)
        card = self._backend.card(parameters.model)
        tokenizer = self._tokenizers.loaded(card) or await self._tokenizers.of(card)
        if size <= self._settings.inline_bytes_max:
            prompts = prompts_of(parameters, tokenizer, card.context_max)
        else:
            prompts = await self._tokenizers.pool.run(
                lambda proceed: prompts_of(parameters, tokenizer, card.context_max, proceed), size, hints.tenant
            )
            await self.turn(size)
        if terms is None or terms.tokenizer is not tokenizer:
            terms = Terms(parameters, tokenizer)
            self._terms.put(kind, beside, terms)
        session = session_of(headers, parameters)
        return _Making(parameters, card, terms, hints, session, request_id).accepted(prompts)


class _Making(NamedTuple):
    """One request while its choices are made."""

    parameters: ChatRequest | CompletionRequest
    card: ModelCard
    terms: Terms
    hints: Hints
    session: Session
    request_id: str

    def accepted(self, prompts: list[PromptTokens]) -> Accepted:
        """Every choice of every prompt; ApiError if one of them cannot be."""
        parameters, card, terms = self[:3]
        choices: list[Choice] = []
        count = 0
        for prompt, sent in enumerate(prompts):
            tokens = len(sent.tokens) // TOKEN_BYTES
            count += tokens
            sampling = terms.sampling(parameters, room_of(parameters, card, tokens))
            for place in range(terms.best_of):
                request = self._request(len(choices), sent.tokens, with_seed(sampling, place) if place else sampling)
                choices.append(terms.choice(len(choices), prompt, parameters, request, sent.text or ""))
        return Accepted(
            model=card.name,
            choices=tuple(choices),
            prompt_tokens=count,
            stream=bool(parameters.stream),
            shown=terms.shown,
            plain=terms.plain and len(choices) == 1 and choices[0].interpreter is None,
        )

    def _request(self, index: int, tokens: bytes, sampling: Sampling) -> GenerateRequest:
        parameters, _, _, hints, session, request_id = self
        return GenerateRequest(
            id=RequestId(f"{request_id}.{index}" if index else request_id),
            tokens=tokens,
            sampling=sampling,
            cache_salt=parameters.cache_salt or None,
            priority=(parameters.priority or 0) if hints.priority is None else hints.priority,
            tenant=hints.tenant,
            traceparent=hints.traceparent,
            deadline_ms=hints.deadline_ms,
            # a stop string is found here: the worker is to hear of it soon
            gather=not parameters.stream and not parameters.stop,
            session=session.name,
            session_parent=session.parent,
        )
