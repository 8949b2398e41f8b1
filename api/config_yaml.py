"""YAML in which no key stands twice: PyYAML takes the last one, and what the first one said would be gone unseen."""

from __future__ import annotations

from typing import Any

import yaml

from core.errors import CallerError


class OnceLoader(yaml.SafeLoader):
    """Safe YAML. CallerError names the line of a key that its mapping has already."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping as it is written: before `<<` brings in keys that it may replace."""
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise CallerError(f"{self.name}, line {line}: `{key.value}` stands there twice: put both into one")
            seen.add((key.tag, key.value))
        return node
