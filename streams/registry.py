"""The registry as the rest of Contrail sees it: leased registrations, and live settings.

Keys are paths below the namespace (`workers/{id}`, `replicas/{id}`, `settings/routing`), values JSON bytes. KnownKeys
holds what a watch has reported, so that after an outage the watch reports exactly the differences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Change(NamedTuple):
    """One key as it is now; `value` is None when it is gone (deleted, or its lease ran out)."""

    key: str
    value: bytes | None
    revision: int
    """The registry's own counter at the change."""


class Registry(Protocol):
    """Raises Unavailable when it cannot be reached, each call within a bound; what is known goes on working without."""

    async def register(self, key: str, value: bytes) -> None:
        """The key is there for as long as this process lives (lease, kept alive, put again after a loss)."""

    async def unregister(self, key: str) -> None:
        """The key is gone."""

    async def claim(self, key: str, value: bytes) -> int | None:
        """The key is ours alone, under this process's lease, until `unregister`; None if another has it.

        Returns the revision at which it became ours: later claims have higher ones, until the registry loses its data
        and counts anew. Unlike `register` it is not put again after the lease was lost: claim again to know whether it
        is still ours. Each act under a claim must be fenced where the act counts. After an Unavailable it may be
        ours all the same. `unregister` of a claim leaves one that another has made since.
        """

    async def put(self, key: str, value: bytes) -> int:
        """The key is there for good; returns the revision."""

    async def get(self, prefix: str) -> list[Change]:
        """All keys below the prefix now, sorted by key."""

    async def watch(
        self, prefix: str, on_change: Callable[[Change], None], on_health: Callable[[bool], None] | None = None
    ) -> None:
        """`on_change` is called (on the event loop) for each key there now, then for each change, in order.

        It goes on over outages: after one, what differs is told. `on_health` tells when contact is lost and back.
        """

    async def close(self) -> None:
        """Leases of this process are given back, watches end."""


class KnownKeys:
    """The keys below one prefix as their watcher knows them."""

    def __init__(self) -> None:
        self._keys: dict[str, Change] = {}

    def __repr__(self) -> str:
        return f"<KnownKeys {len(self._keys)} keys>"

    def apply(self, change: Change) -> list[Change]:
        """The change is known; returns it if there is something to tell (none for a deletion of an unknown key)."""
        if change.value is not None:
            self._keys[change.key] = change
        elif self._keys.pop(change.key, None) is None:
            return []
        return [change]

    def replace(self, keys: list[Change], revision: int) -> list[Change]:
        """Exactly these keys are known; returns what differs, in the order of revisions.

        Keys that are gone went at some revision up to the one given, and are told with that.
        """
        assert all(key.value is not None for key in keys)
        now = {key.key: key for key in keys}
        gone = [Change(key, None, revision) for key in self._keys if key not in now]
        changed = [key for key in keys if self._keys.get(key.key) != key]
        self._keys = now
        return sorted(gone + changed, key=lambda change: (change.revision, change.key))
