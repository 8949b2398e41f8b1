"""A body of /v1/responses as the chat that it asks for. Nothing is stored here: what would need that is refused."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from api.openai.requests.formats import check_depth
from api.openai.requests.types import ChatRequest
from api.openai.responses.body import AllowedTool, ChosenTool, ResponsesRequest, TextFormat
from api.openai.responses.conversation import messages_of
from api.openai.responses.tool_catalog import ToolCatalog
from api.openai.templates.messages import JsonSchema, NamedChoice, ResponseFormat, ToolName
from api.server.errors import ApiError, bad_parameter, not_supported, with_renamed_parameter

STORED = ("background", "previous_response_id", "conversation", "prompt")
"""What would have to be kept here between requests."""
LOGPROBS = "message.output_text.logprobs"
SERVICE_TIERS = ("auto", "default", "flex", "priority", "scale", "fast", "ultrafast")
"""OpenAI's words; all are served alike, and the answer says `default`."""
VERBOSITIES = ("low", "medium", "high")
"""OpenAI's words; no chat template knows them."""
TRUNCATIONS = ("auto", "disabled")
"""Nothing is cut off by either: a conversation that is too long is refused, so that the client shortens it."""
SAME_NAME = (
    "model", "temperature", "top_p", "user", "stream", "stop", "seed", "top_k", "min_p",
    "repetition_penalty", "ignore_eos", "min_tokens", "stop_token_ids", "cache_salt", "priority",
    "chat_template_kwargs", "metadata", "prompt_cache_key", "client_metadata",
)  # fmt: skip
"""Parameters that a chat has too, and means the same by them."""
NAMED_HERE = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "tools": "tools",
}
"""Parameters of the chat that have another name in this body, or other ones within."""
WITHIN = {".json_schema": "", ".function": ""}
"""What a chat has around a format and around a tool, and this body has not."""


def chat_of(asked: ResponsesRequest) -> ChatRequest:
    """The chat whose answer is the response; ApiError for what cannot be had here."""
    _check(asked)
    catalog = ToolCatalog(asked)
    return ChatRequest(
        messages=messages_of(asked.instructions, asked.input, catalog),
        max_completion_tokens=asked.max_output_tokens,
        logprobs=bool(asked.top_logprobs) or LOGPROBS in (asked.include or ()),
        top_logprobs=asked.top_logprobs,
        **_tools(asked, catalog),
        response_format=_format(asked.text.format if asked.text else None),
        reasoning_effort=asked.reasoning.effort if asked.reasoning else None,
        **{name: getattr(asked, name) for name in SAME_NAME},
    )


def named_here(error: ApiError) -> ApiError:
    """The error with the parameter's name in this body."""
    return with_renamed_parameter(error, NAMED_HERE, WITHIN)


def _check(asked: ResponsesRequest) -> None:
    for name in STORED:
        if getattr(asked, name) not in (None, False, ""):
            raise bad_parameter(
                name, "nothing is stored here: send the whole input, and leave this out", "unsupported_parameter"
            )
    _check_word("truncation", asked.truncation, TRUNCATIONS)
    _check_word("service_tier", asked.service_tier, SERVICE_TIERS)
    _check_word("text.verbosity", asked.text.verbosity if asked.text else None, VERBOSITIES)
    if not asked.input and not asked.instructions:
        raise bad_parameter("input", "must not be empty without instructions")


def _check_word(param: str, word: str | None, known: Sequence[str]) -> None:
    if word is not None and word not in known:
        raise bad_parameter(param, f"must be one of {', '.join(known)}")


def _tools(asked: ResponsesRequest, catalog: ToolCatalog) -> dict[str, Any]:
    """What a chat is told of tools: nothing if there are none, though clients say how to choose among them."""
    choice, allowed = _choice(asked.tool_choice, catalog)
    tools = [offered.tool for flat, offered in catalog if allowed is None or flat in allowed]
    if not tools and choice in {None, "auto", "none"}:
        return {}
    return {"tools": tools or None, "tool_choice": choice, "parallel_tool_calls": asked.parallel_tool_calls}


def _choice(
    choice: str | ChosenTool | None, catalog: ToolCatalog
) -> tuple[str | NamedChoice | None, AbstractSet[str] | None]:
    """The chat's choice, and the names of the tools that it is restricted to, if it is."""
    if choice is None or isinstance(choice, str):
        return choice, None
    if choice.type == "allowed_tools":
        if choice.mode not in {"auto", "required"}:
            raise bad_parameter("tool_choice.mode", "must be 'auto' or 'required'")
        return choice.mode, _allowed(choice.tools or (), catalog)
    if choice.type not in {"function", "custom"} or not choice.name:
        raise not_supported(
            "tool_choice", f"tool_choice: type {choice.type!r}; a function or a custom tool by its name can be chosen"
        )
    return NamedChoice(function=ToolName(name=catalog.chosen(choice.name, choice.namespace))), None


def _allowed(tools: Sequence[AllowedTool], catalog: ToolCatalog) -> set[str]:
    """The model's names for them; hosted tools are not among those anyway."""
    names: set[str] = set()
    for tool in tools:
        if tool.type == "namespace":
            names |= catalog.within(tool.name or "")
        elif tool.type in {"function", "custom"}:
            names.add(catalog.chosen(tool.name or "", tool.namespace))
    return names


def _format(wanted: TextFormat | None) -> ResponseFormat | None:
    if wanted is None:
        return None
    check_depth(wanted.schema, "text.format.schema")
    if wanted.type != "json_schema":
        return ResponseFormat(type=wanted.type)
    if not wanted.name:
        raise bad_parameter("text.format.name", "is required")
    schema = JsonSchema(name=wanted.name, schema=wanted.schema, description=wanted.description, strict=wanted.strict)
    return ResponseFormat(type="json_schema", json_schema=schema)
