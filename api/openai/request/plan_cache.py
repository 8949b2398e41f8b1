"""Request plans: what follows from a request beside its prompt, worked out once, and the plans of recent requests.

Requests of one application are mostly equal byte for byte but for their prompts. A plan is found again by these bytes.
"""

from __future__ import annotations

import msgspec

from api.openai.request.choice import Choice, Echo, PendingTokens, Transcript
from api.openai.request.prepared_request import ResponseOptions
from api.openai.request.sampling import sampling_of, shown_logprobs
from api.openai.request.validation import stop_strings
from api.openai.types.request_types import ChatRequest, CompletionRequest
from api.parsers.loaded_models import LoadedModel
from api.parsers.parser_selection import select_parser
from api.tokenizer.model_tokenizer import ModelTokenizer
from api.tokenizer.stop_strings import StopStrings
from core.generation import GenerateRequest, Sampling

KEY_BYTES_MAX = 16 * 1024
"""Longer ones, of requests with very many tools, are not kept …"""
KEPT_MAX = 256
"""… and of the others so many; then all of them are forgotten."""


class RequestPlan:
    """What follows from requests to one model that are equal but for their prompts; they were checked."""

    def __init__(self, parameters: ChatRequest | CompletionRequest, model: LoadedModel) -> None:
        self.model = model
        self.best_of: int = getattr(parameters, "best_of", None) or parameters.n or 1
        """Choices that are made for each prompt."""
        self.options = _response_options(parameters, model.tokenizer, self.best_of)
        self._by_token = self.options.logprobs >= 0 or self.options.token_ids or self.best_of > self.options.n
        """Whether the answer needs to know which tokens its text is made of."""
        self._echoes = isinstance(parameters, CompletionRequest) and bool(parameters.echo)
        special = self.options.continuous_usage or self.options.prompt_logprobs or self._echoes
        self.plain = not (special or self._by_token)
        """Whether an answer is nothing but text, unless reasoning or calls are found in it."""
        self._skips_special = parameters.skip_special_tokens is not False
        self._stops = tuple(stop_strings(parameters))
        self._stops_included = bool(parameters.include_stop_str_in_output)
        self._sampling: Sampling | None = None
        self._ends: frozenset[int] = frozenset()
        self._told_ends: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        return f"<RequestPlan {self._sampling}, {len(self._stops)} stop strings>"

    def sampling(self, parameters: ChatRequest | CompletionRequest, max_tokens: int) -> Sampling:
        """How the tokens are chosen, at most so many; ApiError if they cannot be."""
        if self._sampling is None or self._sampling.max_tokens != max_tokens:
            sampling = self._sampling = sampling_of(parameters, self.model.tokenizer, max_tokens)
            # with ignore_eos an engine may still stop at its own end token after others: its text never leaves
            self._ends = frozenset((*sampling.stop_token_ids, *self.model.tokenizer.eos_ids))
            # the reason is told of every end but the model's first one, as vLLM does
            first = set() if sampling.ignore_eos else {self.model.tokenizer.eos_id}
            self._told_ends = frozenset(sampling.stop_token_ids) - first
        return self._sampling

    def choice(
        self, index: int, prompt: int, parameters: ChatRequest | CompletionRequest, request: GenerateRequest, text: str
    ) -> Choice:
        """A choice that has yet to be made: of the prompt at this place, which was sent as this text if it was text;
        its request has what `sampling` gave. ApiError if the answer cannot be read as is asked."""
        parser, echo, skips = None, None, self._skips_special
        if isinstance(parameters, ChatRequest):
            parser = select_parser(parameters, self.model, request.tokens)
            skips = skips and not (parser is not None and parser.keeps_special_tokens)
        if self._echoes:
            echo = Echo(text, only=parameters.max_tokens == 0)
        transcript = Transcript(
            self.model.tokenizer.detokenizer(skip_special_tokens=skips),
            StopStrings(self._stops, included=self._stops_included),
            self._ends,
            request.sampling.min_tokens,
            told_ends=self._told_ends,
            pending_tokens=PendingTokens() if self._by_token or parser is not None else None,
        )
        return Choice(index, prompt, request, transcript, parser, echo)


class RequestPlanCache:
    """Plans by the bytes of their requests beside the prompt."""

    def __init__(self) -> None:
        self._kept: dict[tuple[type[ChatRequest | CompletionRequest], bytes], RequestPlan] = {}

    def __repr__(self) -> str:
        return f"<RequestPlanCache {len(self._kept)}>"

    def get(self, kind: type[ChatRequest | CompletionRequest], plan_key: bytes) -> RequestPlan | None:
        """Those of requests of this kind with these bytes, for the tokenizer that their model had then."""
        return self._kept.get((kind, plan_key)) if plan_key else None

    def put(self, kind: type[ChatRequest | CompletionRequest], plan_key: bytes, plan: RequestPlan) -> None:
        """They are kept, unless there are no bytes to know them by."""
        if plan_key:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[kind, plan_key] = plan


class _Chat(msgspec.Struct):
    messages: msgspec.Raw


class _Completion(msgspec.Struct):
    prompt: msgspec.Raw


_MARK = b"\0"
"""Stands where the prompt was; no JSON has it."""
_chat = msgspec.json.Decoder(_Chat)
_completion = msgspec.json.Decoder(_Completion)


def body_without_prompt(kind: type[ChatRequest | CompletionRequest], raw: bytes) -> bytes:
    """The body without its prompt, which it has been found to have, and with a mark in its place; empty if that is too
    long, or if the prompt stands in it twice."""
    prompt = bytes(_chat.decode(raw).messages if kind is ChatRequest else _completion.decode(raw).prompt)
    if len(raw) - len(prompt) > KEY_BYTES_MAX:
        return b""
    before, _, after = raw.partition(prompt)
    return b"" if prompt in after else before + _MARK + after


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
