"""Request bodies of OpenAI's chat completions and completions, with vLLM's extras under vLLM's names.

Types are strict and null means not given; unknown fields are ignored, as vLLM's server does. Ranges stand at the types:
the decoder checks them, and `Meta.description` says them in words for the error. What the types of messages, tools and
formats do not say is checked where it is used, so that the error can name the place.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class Part(msgspec.Struct, frozen=True):
    """One piece of a message's content; only text is read."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """The function that an assistant called in an earlier message."""

    name: str
    arguments: str | dict[str, Any] | None = None
    """JSON text, as OpenAI's clients send it; some send the object itself."""


class ToolCall(msgspec.Struct, frozen=True):
    function: CalledFunction
    id: str | None = None
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    """Of an assistant, instead of content."""
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The older name of `reasoning`."""
    function_call: CalledFunction | None = None
    """A call in OpenAI's deprecated form; a message of role `function` has its result."""


class Function(msgspec.Struct, frozen=True):
    """A tool, as the request describes it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    function: Function
    type: str = "function"


class ToolName(msgspec.Struct, frozen=True):
    name: str


class NamedChoice(msgspec.Struct, frozen=True):
    """`tool_choice` that names a tool."""

    type: str = "function"
    function: ToolName | None = None


ToolChoice = str | NamedChoice
"""`none`, `auto`, `required`, or one tool."""


class JsonSchema(msgspec.Struct, frozen=True):
    name: str
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`text`, `json_object`, or `json_schema` with one."""

    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's own way to say the same and more; exactly one field is given."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    """Refused."""


STOP_MAX = 4
"""Stop strings per request."""
STOP_CHARS_MAX = 1024
"""Longest stop string; every token's text is compared with them."""
CHOICES_MAX = 128
"""Answers per request: prompts times `n`, or times `best_of`."""
COMPLETION_TOKENS = 16
"""Tokens that /v1/completions generates without `max_tokens`, as OpenAI and vLLM do."""
TOP_LOGPROBS_MAX = 20
"""Likeliest tokens told for each place."""
BIASES_MAX = 1024
"""Entries of logit_bias, as OpenAI bounds them."""
TOKEN_LIST_MAX = 16384
"""Entries of allowed_token_ids and of stop_token_ids."""
WORDS_MAX = 256
"""Entries of bad_words."""

Penalty = Annotated[float, Meta(ge=-2, le=2, description="between -2 and 2")]
Share = Annotated[float, Meta(ge=0, le=1, description="between 0 and 1")]
Temperature = Annotated[float, Meta(ge=0, le=2, description="between 0 and 2")]
TopP = Annotated[float, Meta(gt=0, le=1, description="above 0 and at most 1")]
AtLeastOne = Annotated[int, Meta(ge=1, description="at least 1")]
Count = Annotated[int, Meta(ge=0, description="at least 0")]
Several = Annotated[int, Meta(ge=1, le=CHOICES_MAX, description=f"from 1 to {CHOICES_MAX}")]
TopK = Annotated[int, Meta(ge=-1, description="at least -1 (-1 and 0: off)")]
Repetition = Annotated[float, Meta(gt=0, le=2, description="above 0 and at most 2")]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, description="an integer of 64 bits")]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, description="an integer of 32 bits")]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1, description="a token id")]
Bias = Annotated[float, Meta(ge=-100, le=100, description="an object of numbers between -100 and 100")]
Top = Annotated[int, Meta(ge=0, le=TOP_LOGPROBS_MAX, description=f"from 0 to {TOP_LOGPROBS_MAX}")]
Truncation = Annotated[int, Meta(ge=-1, description="at least -1 (-1: what the context has room for)")]
Salt = Annotated[str, Meta(max_length=1024, description="a string of at most 1024 characters")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}\Z", description="1 to 128 of A-Z, a-z, 0-9, '.', '_', '-'")]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of both routes. Those of type Any are known and refused: see `validation`."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: Several | None = None
    stop: str | list[str] | None = None
    seed: Int64 | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Bias] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None
    # vLLM's
    top_k: TopK | None = None
    min_p: Share | None = None
    repetition_penalty: Repetition | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: Top | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: Salt | None = None
    priority: Int32 | None = None
    request_id: Name | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Truncation | None = None
    truncation_side: str | None = None
    structured_outputs: StructuredOutputs | None = None
    use_beam_search: Any = None
    logprob_token_ids: Any = None
    thinking_token_budget: Any = None
    watermarking: Any = None
    repetition_detection: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    vllm_xargs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


class ChatRequest(Parameters, frozen=True, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: AtLeastOne | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    """Ignored: nothing is stored."""
    modalities: list[str] | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    client_metadata: dict[str, Any] | None = None
    """Codex's."""
    functions: list[Function] | None = None
    """Tools in their deprecated form (`tool_choice.with_tools`)."""
    function_call: str | ToolName | None = None
    audio: Any = None
    moderation: Any = None
    verbosity: str | None = None
    web_search_options: Any = None
    # vLLM's
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    echo: Any = None
    chat_template: Any = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None
    return_prompt_text: Any = None


class CompletionRequest(Parameters, frozen=True, kw_only=True):
    """The body of /v1/completions."""

    prompt: str | list[int | str | list[TokenId]]
    best_of: Several | None = None
    echo: bool | None = None
    logprobs: Top | None = None
    suffix: Any = None
    prompt_embeds: Any = None
