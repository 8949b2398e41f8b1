"""Usage: which revision of the live settings each replica decides by."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec

from api.census import REPLICAS, ask_all, registered
from api.replicas.replica import Replica, replica_of
from streams.live_settings import SETTINGS_KEY
from streams.registry import Registry

IN_USE_WAIT_S = 10.0
"""Longest wait until every replica decides by a new revision; they hear of it within milliseconds."""
IN_USE_PAUSE_S = 0.1


class Usage(msgspec.Struct, frozen=True):
    """One replica's revision, as `contrail settings --json` shows it."""

    name: str
    id: str
    settings_revision: int | None
    """None if it did not say."""
    uses: bool
    """Whether it is the one that the registry holds."""
    why: str = ""


class InUse(NamedTuple):
    """All replicas' usage."""

    replicas: list[Usage]

    @property
    def everywhere(self) -> bool:
        """Whether every replica uses the revision; true if there is none."""
        return all(it.uses for it in self.replicas)


async def in_use(registry: Registry, revision: int) -> InUse:
    """Who decides by the revision that the registry holds now; by the given one if it holds none."""
    stored = [change.revision for change in await registry.get(SETTINGS_KEY) if change.key == SETTINGS_KEY]
    revision = max(stored, default=revision)  # another may have set more meanwhile
    parts = await registered(registry, REPLICAS)
    return InUse([_usage(replica_of(answer), revision) for answer in await ask_all(parts)])


async def until_in_use(registry: Registry, revision: int) -> InUse:
    """The same, as soon as all do, or when the wait is over."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + IN_USE_WAIT_S
    while True:
        found = await in_use(registry, revision)
        if found.everywhere or loop.time() >= end_s:
            return found
        await asyncio.sleep(IN_USE_PAUSE_S)


def _usage(it: Replica, revision: int) -> Usage:
    uses = it.settings_revision is not None and it.settings_revision == revision
    why = it.why or ("" if it.settings_revision is not None else "does not say which")
    return Usage(it.name, it.id, it.settings_revision, uses, why)
