"""A registry in memory, first-class: tests and simulations of many processes share one store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from core.errors import Unavailable
from streams.registry import Change, KnownKeys


class MemoryRegistryStore:
    """The contents of etcd; its revision counts all changes."""

    def __init__(self) -> None:
        self.revision = 0
        self._keys: dict[str, Change] = {}
        self._owners: dict[str, MemoryRegistry] = {}
        """The process with the lease of each key; keys without a lease are not in it."""
        self._listeners: list[Callable[[Change], None]] = []

    def __repr__(self) -> str:
        return f"<MemoryRegistryStore {len(self._keys)} keys at {self.revision}>"

    def put(self, key: str, value: bytes, owner: MemoryRegistry | None = None) -> int:
        """The key is there, listeners know; returns the revision."""
        self.revision += 1
        self._owners.pop(key, None)
        if owner is not None:
            self._owners[key] = owner
        self._keys[key] = Change(key, value, self.revision)
        self._notify(self._keys[key])
        return self.revision

    def delete(self, key: str) -> None:
        """The key is gone, listeners know; nothing happens if it was."""
        self._owners.pop(key, None)
        if self._keys.pop(key, None) is not None:
            self.revision += 1
            self._notify(Change(key, None, self.revision))

    def expire(self, key: str) -> None:
        """The key is gone as if its owner's lease ran out; an owner that is back after being away puts it again."""
        assert key in self._keys
        self.delete(key)

    def wipe(self) -> None:
        """Everything is lost, and revisions count anew; to be called while every registry is away."""
        self.revision = 0
        self._keys.clear()
        self._owners.clear()

    def find(self, key: str) -> Change | None:
        """The key as it is now."""
        return self._keys.get(key)

    def owner(self, key: str) -> MemoryRegistry | None:
        """The process with the lease of the key."""
        return self._owners.get(key)

    def below(self, prefix: str) -> list[Change]:
        """All keys with that prefix, sorted."""
        return [self._keys[key] for key in sorted(self._keys) if key.startswith(prefix)]

    def listen(self, listener: Callable[[Change], None]) -> None:
        """The listener is called at once with every change from now on."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        """The listener is called no more."""
        self._listeners.remove(listener)

    def _notify(self, change: Change) -> None:
        for listener in self._listeners:
            listener(change)


class MemoryRegistry:
    """One process's registry on a shared store."""

    def __init__(self, store: MemoryRegistryStore) -> None:
        self._store = store
        self._held: dict[str, bytes | None] = {}
        """The keys that this process wants to be there; None for keys to be removed when contact is back."""
        self._claimed: set[str] = set()
        """Keys that are given up only if they are ours."""
        self._watches: list[_Watch] = []
        self._away = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryRegistry {len(self._held)} held, {len(self._watches)} watches{', away' if self._away else ''}>"

    @property
    def away(self) -> bool:
        """True while this process has no contact: calls raise Unavailable, watches report nothing. Set it to change
        that."""
        return self._away

    @away.setter
    def away(self, away: bool) -> None:
        if away is self._away:
            return
        self._away = away
        if self._closed:
            return
        if not away:
            self._settle()
        for watch in self._watches:
            watch.set_health(not away)

    async def register(self, key: str, value: bytes) -> None:
        """The key is there until `close` or `expire`; after an Unavailable, from when contact is back."""
        self._held[key] = value
        self._check()
        self._store.put(key, value, self)

    async def unregister(self, key: str) -> None:
        """The key is gone; after an Unavailable, from when contact is back."""
        self._held[key] = None
        self._check()
        del self._held[key]
        self._drop(key)

    async def claim(self, key: str, value: bytes) -> int | None:
        """The key is ours alone until `unregister`, `close` or `expire`; None if another has it."""
        assert self._held.get(key) is None
        self._check()
        self._claimed.add(key)
        there = self._store.find(key)
        if there is None:
            return self._store.put(key, value, self)
        return there.revision if self._store.owner(key) is self else None

    async def put(self, key: str, value: bytes) -> int:
        """The key is there for good; returns the revision."""
        self._check()
        return self._store.put(key, value)

    async def get(self, prefix: str) -> list[Change]:
        """All keys below the prefix now, sorted by key."""
        self._check()
        return self._store.below(prefix)

    async def watch(
        self, prefix: str, on_change: Callable[[Change], None], on_health: Callable[[bool], None] | None = None
    ) -> None:
        """The present keys were reported; changes are reported as they come, until `close`."""
        self._check()
        self._watches.append(_Watch(self._store, prefix, on_change, on_health))
        await asyncio.sleep(0)  # lets the callbacks run that were scheduled

    async def close(self) -> None:
        """Registered keys are gone, watches have ended; keys of a process without contact stay until `expire`, as under
        a lease."""
        if self._closed:
            return
        self._closed = True
        if self._away:
            return
        for watch in self._watches:
            watch.stop()
        for key in self._held.keys() | self._claimed:
            self._drop(key)

    def _check(self) -> None:
        if self._away or self._closed:
            raise Unavailable(f"memory registry: {'closed' if self._closed else 'away'}")

    def _settle(self) -> None:
        """Puts and removals made without contact, and keys that lost their lease meanwhile, are put right."""
        there = {change.key: change.value for change in self._store.below("")}
        for key, value in list(self._held.items()):
            if value is None:
                del self._held[key]
                self._drop(key)
            elif there.get(key) != value:
                self._store.put(key, value, self)

    def _drop(self, key: str) -> None:
        """A claim that another made since ours was lost stays."""
        if key not in self._claimed or self._store.owner(key) is self:
            self._store.delete(key)


class _Watch:
    """Calls back through the event loop, as a registry over the network does."""

    def __init__(
        self,
        store: MemoryRegistryStore,
        prefix: str,
        on_change: Callable[[Change], None],
        on_health: Callable[[bool], None] | None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._on_change = on_change
        self._on_health = on_health
        self._known = KnownKeys()
        self._loop = asyncio.get_running_loop()
        self._resume()

    def set_health(self, healthy: bool) -> None:
        """Contact is lost, or back with the missed changes reported; watchers are told which."""
        if healthy:
            self._resume()
        else:
            self.stop()
        if self._on_health is not None:
            self._loop.call_soon(self._on_health, healthy)

    def stop(self) -> None:
        """No change is reported any more."""
        self._store.unlisten(self._take)

    def _resume(self) -> None:
        for change in self._known.replace(self._store.below(self._prefix), self._store.revision):
            self._loop.call_soon(self._on_change, change)
        self._store.listen(self._take)

    def _take(self, change: Change) -> None:
        if change.key.startswith(self._prefix):
            for effect in self._known.apply(change):
                self._loop.call_soon(self._on_change, effect)
