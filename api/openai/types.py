"""Request bodies of OpenAI's chat completions and completions, with the few of vLLM's extras that we know.

Types are strict and null means not given; fields that nobody knows are ignored, as vLLM's server does. Ranges stand
at the types: the decoder checks them, and `Meta.description` says them in words for the error.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

STOP_MAX = 4
"""Stop strings per request."""
STOP_CHARS_MAX = 1024
"""Longest stop string; every token's text is compared with them."""

Penalty = Annotated[float, Meta(ge=-2, le=2, description="between -2 and 2")]
Share = Annotated[float, Meta(ge=0, le=1, description="between 0 and 1")]
Temperature = Annotated[float, Meta(ge=0, le=2, description="between 0 and 2")]
TopP = Annotated[float, Meta(gt=0, le=1, description="above 0 and at most 1")]
AtLeastOne = Annotated[int, Meta(ge=1, description="at least 1")]
Count = Annotated[int, Meta(ge=0, description="at least 0")]
TopK = Annotated[int, Meta(ge=-1, description="at least -1 (-1 and 0: off)")]
Repetition = Annotated[float, Meta(gt=0, le=2, description="above 0 and at most 2")]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, description="an integer of 64 bits")]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, description="an integer of 32 bits")]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1, description="a token id")]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class Part(msgspec.Struct, frozen=True):
    """One piece of a message's content; only text is known."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: Any = None


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """What both routes take. Fields of type Any are known and not supported yet: see `validation`."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: AtLeastOne | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: AtLeastOne | None = None
    stop: str | list[str] | None = None
    seed: Int64 | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Any = None
    response_format: Any = None
    # vLLM's
    top_k: TopK | None = None
    min_p: Share | None = None
    repetition_penalty: Repetition | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    stop_token_ids: list[TokenId] | None = None
    cache_salt: str | None = None
    priority: Int32 | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: Any = None
    use_beam_search: Any = None
    prompt_logprobs: Any = None


class ChatRequest(Parameters, frozen=True, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: AtLeastOne | None = None
    logprobs: Any = None
    top_logprobs: Any = None
    tools: Any = None
    functions: Any = None
    chat_template_kwargs: Any = None


class CompletionRequest(Parameters, frozen=True, kw_only=True):
    """The body of /v1/completions."""

    prompt: str | list[int | str | list[TokenId]]
    best_of: AtLeastOne | None = None
    echo: Any = None
    logprobs: Any = None
    suffix: Any = None
