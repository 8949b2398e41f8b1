"""What a chat template's syntax tree tells: whether it goes through a message's content part by part.

The rules are those by which vLLM's server detects its `chat_template_content_format`.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

CONTENT = "content"


def reads_parts(tree: nodes.Template) -> bool:
    """Whether one of its loops runs over a message's content, also through a macro's parameter."""
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
