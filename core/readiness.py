"""Readiness: whether a process serves, what it waits for, and what it does without for now."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Readiness(NamedTuple):
    """The answer of `/ready`: each reason under the name of its part."""

    ready: bool
    waiting_for: dict[str, str]
    degraded: Mapping[str, str] = MappingProxyType({})
    """Parts that are missing while requests are served: the log or the registry is away, history was lost."""

    def to_mapping(self) -> dict[str, object]:
        """The JSON form."""
        return {**self._asdict(), "degraded": dict(self.degraded)}
