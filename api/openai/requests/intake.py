"""A request becomes generations: rendered, tokenized, with everything that the answer needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from api.openai.answers.choice import Choice, Echo
from api.openai.answers.interpreting import interpreter_of
from api.openai.answers.said import Interpreter
from api.openai.backend import Backend
from api.openai.requests.accepted import Accepted, Shown
from api.openai.requests.headers import Hints, hints_of
from api.openai.requests.prompts import PromptTokens, prompts_of
from api.openai.requests.sampling import room_of, sampling_of, shown_logprobs, with_seed
from api.openai.requests.types import ChatRequest, CompletionRequest
from api.openai.requests.validation import stop_strings
from api.openai.settings import ApiSettings
from api.openai.text.ledger import Ledger
from api.openai.text.stops import Stops
from api.openai.text.tokenizer import ModelTokenizer, Tokenizers
from api.openai.text.transcript import Transcript
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.models import ModelCard
from core.prompt import TOKEN_BYTES


class Intake:
    """Turns requests into generations; holds nothing of any request."""

    def __init__(self, backend: Backend, settings: ApiSettings, tokenizers: Tokenizers) -> None:
        self._backend = backend
        self._settings = settings
        self._tokenizers = tokenizers

    async def accept(
        self, parameters: ChatRequest | CompletionRequest, headers: Mapping[bytes, bytes], request_id: str, size: int
    ) -> Accepted:
        """The generations that a decoded and checked request asks for; `size` are the bytes of its body.

        Raises ApiError, or what `Backend.card` raises.
        """
        hints = hints_of(headers)
        card = self._backend.card(parameters.model)
        tokenizer = await self._tokenizers.of(card)
        if size <= self._settings.inline_bytes_max:
            prompts = prompts_of(parameters, tokenizer, card.context_max)
        else:
            prompts = await asyncio.to_thread(prompts_of, parameters, tokenizer, card.context_max)
        making = Making(parameters, card, tokenizer, hints, request_id)
        return making.accepted(prompts)


class Making:
    """One request while its choices are made."""

    def __init__(
        self,
        parameters: ChatRequest | CompletionRequest,
        card: ModelCard,
        tokenizer: ModelTokenizer,
        hints: Hints,
        request_id: str,
    ) -> None:
        self._parameters = parameters
        self._card = card
        self._tokenizer = tokenizer
        self._hints = hints
        self._request_id = request_id
        self._best_of = getattr(parameters, "best_of", None) or parameters.n or 1
        self._shown = _shown(parameters, tokenizer, self._best_of)
        self._by_token = self._shown.logprobs >= 0 or self._shown.token_ids or self._best_of > self._shown.n
        """Whether the answer needs to know which tokens its text is made of."""

    def __repr__(self) -> str:
        return f"<Making {self._request_id}>"

    def accepted(self, prompts: list[PromptTokens]) -> Accepted:
        """Every choice of every prompt; ApiError if one of them cannot be."""
        choices: list[Choice] = []
        count = 0
        for prompt, sent in enumerate(prompts):
            tokens = len(sent.tokens) // TOKEN_BYTES
            count += tokens
            sampling = sampling_of(self._parameters, self._tokenizer, room_of(self._parameters, self._card, tokens))
            for place in range(self._best_of):
                choices.append(self._choice(len(choices), prompt, sent, with_seed(sampling, place)))
        return Accepted(
            model=self._card.name,
            choices=tuple(choices),
            prompt_tokens=count,
            stream=bool(self._parameters.stream),
            shown=self._shown,
            plain=len(choices) == 1 and self._is_plain(choices[0]),
        )

    def _is_plain(self, choice: Choice) -> bool:
        special = self._shown.continuous_usage or self._shown.prompt_logprobs or choice.echo is not None
        return not (special or self._by_token or choice.interpreter is not None)

    def _choice(self, index: int, prompt: int, sent: PromptTokens, sampling: Sampling) -> Choice:
        parameters = self._parameters
        interpreter: Interpreter | None = None
        echo: Echo | None = None
        if isinstance(parameters, ChatRequest):
            interpreter = interpreter_of(parameters, self._tokenizer, sent.tokens)
        elif parameters.echo:
            echo = Echo(sent.text or "", only=parameters.max_tokens == 0)
        request = self._request(index, sent.tokens, sampling)
        return Choice(index, prompt, request, self._transcript(sampling, interpreter), interpreter, echo)

    def _transcript(self, sampling: Sampling, interpreter: Interpreter | None) -> Transcript:
        parameters, tokenizer = self._parameters, self._tokenizer
        kept = interpreter is not None and interpreter.keeps_special_tokens
        skip = parameters.skip_special_tokens is not False and not kept
        stops = Stops(stop_strings(parameters), included=bool(parameters.include_stop_str_in_output))
        return Transcript(
            tokenizer.detokenizer(skip_special_tokens=skip),
            stops,
            # with ignore_eos an engine may still stop at its own end token after others: its text never leaves
            {*sampling.stop_token_ids, *tokenizer.eos_ids},
            sampling.min_tokens,
            # the reason is told of every end but the model's first one, as vLLM does
            told_ends=set(sampling.stop_token_ids) - ({tokenizer.eos_id} if not sampling.ignore_eos else set()),
            ledger=Ledger() if self._by_token or interpreter is not None else None,
        )

    def _request(self, index: int, tokens: bytes, sampling: Sampling) -> GenerateRequest:
        parameters, hints = self._parameters, self._hints
        return GenerateRequest(
            id=RequestId(f"{self._request_id}.{index}" if index else self._request_id),
            tokens=tokens,
            sampling=sampling,
            cache_salt=parameters.cache_salt or None,
            priority=(parameters.priority or 0) if hints.priority is None else hints.priority,
            tenant=hints.tenant,
            traceparent=hints.traceparent,
            deadline_ms=hints.deadline_ms,
            # a stop string is found here: the worker is to hear of it soon
            gather=not parameters.stream and not parameters.stop,
            session=hints.session or parameters.user or "",
        )


def _shown(parameters: ChatRequest | CompletionRequest, tokenizer: ModelTokenizer, best_of: int) -> Shown:
    options = parameters.stream_options
    return Shown(
        texts=tokenizer.texts,
        logprobs=shown_logprobs(parameters),
        as_ids=bool(parameters.return_tokens_as_token_ids),
        prompt_logprobs=parameters.prompt_logprobs is not None,
        token_ids=bool(parameters.return_token_ids),
        special_tokens=parameters.skip_special_tokens is False,
        service_tier="default" if getattr(parameters, "service_tier", None) else None,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        best_of=best_of,
        n=parameters.n or 1,
    )
