"""Membership: a process under its present id: its publisher in the log, its key in the registry.

Another process may write the end of one that lives. That stands: the process goes on at once under a new id, with all
that it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Generic, Protocol, TypeVar

from actors.membership.registration import RegistrationLease
from streams.registry import Registry


class SourcePublisher(Protocol):
    """Publishes the events of a process under one id."""

    @property
    def id(self) -> str:
        """The same for ever."""

    async def leave(self, reason: str) -> None:
        """The log has the end of this id if that was possible in time; nothing more is published."""

    async def retire(self) -> None:
        """Another wrote the end of this id: nothing more is published."""


P = TypeVar("P", bound=SourcePublisher)


class Membership(ABC, Generic[P]):
    """One publisher after another; `publisher` is the present one."""

    def __init__(self, registry: Registry, path: str, spawn: Callable[[Coroutine[None, None, None]], None]) -> None:
        """`path` is the folder of the key; `spawn` runs a task of the process."""
        self._registry = registry
        self._path = path
        self._spawn = spawn
        self._details: Mapping[str, object] = {}
        self.leaving = False
        """An end that another wrote is the last one: no new id is begun."""
        self.publisher = self._new_publisher()
        self._lease = self._new_lease()
        self.on_new_id: Callable[[str], None] = lambda _: None
        """Called when the process goes on under another id than before."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} as {self.publisher!r}>"

    @abstractmethod
    def _new_publisher(self) -> P:
        """A publisher under a new id; it calls `_rejoin` once if another writes its end."""

    @abstractmethod
    def _resume(self, before: P) -> None:
        """The whole state is on its way to the log under the new id."""

    @abstractmethod
    def _registry_facts(self) -> Mapping[str, object]:
        """The facts that the registry has beside the id and the details."""

    async def register(self, details: Mapping[str, object]) -> None:
        """The registry has these details, or will when it is back."""
        self._details = details
        await self._lease.put({"id": self.publisher.id, **self._registry_facts(), **details})

    async def unregister(self) -> None:
        """The registry forgets the process, or will when it is back."""
        await self._lease.remove()

    async def leave(self, reason: str) -> None:
        """The log has the end if that was possible in time; the registry forgets the process."""
        self.leaving = True
        try:
            await self.publisher.leave(reason)
        finally:
            await self.unregister()

    def _rejoin(self) -> None:
        """Lost is final: the process goes on under a new id."""
        if self.leaving:
            return
        before, lease = self.publisher, self._lease
        self.publisher = self._new_publisher()
        self._lease = self._new_lease()
        self._resume(before)
        self._spawn(self._retire(before, lease))
        self.on_new_id(self.publisher.id)

    async def _retire(self, before: P, lease: RegistrationLease) -> None:
        """The registry knows the new id first, so that the process is found at any time."""
        try:
            await self.register(self._details)
        finally:
            await before.retire()
            await lease.remove()

    def _new_lease(self) -> RegistrationLease:
        return RegistrationLease(self._registry, f"{self._path}/{self.publisher.id}")
