"""Traits of a chat template: two questions about how it takes messages.

`reads_parts` reads its syntax tree, by the rules by which vLLM's server detects `chat_template_content_format`.
`takes_system_anywhere` renders small conversations: some templates refuse a system message behind the first place, some
drop it, some write the last one in place of the first. For these, all system messages become one at the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from jinja2 import nodes

from api.server.errors import ApiError

CONTENT = "content"


def reads_parts(tree: nodes.Template) -> bool:
    """True if a loop of the template runs over a message's content, also through a macro's parameter."""
    messages = _message_names(tree)
    in_macros: set[int] = set()
    for macro in tree.find_all(nodes.Macro):
        bound = set(_content_parameters(tree, macro, messages))
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            if isinstance(loop.iter, nodes.Name) and loop.iter.name in bound:
                return True
    return any(
        _is_content(loop.iter, messages)
        or (id(loop) not in in_macros and isinstance(loop.iter, nodes.Name) and loop.iter.name == CONTENT)
        for loop in tree.find_all(nodes.For)
    )


def _message_names(tree: nodes.Template) -> set[str]:
    """The names that single messages have in loops over all of them, or over a part of them."""
    lists = {"messages"}
    before = 0
    while before < len(lists):
        before = len(lists)
        for assign in tree.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name) and _is_one_of(assign.node, lists):
                lists.add(assign.target.name)
    loops = (loop for loop in tree.find_all(nodes.For) if _is_one_of(loop.iter, lists))
    return {loop.target.name for loop in loops if isinstance(loop.target, nodes.Name)}


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, messages: set[str]) -> Iterator[str]:
    """The macro's parameters that are given a message's content somewhere."""
    names = [parameter.name for parameter in macro.args]
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given = [*zip(names, call.args, strict=False), *((keyword.key, keyword.value) for keyword in call.kwargs)]
        yield from (name for name, value in given if name in names and _is_content(value, messages))


def _stripped(node: nodes.Node | None) -> nodes.Node | None:
    """Without filters, tests and slices around it."""
    while isinstance(node, (nodes.Filter, nodes.Test)) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    return node


def _is_one_of(node: nodes.Node | None, names: set[str]) -> bool:
    node = _stripped(node)
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name in names


def _is_content(node: nodes.Node | None, messages: set[str]) -> bool:
    node = _stripped(node)
    if isinstance(node, nodes.Getattr):
        return node.attr == CONTENT and _is_name(node.node, messages)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return node.arg.value == CONTENT and _is_name(node.node, messages)
    return False


def _is_name(node: nodes.Node, names: set[str]) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name in names


CONVERSATIONS = (
    ("system", "user", "system", "user"),
    ("system", "user", "assistant", "system", "user"),
    ("system", "user", "assistant", "user", "system"),
    ("user", "system"),
)
"""Roles; the last system message of each is the one in question."""
TOOL = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {"type": "object"}}}


class Render(Protocol):
    """`ChatTemplate.render`."""

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str: ...


def takes_system_anywhere(render: Render, *, parts: bool) -> bool:
    """True if every conversation is rendered whole and in order, with tools and without; those do not count that the
    template refuses without the system message, too."""
    judged = [
        _in_place(render, _messages(roles, parts=parts), tools) for roles in CONVERSATIONS for tools in (None, [TOOL])
    ]
    return True in judged and False not in judged


def _messages(roles: Sequence[str], *, parts: bool) -> list[dict[str, Any]]:
    texts = [_text(at) for at in range(len(roles))]
    contents = [[{"type": "text", "text": text}] if parts else text for text in texts]
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]


def _text(at: int) -> str:
    """Of the message at this place; no template writes it of its own."""
    return f"probe{at}text"


def _in_place(render: Render, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> bool | None:
    """None if nothing can be told of it."""
    inner = max(at for at, message in enumerate(messages) if message["role"] == "system")
    try:
        render(messages[:inner] + messages[inner + 1 :], tools=tools)
    except ApiError:
        return None
    try:
        text = render(messages, tools=tools)
    except ApiError:
        return False
    places = [text.find(_text(at)) for at in range(len(messages))]
    return -1 not in places and places == sorted(places)
