"""The tools in effect at the end of a conversation: those of the request, and what its system messages change."""

from __future__ import annotations

import re
from collections.abc import Iterator

from api.anthropic.messages_types import Block, CountRequest, MessagesTool
from api.server.errors import bad_parameter

ADDITION = "tool_addition"
REMOVAL = "tool_removal"
TOOL_CHANGES = (ADDITION, REMOVAL)
REFERENCE = "tool_reference"
DEFINITION = "tool_definition"
CUSTOM = ("custom", "function")
"""Types of tools that are described by a schema."""
HOSTED = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""Types of hosted tools: `web_search_20250305`, `bash_20250124`, `mcp_toolset`. They have no schema of their own."""


def tools_of(body: CountRequest) -> list[tuple[str, MessagesTool]]:
    """Each tool with its place in the body, in the order in which they were first named.

    A tool that is added by name was declared before; one that is added with its definition is declared, or replaced.
    Tools of MCP servers are none of ours. ApiError for a change that names no tool.
    """
    tools = [(f"tools[{at}]", tool) for at, tool in enumerate(body.tools or ())]
    changes = list(_changes(body))
    if not changes:
        return tools
    declared = {tool.name: (place, tool) for place, tool in tools}
    removed: set[str] = set()
    for place, block in changes:
        change = block.tool
        if change is None:
            raise bad_parameter(f"{place}.tool", "is required")
        if change.type == DEFINITION and block.type == ADDITION:
            if change.definition is None:
                raise bad_parameter(f"{place}.tool.definition", "is required")
            name = change.definition.name
            declared[name] = f"{place}.tool.definition", change.definition
        elif change.type == REFERENCE and change.name is not None:
            name = change.name
            if name not in declared:
                raise bad_parameter(
                    f"{place}.tool.name", f"{name!r} is not declared before, in tools or by its definition"
                )
        else:
            continue
        (removed.add if block.type == REMOVAL else removed.discard)(name)
    return [found for name, found in declared.items() if name not in removed]


def is_hosted(tool: MessagesTool) -> bool:
    """True for a tool that Anthropic's service runs, or that its models alone were taught."""
    return tool.type is not None and tool.type not in CUSTOM and HOSTED.fullmatch(tool.type) is not None


def omitted_tools(body: CountRequest) -> dict[str, str]:
    """Types of the tools that the model is not offered, each by itself."""
    return {tool.type: tool.type for _, tool in tools_of(body) if tool.type is not None and is_hosted(tool)}


def _changes(body: CountRequest) -> Iterator[tuple[str, Block]]:
    for index, message in enumerate(body.messages):
        if message.role == "system" and not isinstance(message.content, str):
            for at, block in enumerate(message.content):
                if block.type in TOOL_CHANGES:
                    yield f"messages[{index}].content[{at}]", block
