"""Readiness: whether a process serves, what it waits for, and what it does without for now."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Readiness(NamedTuple):
    """What `/ready` answers; each reason stands under the name of the part that it is about."""

    ready: bool
    waiting_for: dict[str, str]
    degraded: Mapping[str, str] = MappingProxyType({})
    """What is missing though requests are served: the log or the registry is away, history was lost."""

    def to_mapping(self) -> dict[str, object]:
        """What is shown."""
        return {**self._asdict(), "degraded": dict(self.degraded)}
