"""Entry: our own key in the registry. While that is away the wish stands, and is granted when it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import orjson

from core.errors import Unavailable
from streams.registry import Registry

REGISTRY_TIMEOUT_S = 10.0
"""How long we wait for the registry before we go on without it."""

_logger = logging.getLogger(__name__)


class Entry:
    """One key, which is there for as long as this process lives or until it is removed."""

    def __init__(self, registry: Registry, key: str) -> None:
        self.key = key
        self._registry = registry

    def __repr__(self) -> str:
        return f"<Entry {self.key}>"

    async def put(self, value: Mapping[str, object]) -> None:
        """The registry says so, or will when it is back."""
        try:
            async with asyncio.timeout(REGISTRY_TIMEOUT_S):
                await self._registry.register(self.key, orjson.dumps(value))
        except (Unavailable, TimeoutError) as error:
            _logger.warning("the registry is away, %s is put when it is back: %s", self.key, error)

    async def remove(self) -> None:
        """The registry has forgotten us, or will when it is back or the lease has run out."""
        try:
            async with asyncio.timeout(REGISTRY_TIMEOUT_S):
                await self._registry.unregister(self.key)
        except (Unavailable, TimeoutError) as error:
            _logger.warning("the registry is away, %s goes with its lease: %s", self.key, error)
