"""The tools that a request offers, in the present or the deprecated form, and whether the model must call them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from api.openai.types.request_types import ChatRequest, CompletionRequest, NamedChoice, Tool, ToolChoice, ToolName
from api.server.errors import ApiError, bad_parameter

Request = TypeVar("Request", bound=ChatRequest | CompletionRequest)
MODES = ("none", "auto")


def with_tools(request: Request) -> Request:
    """The request with its functions as tools, of which one may be called; its answer is told in the form in which it
    was asked. ApiError for functions beside tools, and for a call without functions."""
    if not isinstance(request, ChatRequest) or (request.functions is None and request.function_call is None):
        return request
    if not request.functions:
        if request.function_call in {None, "", *MODES}:
            return msgspec.structs.replace(request, functions=None)
        raise bad_parameter("function_call", "is allowed only with functions")
    if request.tools or request.tool_choice is not None:
        raise bad_parameter("functions", "cannot be given with tools: give tools alone")
    tools = [Tool(function=function) for function in request.functions]
    choice = _choice_of_function(request.function_call or None, {tool.function.name for tool in tools})
    return msgspec.structs.replace(request, tools=tools, tool_choice=choice, parallel_tool_calls=False)


def _choice_of_function(given: str | ToolName | None, names: set[str]) -> ToolChoice | None:
    if isinstance(given, ToolName):
        if given.name not in names:
            raise bad_parameter("function_call", f"names {given.name!r}, which is not among the functions")
        return NamedChoice(function=given)
    if given is not None and given not in MODES:
        raise bad_parameter("function_call", "must be 'none', 'auto' or {'name': …}")
    return given


TOOLS_MAX = 1024
"""Programs with many MCP servers offer hundreds."""
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
AUTO = "auto"
REQUIRED = "required"
NONE = "none"
NAMED = "named"
USAGE = "must be 'none', 'auto', 'required' or {'type': 'function', 'function': {'name': …}}"


class ToolOffer(NamedTuple):
    """Checked."""

    tools: tuple[Tool, ...]
    choice: str
    """`none`, `auto`, `required`, or `named`."""
    name: str = ""
    """Of the one tool that must be called, if the choice is `named`."""
    single: bool = False
    """At most one call."""


def read_tool_offer(request: ChatRequest) -> ToolOffer | None:
    """The request's tools; None if it offers none. ApiError for what cannot be offered."""
    if request.tools is None:
        if request.tool_choice not in (None, NONE):
            raise bad_parameter("tool_choice", "is allowed only with tools")
        return None
    _check_tools(request.tools)
    choice, name = _choice(request.tool_choice, request.tools)
    return ToolOffer(tuple(request.tools), choice, name, single=request.parallel_tool_calls is False)


def _choice(given: str | NamedChoice | None, tools: Sequence[Tool]) -> tuple[str, str]:
    match given:
        case None:
            return AUTO, ""
        case "none" | "auto" | "required":
            return given, ""
        case NamedChoice(type="function", function=function) if function is not None:
            if all(tool.function.name != function.name for tool in tools):
                raise bad_parameter("tool_choice", f"names {function.name!r}, which is not among the tools")
            return NAMED, function.name
    raise bad_parameter("tool_choice", USAGE)


def _check_tools(tools: Sequence[Tool]) -> None:
    if not 0 < len(tools) <= TOOLS_MAX:
        raise bad_parameter("tools", f"must hold 1 to {TOOLS_MAX} tools, not {len(tools)}; without any, leave it out")
    for index, tool in enumerate(tools):
        _check_tool(f"tools[{index}]", tool)
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise bad_parameter("tools", f"two of them have the name {twice!r}")


def _check_tool(place: str, tool: Tool) -> None:
    if tool.type != "function":
        raise bad_parameter(f"{place}.type", f"must be 'function', not {tool.type!r}")
    if not NAME.fullmatch(tool.function.name):
        raise bad_parameter(
            f"{place}.function.name", "must have 1 to 64 of the letters a to z and A to Z, digits, _ and -"
        )


def without_parser(model: str) -> ApiError:
    """400 for `tool_choice` auto with a model that has no parser of calls."""
    how = "set tool_call_parser for it (hermes, llama3_json, mistral, or any of vLLM's)"
    fault = f"'auto' needs to know how model {model!r} writes calls: {how}, or send tool_choice 'required' or 'none'"
    return bad_parameter("tool_choice", fault)
