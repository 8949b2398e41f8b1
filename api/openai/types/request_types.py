"""Request bodies of OpenAI's chat completions and completions, with vLLM's extras under vLLM's names.

Types are strict and null means not given; unknown fields are ignored, as vLLM's server does. Ranges stand at the types:
the decoder checks them, and `Meta.description` says them in words for the error. What the types of messages, tools and
formats do not say is checked where it is used, so that the error can name the place.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

Undecoded = msgspec.Raw | UnsetType
"""JSON as it was sent: syntax checked, no objects made. Null is four bytes here."""
OFF = (b"", b"null", b"false", b'""', b"[]", b"{}")
"""Undecoded values that switch a parameter off."""


def as_json(value: Any) -> Undecoded:
    """The value as a client sends it; unset for None."""
    return UNSET if value is None else msgspec.Raw(msgspec.json.encode(value))


def is_given(value: Undecoded) -> bool:
    """True for a value other than null."""
    return value is not UNSET and bytes(value) != b"null"


def is_off(value: Undecoded) -> bool:
    """True for no value, and for one that is null, false or empty."""
    return value is UNSET or (len(bytes(value)) <= OFF_BYTES_MAX and bytes(value).translate(None, BLANKS) in OFF)


OFF_BYTES_MAX = 64
"""A longer value is not looked into."""
BLANKS = b" \t\r\n"


KIND_CHARS_MAX = 256
"""Of words such as the type of a part and the role of a message, which an error may name."""
MODEL_CHARS_MAX = 1024
"""Of a model's name."""
Kind = Annotated[str, Meta(max_length=KIND_CHARS_MAX, description=f"a string of at most {KIND_CHARS_MAX} characters")]
ModelName = Annotated[
    str, Meta(max_length=MODEL_CHARS_MAX, description=f"a string of at most {MODEL_CHARS_MAX} characters")
]


class Part(msgspec.Struct, frozen=True):
    """One piece of a message's content; only text is read."""

    type: Kind
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
    type: Kind = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    role: Kind
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
    type: Kind = "function"


class ToolName(msgspec.Struct, frozen=True):
    name: str


class NamedChoice(msgspec.Struct, frozen=True):
    """`tool_choice` that names a tool."""

    type: Kind = "function"
    function: ToolName | None = None


ToolChoice = str | NamedChoice
"""`none`, `auto`, `required`, or one tool."""


class JsonSchema(msgspec.Struct, frozen=True):
    name: str
    schema: Undecoded = UNSET
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`text`, `json_object`, or `json_schema` with one."""

    type: Kind
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's own way to say the same and more; exactly one field is given."""

    json: Undecoded = UNSET
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Undecoded = UNSET
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
BIASES_BYTES_MAX = 64 * 1024
"""Of logit_bias as JSON; it is not decoded if it is longer."""
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
LogitBias = Annotated[
    msgspec.Raw | UnsetType,
    Meta(extra_json_schema={"type": ["object", "null"], "additionalProperties": {"type": "number"}}),
]
"""Token ids to biases."""
Top = Annotated[int, Meta(ge=0, le=TOP_LOGPROBS_MAX, description=f"from 0 to {TOP_LOGPROBS_MAX}")]
Truncation = Annotated[int, Meta(ge=-1, description="at least -1 (-1: what the context has room for)")]
Salt = Annotated[str, Meta(max_length=1024, description="a string of at most 1024 characters")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}\Z", description="1 to 128 of A-Z, a-z, 0-9, '.', '_', '-'")]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of both routes. Undecoded ones are known and refused, but for `logit_bias`: see `validation`."""

    model: ModelName
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
    logit_bias: LogitBias = UNSET
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
    use_beam_search: Undecoded = UNSET
    logprob_token_ids: Undecoded = UNSET
    thinking_token_budget: Undecoded = UNSET
    watermarking: Undecoded = UNSET
    repetition_detection: Undecoded = UNSET
    kv_transfer_params: Undecoded = UNSET
    ec_transfer_params: Undecoded = UNSET
    vllm_xargs: Undecoded = UNSET
    guided_json: Undecoded = UNSET
    guided_regex: Undecoded = UNSET
    guided_choice: Undecoded = UNSET
    guided_grammar: Undecoded = UNSET


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
    metadata: dict[str, msgspec.Raw] | None = None
    prompt_cache_key: str | None = None
    client_metadata: dict[str, msgspec.Raw] | None = None
    """Codex's."""
    functions: list[Function] | None = None
    """Tools in their deprecated form (`tool_choice.with_tools`)."""
    function_call: str | ToolName | None = None
    audio: Undecoded = UNSET
    moderation: Undecoded = UNSET
    verbosity: str | None = None
    web_search_options: Undecoded = UNSET
    # vLLM's
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    echo: Undecoded = UNSET
    chat_template: Undecoded = UNSET
    mm_processor_kwargs: Undecoded = UNSET
    media_io_kwargs: Undecoded = UNSET
    return_prompt_text: Undecoded = UNSET


class CompletionRequest(Parameters, frozen=True, kw_only=True):
    """The body of /v1/completions."""

    holds_token_ids: ClassVar[bool] = True

    prompt: str | list[Int64 | str | list[TokenId]]
    best_of: Several | None = None
    echo: bool | None = None
    logprobs: Top | None = None
    suffix: Undecoded = UNSET
    prompt_embeds: Undecoded = UNSET
