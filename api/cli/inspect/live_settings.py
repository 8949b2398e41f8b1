"""Live settings in the registry: reading, changing, and the revision that each replica uses.

A change reads, checks and writes under a claim, so that two operators do not overwrite each other. The claim has a
lease: if its holder dies, the next one waits for that lease at most. The write has less time than a lease lasts, so
that it ends before its claim does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import orjson

from api.cli.inspect.replica_state import ReplicaStatus, replica_status
from api.cli.process_query import REPLICAS, query_processes, registered_processes
from core.errors import CallerError, Unavailable
from core.settings import RoutingSettings
from streams.live_settings import SETTINGS_KEY
from streams.registry import Registry

LOCK_KEY = "settings/lock"
LOCK_WAIT_S = 15.0
"""Longest wait for another operator's change; longer than the lease of a process that died."""
LOCK_PAUSE_S = 0.1
CHANGE_S = 5.0
"""Longest time that reading and writing may take while the claim is held; half of its lease."""


class StoredSettings(NamedTuple):
    """The settings in the registry, which override the configured ones."""

    values: dict[str, Any]
    revision: int
    """The registry's; 0 if nothing was ever set."""


async def read_stored(registry: Registry) -> StoredSettings:
    """The live settings now. CallerError if another program wrote no settings there."""
    for change in await registry.get(SETTINGS_KEY):
        if change.key == SETTINGS_KEY and change.value is not None:
            return StoredSettings(_object(change.value), change.revision)
    return StoredSettings({}, 0)


async def change_stored(
    registry: Registry, configured: RoutingSettings, given: Mapping[str, Any], removed: frozenset[str] | None
) -> StoredSettings:
    """The settings given are live, those removed are as configured (None: all of them).

    CallerError, and no change, if they are no settings. Unavailable if the registry is away, or another change does
    not end; whether this one was made is then unknown.
    """
    RoutingSettings.parse({**configured.to_mapping(), **given})  # before another change has to wait for this one
    async with change_claim(registry, "contrail settings"):
        return await _change(registry, configured, given, removed)


@asynccontextmanager
async def change_claim(registry: Registry, command: str) -> AsyncIterator[None]:
    """No other operator changes settings meanwhile. Unavailable if another change does not end, or this one takes more
    than CHANGE_S; whether it was made is then unknown, and the command shows it."""
    await _lock(registry)
    try:
        async with asyncio.timeout(CHANGE_S):
            yield
    except TimeoutError as error:
        raise Unavailable(f"the registry took more than {CHANGE_S:g} s: see `{command}`") from error
    finally:
        await registry.unregister(LOCK_KEY)


async def _change(
    registry: Registry, configured: RoutingSettings, given: Mapping[str, Any], removed: frozenset[str] | None
) -> StoredSettings:
    if removed is None:
        before: dict[str, Any] = {}  # this also repairs a value that is no settings
    else:
        before = (await read_stored(registry)).values
    after = {**{key: value for key, value in before.items() if key not in (removed or ())}, **given}
    RoutingSettings.parse({**configured.to_mapping(), **after})
    return StoredSettings(after, await registry.put(SETTINGS_KEY, orjson.dumps(after)))


async def _lock(registry: Registry) -> None:
    try:
        async with asyncio.timeout(LOCK_WAIT_S):
            while True:
                if await registry.claim(LOCK_KEY, b"{}") is not None:
                    return
                await asyncio.sleep(LOCK_PAUSE_S)
    except TimeoutError as error:
        text = f"somebody else has been changing the settings for {LOCK_WAIT_S:g} s: nothing was changed, try again"
        raise Unavailable(text) from error


def _object(value: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise CallerError(
            f"{SETTINGS_KEY} in the registry holds no JSON object, but {value[:60]!r}: replicas stay with their last "
            "settings; `contrail settings unset --all` mends it"
        )
    return found


IN_USE_WAIT_S = 10.0
"""Longest wait until every replica uses a new revision; they receive it within milliseconds."""
IN_USE_PAUSE_S = 0.1


class ReplicaRevision(msgspec.Struct, frozen=True):
    """One replica's revision, as `contrail settings --json` shows it."""

    name: str
    id: str
    settings_revision: int | None
    """None if it did not say."""
    uses: bool
    """True if it is the registry's revision."""
    why: str = ""


class SettingsRollout(NamedTuple):
    """The revision that each replica uses."""

    replicas: list[ReplicaRevision]

    @property
    def everywhere(self) -> bool:
        """True if every replica uses the revision, or if there is no replica."""
        return all(it.uses for it in self.replicas)


async def read_rollout(registry: Registry, revision: int, token: str | None) -> SettingsRollout:
    """The use of the registry's present revision by each replica; of the given one if it holds none."""
    stored = [change.revision for change in await registry.get(SETTINGS_KEY) if change.key == SETTINGS_KEY]
    revision = max(stored, default=revision)  # another may have set more meanwhile
    parts = await registered_processes(registry, REPLICAS)
    answers = await query_processes(parts, token)
    return SettingsRollout([_usage(replica_status(answer), revision) for answer in answers])


async def wait_for_rollout(registry: Registry, revision: int, token: str | None) -> SettingsRollout:
    """The use of the revision as soon as every replica uses it, or after IN_USE_WAIT_S."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + IN_USE_WAIT_S
    while True:
        found = await read_rollout(registry, revision, token)
        if found.everywhere or loop.time() >= end_s:
            return found
        await asyncio.sleep(IN_USE_PAUSE_S)


def _usage(it: ReplicaStatus, revision: int) -> ReplicaRevision:
    uses = it.settings_revision is not None and it.settings_revision == revision
    why = it.why or ("" if it.settings_revision is not None else "does not say which")
    return ReplicaRevision(it.name, it.id, it.settings_revision, uses, why)
