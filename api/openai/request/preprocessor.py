"""A request becomes generations: rendered, tokenized, with everything that the answer needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from actors.router.event_loop_throttle import EventLoopThrottle
from api.config.api_settings import ApiSettings
from api.openai.request.choice import Choice
from api.openai.request.plan_cache import RequestPlan, RequestPlanCache
from api.openai.request.prepared_request import PreparedRequest
from api.openai.request.prompts import PromptTokens, prompts_of
from api.openai.request.request_headers import RequestHeaders, parse_headers
from api.openai.request.sampling import output_tokens_max, with_seed
from api.openai.request.sessions import Session, session_of
from api.openai.request.validation import check
from api.openai.types.backend import Backend
from api.openai.types.request_types import ChatRequest, CompletionRequest
from api.parsers.loaded_models import LoadedModels
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.models import ModelCard
from core.prompt import TOKEN_BYTES


class Preprocessor:
    """Turns requests into generations; of their prompts it holds nothing."""

    def __init__(self, backend: Backend, settings: ApiSettings, models: LoadedModels) -> None:
        self._backend = backend
        self._settings = settings
        self._models = models
        self._plans = RequestPlanCache()
        self._throttle = EventLoopThrottle()

    async def turn(self, size: int) -> None:
        """What follows has a turn of the loop, if the body is so large that it takes milliseconds."""
        if size > self._settings.inline_bytes_max:
            await self._throttle.acquire()

    async def prepare(
        self,
        parameters: ChatRequest | CompletionRequest,
        headers: Mapping[bytes, bytes],
        request_id: str,
        size: int,
        plan_key: bytes = b"",
    ) -> PreparedRequest:
        """The generations that a decoded request asks for; `size` are the bytes of its body, `plan_key` those of them
        that tell what it asks for beside its prompt (`plan_cache`).

        Raises ApiError, or what `Backend.card` raises.
        """
        kind = type(parameters)
        plan = self._plans.get(kind, plan_key)
        if plan is None:
            check(parameters)
        request_headers = parse_headers(headers)
        card = self._backend.card(parameters.model)
        model = self._models.loaded(card) or await self._models.of(card)
        if size <= self._settings.inline_bytes_max:
            prompts = prompts_of(parameters, model.tokenizer, card.context_max)
        else:
            prompts = await self._models.pool.run(
                lambda proceed: prompts_of(parameters, model.tokenizer, card.context_max, proceed),
                size,
                request_headers.tenant,
            )
            await self.turn(size)
        if plan is None or plan.model is not model:
            plan = RequestPlan(parameters, model)
            self._plans.put(kind, plan_key, plan)
        session = session_of(headers, parameters)
        return _ChoiceBuilder(parameters, card, plan, request_headers, session, request_id).build(prompts)


class _ChoiceBuilder(NamedTuple):
    """One request while its choices are made."""

    parameters: ChatRequest | CompletionRequest
    card: ModelCard
    plan: RequestPlan
    request_headers: RequestHeaders
    session: Session
    request_id: str

    def build(self, prompts: list[PromptTokens]) -> PreparedRequest:
        """Every choice of every prompt; ApiError if one of them cannot be."""
        parameters, card, plan = self[:3]
        choices: list[Choice] = []
        count = 0
        for prompt, sent in enumerate(prompts):
            tokens = len(sent.tokens) // TOKEN_BYTES
            count += tokens
            sampling = plan.sampling(parameters, output_tokens_max(parameters, card, tokens))
            for place in range(plan.best_of):
                request = self._request(len(choices), sent.tokens, with_seed(sampling, place) if place else sampling)
                choices.append(plan.choice(len(choices), prompt, parameters, request, sent.text or ""))
        return PreparedRequest(
            model=card.name,
            choices=tuple(choices),
            prompt_tokens=count,
            stream=bool(parameters.stream),
            options=plan.options,
            plain=plan.plain and len(choices) == 1 and choices[0].parser is None,
        )

    def _request(self, index: int, tokens: bytes, sampling: Sampling) -> GenerateRequest:
        parameters, _, _, request_headers, session, request_id = self
        return GenerateRequest(
            id=RequestId(f"{request_id}.{index}" if index else request_id),
            tokens=tokens,
            sampling=sampling,
            cache_salt=parameters.cache_salt or None,
            priority=(parameters.priority or 0) if request_headers.priority is None else request_headers.priority,
            tenant=request_headers.tenant,
            traceparent=request_headers.traceparent,
            deadline_ms=request_headers.deadline_ms,
            # a stop string is found here: the worker is to hear of it soon
            gather=not parameters.stream and not parameters.stop,
            session=session.name,
            session_parent=session.parent,
        )
