"""`functions` and `function_call`, which OpenAI has deprecated: the same request in terms of tools."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from api.openai.types.request_types import ChatRequest, CompletionRequest, NamedChoice, Tool, ToolChoice, ToolName
from api.server.errors import bad_parameter

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
    choice = _choice(request.function_call or None, {tool.function.name for tool in tools})
    return msgspec.structs.replace(request, tools=tools, tool_choice=choice, parallel_tool_calls=False)


def _choice(given: str | ToolName | None, names: set[str]) -> ToolChoice | None:
    if isinstance(given, ToolName):
        if given.name not in names:
            raise bad_parameter("function_call", f"names {given.name!r}, which is not among the functions")
        return NamedChoice(function=given)
    if given is not None and given not in MODES:
        raise bad_parameter("function_call", "must be 'none', 'auto' or {'name': …}")
    return given
