"""The tools of a request: the names under which the model is offered them, and the client's names for its calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from api.openai.types.request_types import Function, Tool
from api.parsers.structured_outputs import check_depth
from api.parsers.tool_choice import NAME, TOOLS_MAX
from api.responses.responses_types import ResponsesRequest, ResponsesTool
from api.server.errors import ApiError, bad_parameter, not_supported
from api.server.json_limits import json_decoder

FLAT_NAME_CHARS_MAX = 64
"""Longest name of a function that a chat offers; NAME says so too."""
DIGEST_BYTES = 4
"""Of the digest that ends a shortened name."""
SEPARATOR = "__"
"""Between namespace and name, as vLLM has it."""
HOSTED_TOOL = re.compile(
    r"web_search(_preview)?(_\d{4}_\d{2}_\d{2})?|file_search|code_interpreter|image_generation|mcp|local_shell|shell"
    r"|computer|computer[_-]use([_-]preview)?(_\d{4}_\d{2}_\d{2})?|tool_search|apply_patch|programmatic_tool_calling"
)
"""Types of tools that OpenAI's own servers run, or that have calls in a form of their own."""
HOSTED_ITEMS = frozenset(
    f"{tool}_call{end}"
    for tool in ("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "local_shell", "shell")
    for end in ("", "_output")
) | {
    "computer_call", "computer_call_output", "apply_patch_call", "apply_patch_call_output", "tool_search_call",
    "tool_search_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "program",
    "program_output",
}  # fmt: skip
"""Items that such tools left in a conversation."""
_TOOL = json_decoder(ResponsesTool)
CUSTOM_INPUT = "input"
"""The one parameter of the function that stands for a custom tool."""
CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
"""In vLLM's words, so that the prompt is the same."""


class OfferedTool(NamedTuple):
    """One tool that the model may call."""

    tool: Tool
    """The function that stands for it in the chat."""
    name: str
    """The client's name for it."""
    namespace: str | None
    custom: bool
    """True if its input is text instead of arguments."""


class ToolCatalog:
    """A request's functions and custom tools by the names that the model has for them, in the request's order."""

    def __init__(self, body: ResponsesRequest) -> None:
        self._offered: dict[str, OfferedTool] = {}
        self._flat: dict[tuple[str | None, str], str] = {}
        self._local: dict[str, dict[str | None, str]] = {}
        """The model's names of the tools that share a name, by namespace."""
        self._spelled: dict[str, set[str]] = {}
        """The model's names by namespace and name, joined."""
        placed = list(_placed(body))
        self._own = {tool.name for _, tool, namespace in placed if namespace is None}
        """Names of tools without a namespace: a flattened name gives way to them."""
        for place, tool, namespace in placed:
            self._add(place, tool, namespace, again=place.startswith("input"))

    def __repr__(self) -> str:
        return f"<ToolCatalog {len(self._offered)} tools>"

    def __iter__(self) -> Iterator[tuple[str, OfferedTool]]:
        return iter(self._offered.items())

    def get(self, flat: str) -> OfferedTool | None:
        """The tool that the model calls so; None for a name that the model made up."""
        return self._offered.get(flat)

    def flat_name(self, name: str, namespace: str | None) -> str:
        """The model's name for a tool; for one that is not offered any more, the name that it had."""
        if found := self._flat.get((namespace or None, name)):
            return found
        return flat_name(namespace, name) if namespace else name

    def chosen(self, name: str, namespace: str | None = None) -> str:
        """The model's name for the tool that `tool_choice` names: with its namespace, flattened, or alone if no other
        tool has this name. ApiError if there is none."""
        if namespace is None and name in self._offered:
            return name
        local = self._local.get(name, {})
        found = self._spelled.get(name) or (local.values() if namespace is None else [local.get(namespace)])
        names = {flat for flat in found if flat is not None}
        if not names:
            raise bad_parameter("tool_choice", f"names {name!r}, which is not among the tools that can be called here")
        if len(names) > 1:
            raise bad_parameter("tool_choice", f"names {name!r}, which several namespaces have: give the namespace")
        return names.pop()

    def within(self, namespace: str) -> set[str]:
        """The model's names for all tools of the namespace."""
        return {flat for (of, _), flat in self._flat.items() if of == namespace}

    def _add(self, place: str, tool: ResponsesTool, namespace: str | None, *, again: bool) -> None:
        assert tool.name is not None
        flat = self._flat.get((namespace, tool.name))
        if flat is not None and not again:
            raise bad_parameter("tools", f"two of them have the name {flat!r}")
        if flat is None:
            flat = tool.name if namespace is None else self._free(namespace, tool.name)
        check_depth(tool.parameters, f"{place}.parameters")
        self._flat[namespace, tool.name] = flat
        self._local.setdefault(tool.name, {})[namespace] = flat
        if namespace:
            self._spelled.setdefault(f"{namespace}{SEPARATOR}{tool.name}", set()).add(flat)
        self._offered[flat] = OfferedTool(_as_chat(tool, flat), tool.name, namespace, tool.type == "custom")

    def _free(self, namespace: str, name: str) -> str:
        """The flattened name, or the first of its shortenings that no other tool has."""
        flat, attempt = flat_name(namespace, name), 0
        while flat in self._offered or flat in self._own:
            attempt += 1
            flat = _shortened(f"{namespace}{SEPARATOR}{name}", attempt)
        return flat


def flat_name(namespace: str, name: str) -> str:
    """`<namespace>__<name>`; a name that a chat cannot offer is shortened, and ends with a digest of the whole."""
    plain = f"{namespace}{SEPARATOR}{name}"
    return plain if NAME.fullmatch(plain) else _shortened(plain)


def _shortened(plain: str, attempt: int = 0) -> str:
    digest = blake2b(f"{attempt}:{plain}".encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()
    kept = re.sub(r"[^a-zA-Z0-9_-]", "_", plain)[: FLAT_NAME_CHARS_MAX - len(digest) - 1]
    return f"{kept}_{digest}"


def omitted_tools(body: ResponsesRequest) -> Mapping[str, str]:
    """The request's tools, and items of hosted tools in its input, that the model is not given: names for the
    client, each with its type."""
    found: dict[str, str] = {}
    for _, tool in _declared(body):
        for each in (tool, *(tool.tools or ())):
            if HOSTED_TOOL.fullmatch(each.type):
                found[each.type] = each.type
        for flat, custom in _customs(tool):
            if custom.format is not None and custom.format.type == "grammar":
                found[f"custom:{flat} grammar"] = "custom grammar"
    return found | {item.type: item.type for item in _items(body) if item.type in HOSTED_ITEMS}


def _customs(tool: ResponsesTool) -> Iterator[tuple[str, ResponsesTool]]:
    if tool.type == "custom":
        yield tool.name or "", tool
    for each in tool.tools or ():
        if each.type == "custom":
            yield flat_name(tool.name or "", each.name or ""), each


def _placed(body: ResponsesRequest) -> Iterator[tuple[str, ResponsesTool, str | None]]:
    """The tools that can be called here, each with its place in the body and its namespace."""
    for place, tool in _declared(body):
        if tool.type == "namespace":
            name = _named(f"{place}.name", tool)
            for index, each in enumerate(tool.tools or ()):
                inner = f"{place}.tools[{index}]"
                if _callable(inner, each):
                    _named(f"{inner}.name", each)
                    yield inner, each, name
        elif _callable(place, tool):
            if not NAME.fullmatch(_named(f"{place}.name", tool)):
                fault = "must have 1 to 64 of the letters a to z and A to Z, digits, _ and -"
                raise bad_parameter(f"{place}.name", fault)
            yield place, tool, None


def _declared(body: ResponsesRequest) -> Iterator[tuple[str, ResponsesTool]]:
    """All tools of the body, with their places in it; ApiError for more than a chat may offer."""
    left = TOOLS_MAX - sum(1 + len(tool.tools or ()) for tool in body.tools or ())
    _check_count(left)
    yield from ((f"tools[{index}]", tool) for index, tool in enumerate(body.tools or ()))
    for at, item in enumerate(_items(body)):
        if item.type == "additional_tools":
            place = f"input[{at}].tools"
            _check_count(left - len(item.tools or ()))
            tools = _decoded(place, item.tools or ())
            left -= sum(1 + len(tool.tools or ()) for tool in tools)
            _check_count(left)
            yield from ((f"{place}[{index}]", tool) for index, tool in enumerate(tools))


def _check_count(left: int) -> None:
    if left < 0:
        raise bad_parameter("tools", f"must hold at most {TOOLS_MAX} tools, those in namespaces and in items included")


def _items(body: ResponsesRequest) -> Iterable[Any]:
    return () if isinstance(body.input, str) else body.input


def _decoded(place: str, tools: Sequence[msgspec.Raw]) -> list[ResponsesTool]:
    try:
        return [_TOOL.decode(tool) for tool in tools]
    except msgspec.DecodeError as error:
        raise bad_parameter(place, f"must be a list of tools: {error}") from error


def _callable(place: str, tool: ResponsesTool) -> bool:
    """True if the model may be offered the tool; ApiError for an unknown type."""
    if tool.type in ("function", "custom"):
        return True
    if not HOSTED_TOOL.fullmatch(tool.type):
        raise _unknown(place, tool.type)
    return False


def _unknown(place: str, type_: str) -> ApiError:
    return not_supported(place, f"{place}: a tool of type {type_!r}; only functions, custom tools and namespaces")


def _named(param: str, tool: ResponsesTool) -> str:
    if not tool.name:
        raise bad_parameter(param, "is required")
    return tool.name


def _as_chat(tool: ResponsesTool, flat: str) -> Tool:
    if tool.type != "custom":
        function = Function(name=flat, description=tool.description, parameters=tool.parameters, strict=tool.strict)
        return Tool(function=function)
    return Tool(function=Function(name=flat, description=_with_grammar(tool), parameters=CUSTOM_PARAMETERS))


def _with_grammar(tool: ResponsesTool) -> str | None:
    """The description; a grammar that nothing holds the model to is at least told to it."""
    if tool.format is None or not tool.format.definition:
        return tool.description
    grammar = f"The input must follow this {tool.format.syntax or ''} grammar:\n{tool.format.definition}"
    return f"{tool.description}\n\n{grammar}" if tool.description else grammar
