"""Stored: the live settings as they are kept in the registry, and the one way to change them.

A change reads, checks and writes under a claim, so that of two operators neither loses what the other set. The claim
has a lease: if whoever holds it dies, the next one waits for that lease at most. The write itself has less time than
a lease lasts, so that nobody writes whose claim has run out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from core.errors import CallerError, Unavailable
from core.settings import RoutingSettings
from streams.live_settings import SETTINGS_KEY
from streams.registry import Registry

LOCK_KEY = "settings/lock"
LOCK_WAIT_S = 15.0
"""Longest wait for somebody else's change; longer than the lease of one who died."""
LOCK_PAUSE_S = 0.1
CHANGE_S = 5.0
"""Longest time that reading and writing may take while the claim is held; half of its lease."""


class Stored(NamedTuple):
    """What the registry says over what was configured."""

    values: dict[str, Any]
    revision: int
    """The registry's; 0 if nothing was ever set."""


async def read_stored(registry: Registry) -> Stored:
    """The live settings now. CallerError if somebody else wrote there what is none."""
    for change in await registry.get(SETTINGS_KEY):
        if change.key == SETTINGS_KEY and change.value is not None:
            return Stored(_object(change.value), change.revision)
    return Stored({}, 0)


async def change_stored(
    registry: Registry, configured: RoutingSettings, given: Mapping[str, Any], removed: frozenset[str] | None
) -> Stored:
    """The settings given are live, those removed are not any more (None: all that were).

    CallerError, and nothing is changed, if they are no settings. Unavailable if the registry is away, or somebody
    else's change does not end; it is not known then whether ours was made.
    """
    RoutingSettings.parse({**configured.to_mapping(), **given})  # before anybody has to wait for us
    await _lock(registry)
    try:
        async with asyncio.timeout(CHANGE_S):
            return await _change(registry, configured, given, removed)
    except TimeoutError as error:
        raise Unavailable(f"the registry took more than {CHANGE_S:g} s: see `contrail settings`") from error
    finally:
        await registry.unregister(LOCK_KEY)


async def _change(
    registry: Registry, configured: RoutingSettings, given: Mapping[str, Any], removed: frozenset[str] | None
) -> Stored:
    if removed is None:
        before: dict[str, Any] = {}  # also the way out of a value that is no settings at all
    else:
        before = (await read_stored(registry)).values
    after = {**{key: value for key, value in before.items() if key not in (removed or ())}, **given}
    RoutingSettings.parse({**configured.to_mapping(), **after})
    return Stored(after, await registry.put(SETTINGS_KEY, orjson.dumps(after)))


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
