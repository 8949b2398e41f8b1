"""Preprocessor: a request becomes a `PreparedRequest`: rendered, tokenized, with everything that the answer needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from api.openai.request.body_reader import BodyIntake
from api.openai.request.choice import Choice, Echo, PendingTokens, Transcript
from api.openai.request.prompts import PromptTokens, tokenize_prompts
from api.openai.request.request_metadata import RequestHeaders, Session, find_session, parse_headers
from api.openai.request.sampling import build_sampling, output_tokens_max, shown_logprobs, with_seed
from api.openai.request.validation import check, stop_strings
from api.openai.types.backend import Backend
from api.openai.types.request_types import ChatRequest, CompletionRequest
from api.parsers.loaded_models import LoadedModel, LoadedModels
from api.parsers.parser_selection import select_parser
from api.server.limits import ApiSettings
from api.tokenizer.detokenizer import StopStrings, TokenTexts
from api.tokenizer.model_tokenizer import ModelTokenizer
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.models import ModelCard
from core.prompt import TOKEN_BYTES

Result = TypeVar("Result")


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request: each prompt once, the answers of all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    """None if the engine does not say."""
    reasoning_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        """OpenAI's `usage`; details of the prompt are left out if the engine does not say them."""
        details = {} if self.cached_tokens is None else {"cached_tokens": self.cached_tokens}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": details,
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


class ResponseOptions(msgspec.Struct, frozen=True):
    """Options of an answer: the parts that it shows beside its text."""

    texts: TokenTexts
    logprobs: int = -1
    """-1: none; else of each token, and of so many of the likeliest in its place."""
    as_ids: bool = False
    """Tokens are written as `token_id:5` in logprobs."""
    prompt_logprobs: bool = False
    token_ids: bool = False
    special_tokens: bool = False
    """Special tokens are part of the text."""
    service_tier: str | None = None
    include_usage: bool = False
    continuous_usage: bool = False
    best_of: int = 1
    """Choices that are made for each prompt; the best `n` of them are shown."""
    n: int = 1
    as_function: bool = False
    """A call is told in OpenAI's deprecated form, as `function_call`."""


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request that can be sent to workers."""

    model: str
    """The model's own name, also of a request for an adapter."""
    shown_model: str
    """`core.models.ModelCard.shown_name`."""
    choices: tuple[Choice, ...]
    """All answers to the first prompt, then those to the next."""
    prompt_tokens: int
    """Of all prompts, each counted once."""
    stream: bool
    options: ResponseOptions
    is_plain_text: bool
    """One choice that is nothing but text: its transcript can be read without deltas."""

    @property
    def finish(self) -> str | None:
        """The first choice's reason to end; None while a choice is under way."""
        if len(self.choices) == 1:
            return self.choices[0].finish
        ends = [choice.finish for choice in self.choices]
        return None if None in ends else ends[0]

    def usage(self) -> Usage:
        """The tokens used until now; a prompt's cached tokens are those of its first choice."""
        if len(self.choices) == 1:
            (only,) = self.choices
            return Usage(
                self.prompt_tokens, only.completion_tokens, only.transcript.cached_tokens, only.reasoning_tokens
            )
        firsts = {choice.prompt: choice for choice in reversed(self.choices)}
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=sum([choice.completion_tokens for choice in self.choices]),
            cached_tokens=_sum_known(choice.transcript.cached_tokens for choice in firsts.values()),
            reasoning_tokens=sum([choice.reasoning_tokens for choice in self.choices]),
        )


def _sum_known(counts: Iterable[int | None]) -> int | None:
    """None if all are unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


class Preprocessor:
    """Turns requests into generations; of their prompts it holds nothing."""

    def __init__(self, backend: Backend, settings: ApiSettings, models: LoadedModels, intake: BodyIntake) -> None:
        self._backend = backend
        self._settings = settings
        self._models = models
        self._intake = intake

    async def translate(self, work: Callable[[], Result], size: int, tenant: str | None) -> Result:
        """The result of `work` on a body of this size."""
        return await self._models.pool.run_if_large(work, size, tenant)

    async def prepare(
        self, parameters: ChatRequest | CompletionRequest, headers: Mapping[bytes, bytes], request_id: str, size: int
    ) -> PreparedRequest:
        """The generations that a decoded request asks for; `size` are the bytes of its body.

        Raises ApiError, or what `Backend.card` raises.
        """
        check(parameters)
        request_headers = parse_headers(headers)
        card = self._backend.card(parameters.model)
        model = self._models.loaded(card) or await self._models.of(card)
        tenant = self._models.cache_tenant(request_headers.tenant)
        if size <= self._settings.inline_bytes_max:
            prompts = tokenize_prompts(parameters, model.tokenizer, card.context_max, tenant=tenant)
        else:
            prompts = await self._models.pool.run(
                lambda proceed: tokenize_prompts(parameters, model.tokenizer, card.context_max, proceed, tenant),
                size,
                request_headers.tenant,
            )
            await self._intake.acquire_turn()
        session = find_session(headers, parameters)
        return _ChoiceBuilder(parameters, card, model, request_headers, session, request_id).build(prompts)


class _ChoiceBuilder:
    """One checked request while its choices are made."""

    def __init__(
        self,
        parameters: ChatRequest | CompletionRequest,
        card: ModelCard,
        model: LoadedModel,
        request_headers: RequestHeaders,
        session: Session,
        request_id: str,
    ) -> None:
        self._parameters = parameters
        self._card = card
        self._model = model
        self._request_headers = request_headers
        self._session = session
        self._request_id = request_id
        self._best_of: int = getattr(parameters, "best_of", None) or parameters.n or 1
        """Choices that are made for each prompt."""
        self._options = _response_options(parameters, model.tokenizer, self._best_of)
        self._by_token = self._options.logprobs >= 0 or self._options.token_ids or self._best_of > self._options.n
        """True if the answer needs the tokens that its text is made of."""
        self._echoes = isinstance(parameters, CompletionRequest) and bool(parameters.echo)
        self._stops = tuple(stop_strings(parameters))

    def build(self, prompts: list[PromptTokens]) -> PreparedRequest:
        """Every choice of every prompt; ApiError if one of them cannot be."""
        parameters, options = self._parameters, self._options
        choices: list[Choice] = []
        count = 0
        for prompt, sent in enumerate(prompts):
            tokens = len(sent.tokens) // TOKEN_BYTES
            count += tokens
            max_tokens = output_tokens_max(parameters, self._card, tokens)
            sampling = build_sampling(parameters, self._model.tokenizer, max_tokens)
            for place in range(self._best_of):
                request = self._request(len(choices), sent.tokens, with_seed(sampling, place))
                choices.append(self._choice(len(choices), prompt, request, sent.text or ""))
        special = options.continuous_usage or options.prompt_logprobs or self._echoes or self._by_token
        return PreparedRequest(
            model=self._card.name,
            shown_model=self._card.shown_name,
            choices=tuple(choices),
            prompt_tokens=count,
            stream=bool(parameters.stream),
            options=options,
            is_plain_text=not special and len(choices) == 1 and choices[0].parser is None,
        )

    def _request(self, index: int, tokens: bytes, sampling: Sampling) -> GenerateRequest:
        parameters, request_headers = self._parameters, self._request_headers
        return GenerateRequest(
            id=RequestId(f"{self._request_id}.{index}" if index else self._request_id),
            tokens=tokens,
            sampling=sampling,
            adapter=None if self._card.adapter is None else self._card.adapter.id,
            cache_salt=parameters.cache_salt or None,
            priority=(parameters.priority or 0) if request_headers.priority is None else request_headers.priority,
            tenant=request_headers.tenant,
            traceparent=request_headers.traceparent,
            deadline_ms=request_headers.deadline_ms,
            # a stop string is found here: the worker is to hear of it soon
            gather=not parameters.stream and not parameters.stop,
            session=self._session.name,
            session_parent=self._session.parent,
        )

    def _choice(self, index: int, prompt: int, request: GenerateRequest, text: str) -> Choice:
        """A choice that has yet to be made: of the prompt at this place, which was sent as this text if it was text.
        ApiError if the answer cannot be read as is asked."""
        parameters, tokenizer, sampling = self._parameters, self._model.tokenizer, request.sampling
        parser, skips = None, parameters.skip_special_tokens is not False
        if isinstance(parameters, ChatRequest):
            parser = select_parser(parameters, self._model, request.tokens)
            skips = skips and not (parser is not None and parser.keeps_special_tokens)
        transcript = Transcript(
            tokenizer.detokenizer(skip_special_tokens=skips),
            StopStrings(self._stops, included=bool(parameters.include_stop_str_in_output)),
            # with ignore_eos an engine may still stop at its own end token after others: its text never leaves
            (*sampling.stop_token_ids, *tokenizer.eos_ids),
            sampling.min_tokens,
            # the reason is told of every end but the model's first one, as vLLM does
            reported_ends=[end for end in sampling.stop_token_ids if sampling.ignore_eos or end != tokenizer.eos_id],
            pending_tokens=PendingTokens() if self._by_token or parser is not None else None,
        )
        echo = Echo(text, only=parameters.max_tokens == 0) if self._echoes else None
        return Choice(index, prompt, request, transcript, parser, echo)


def _response_options(
    parameters: ChatRequest | CompletionRequest, tokenizer: ModelTokenizer, best_of: int
) -> ResponseOptions:
    stream_options = parameters.stream_options
    return ResponseOptions(
        texts=tokenizer.texts,
        logprobs=shown_logprobs(parameters),
        as_ids=bool(parameters.return_tokens_as_token_ids),
        prompt_logprobs=parameters.prompt_logprobs is not None,
        token_ids=bool(parameters.return_token_ids),
        special_tokens=parameters.skip_special_tokens is False,
        service_tier="default" if getattr(parameters, "service_tier", None) else None,
        include_usage=bool(stream_options and stream_options.include_usage),
        continuous_usage=bool(
            stream_options and stream_options.include_usage and stream_options.continuous_usage_stats
        ),
        best_of=best_of,
        n=parameters.n or 1,
        as_function=bool(getattr(parameters, "functions", None)),
    )
